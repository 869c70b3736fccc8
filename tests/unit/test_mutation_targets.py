"""`make mutation` names modules and tests that are there."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = tomllib.loads((ROOT / "tests" / "mutation" / "targets.toml").read_text(encoding="utf-8"))


def is_there(name: str) -> bool:
    """Return whether a module, a file of tests, or a test with its parameters in brackets is there."""
    path, _, test = name.partition("::")
    if not (ROOT / path).is_file():
        return False
    return not test or f"\ndef {test.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("group", TARGETS)
def test_the_modules_and_tests_of_a_group_are_there(group: str) -> None:
    target = TARGETS[group]
    names = [*target["modules"], *target["tests"], *target.get("left_out", [])]
    assert len(names) >= 2
    assert [name for name in names if not is_there(name)] == []
