"""The package's vocabulary: a public class or type has a name that no other module gives to another one."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from storebench.system.processes import uncollected

PACKAGE = Path(__file__).resolve().parents[2] / "storebench"


def public_types(tree: ast.Module) -> Iterator[str]:
    """Yield the names of a module's public classes and aliases of types; type variables are none."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        else:
            continue
        if name[0].isupper() and not name.isupper():
            yield name


def test_each_public_type_has_a_name_of_its_own() -> None:
    """Seen to fail with `CellPair` of `check.pairs` named `TimedConversion`, as in `conversion_rounds`."""
    modules: dict[str, list[str]] = defaultdict(list)
    with uncollected():
        for path in PACKAGE.rglob("*.py"):
            for name in public_types(ast.parse(path.read_text(encoding="utf-8"))):
                modules[name].append(str(path.relative_to(PACKAGE)))
    assert len(modules) > 300
    assert {name: where for name, where in modules.items() if len(where) > 1} == {}
