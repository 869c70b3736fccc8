"""The reference of scenario files: every key is on the page, and what it says of each is what the model does."""

from typing import Any

import pydantic
import pytest

from storebench.matrix import MOST_REPLICATES, Matrix
from storebench.scenario import Scenario
from tests.docs.scenario_reference import Key, keys, scenario_reference

KEYS = [*keys(Matrix), *(key for key in keys(Scenario) if key.name != "matrix")]
IN_MATRIX = keys(Matrix)
"""Keys of a matrix; the file has a `seed` as well, of another kind."""
NEEDED: dict[str, dict[str, Any]] = {
    "limited": {"memory": "400 MiB"},
    "memory": {"cache": "limited"},
    "budget": {"replicates": 6},
    "global_batch_size": {"ranks": 2},
    "pad": {"ranks": 2},
    "sync": {"ranks": 2},
    "share": {"ranks": 2},
    "store_fill": {"ranks": 2, "share": "store"},
    "store_memory": {"ranks": 2, "share": "store"},
    "trainers": {"ranks": 1024},
    "trainer_data": {"ranks": 2, "trainers": 2},
    "tournament_steps": {"ranks": 2, "trainers": 2},
}
"""Value or key -> what else its table needs with it."""

EXAMPLES: dict[str, Any] = {
    "folder:PATH": "folder:photos",
    "list:FILE": "list:photos.txt",
    "emulated:MILLISECONDS": "emulated:1.5",
    "cuda:NUMBER": "cuda:0",
    "true": True,
    "false": False,
}
"""What the page lists -> a value of a scenario; other words are values as they are."""


def accepts(key: Key, value: Any) -> bool:
    """Return whether a small scenario with this value of a key is valid."""
    small: dict[str, Any] = {"name": "small", "matrix": [{"dataset": "mnist", "backends": ["lmdb"]}]}
    target = small["matrix"][0] if key in IN_MATRIX else small
    target |= NEEDED.get(key.name, {})
    if key in IN_MATRIX:
        target |= NEEDED.get(str(value), {})
    if key.name == "model" and value == "none":
        target["compute"] = "none"
    if key in IN_MATRIX and key.name == "replicates":
        small["replicates"] = MOST_REPLICATES  # a matrix has no more than its scenario
    target[key.name] = value
    try:
        Scenario.model_validate(small)
    except pydantic.ValidationError:
        return False
    return True


def named_values(key: Key) -> list[Any]:
    """Return the values that the page lists for a key."""
    words = [word.strip("`") for word in key.allowed.split(", ")] if "`, `" in key.allowed else []
    return [EXAMPLES.get(word, word) for word in words]


def test_every_key_is_on_the_page_with_its_meaning() -> None:
    assert {key.name for key in KEYS} == {*Matrix.model_fields, *Scenario.model_fields} - {"matrix"}
    text = scenario_reference()
    for key in KEYS:
        assert key.row() in text
        assert len(key.meaning) > 10, f"{key.name}: say in the model's docstring what it means"
        assert key.default not in ("", "`null`"), f"{key.name}: say in the docstring what its default is"


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_the_values_on_the_page_are_those_that_are_accepted(key: Key) -> None:
    for value in named_values(key):
        assert accepts(key, value), value
    if key.most is not None and key.least is not None:
        assert accepts(key, key.least)
        assert not accepts(key, key.least - 1)
        assert accepts(key, key.most) or key.name == "readahead"
        assert not accepts(key, key.most + 1)
    assert not accepts(key, ["no", "such", "value"])
    assert not accepts(key, {"no": "such value"})


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_the_axes_on_the_page_are_those_that_take_a_list(key: Key) -> None:
    values = named_values(key) or [key.least if key.least is not None else "x"]
    value = values[-1]
    if accepts(key, value):
        assert accepts(key, [value]) is (key.axis or key.name == "backends")


def test_there_are_axes_and_keys_that_are_none() -> None:
    assert {key.name for key in KEYS if key.axis} == {
        "compute",
        "cache",
        "loader",
        "workers",
        "batch_size",
        "readahead",
        "ranks",
        "seed",
        "sync",
        "share",
        "store_fill",
        "tournament_steps",
        "trainer_data",
        "trainers",
    }
