"""`make mutation` names modules and tests that are there."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = tomllib.loads((ROOT / "tests" / "mutation" / "targets.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("group", TARGETS)
def test_the_modules_and_tests_of_a_group_are_there(group: str) -> None:
    paths = [*TARGETS[group]["modules"], *TARGETS[group]["tests"]]
    assert len(paths) >= 2
    assert [path for path in paths if not (ROOT / path).is_file()] == []
