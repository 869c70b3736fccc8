"""The suite's own rules: no test module imports another, and names of tests can be read in a list of failures."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from storebench.system.processes import uncollected

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
COLLECTED = {path.stem for path in FILES if path.stem == "conftest" or path.stem.startswith("test_")}
HELPERS = {path.stem for path in FILES} - COLLECTED
LONGEST_NAME = 69


BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields in which syntax trees hold statements."""


@cache
def parsed() -> tuple[tuple[str, ast.Module], ...]:
    """Return the path in the project and the syntax tree of every file of the suite."""
    trees = ((str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in FILES)
    with uncollected():
        return tuple(trees)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements below a node; expressions, most of a tree, hold none."""
    for field in BODIES:
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the full name of every module that is imported, and of every name that is taken from one."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_imports_a_test_or_a_conftest() -> None:
    found = [
        (path, name) for path, tree in parsed() for name in imports(tree) if COLLECTED & set(name.split("."))
    ]
    assert not found


def test_helpers_are_imported_by_their_full_names() -> None:
    """A bare name would be found only while the helper's folder is on the path."""
    found = [
        (path, name) for path, tree in parsed() for name in imports(tree) if name.partition(".")[0] in HELPERS
    ]
    assert not found


def test_the_names_of_tests_fit_a_line() -> None:
    found = [
        (path, node.name)
        for path, tree in parsed()
        for node in statements(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if len(node.name) > LONGEST_NAME
    ]
    assert not found


def test_the_rules_see_the_whole_suite() -> None:
    assert len(COLLECTED) > 100
    assert {"planted_plugin", "engine", "machines"} <= HELPERS
    tree = ast.parse("import a.b\ndef f():\n    from tests.unit.test_x import y\n    from c import d")
    assert list(imports(tree)) == ["a.b", "tests.unit.test_x.y", "c.d"]
    tree = ast.parse("try:\n    pass\nexcept E:\n    if a:\n        pass\n    else:\n        import b")
    assert list(imports(tree)) == ["b"]
