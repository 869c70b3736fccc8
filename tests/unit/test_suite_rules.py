"""No test module imports another, and helpers go by their full names."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
COLLECTED = {path.stem for path in FILES if path.stem == "conftest" or path.stem.startswith("test_")}
HELPERS = {path.stem for path in FILES} - COLLECTED


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the full name of every module that is imported, and of every name that is taken from one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_imports_a_test_and_helpers_go_by_their_full_names() -> None:
    """A bare name would be found only while the helper's folder is on the path."""
    assert len(COLLECTED) > 50
    assert HELPERS
    found = [
        (path.relative_to(ROOT), name)
        for path in FILES
        for name in imports(ast.parse(path.read_text(encoding="utf-8")))
        if COLLECTED & set(name.split(".")) or name.partition(".")[0] in HELPERS
    ]
    assert not found
