"""Pickles of our own classes are read, whichever Python wrote them, and nothing else is called."""

import pickle
from typing import Any

import pytest

from storebench.settings.words import CacheState
from storebench.system.pickles import unpickled


class Called:
    """It pickles as a call."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize(
    "value", [CacheState.COLD, Called(CacheState, "cold"), Called(getattr, CacheState, "COLD")]
)
def test_members_are_read_as_every_python_writes_them(value: Any) -> None:
    assert unpickled(pickle.dumps([value]), own=True) == [CacheState.COLD]


@pytest.mark.parametrize("call", [(getattr, dict, "fromkeys"), (getattr, CacheState, "mro"), (eval, "1")])
def test_nothing_else_is_called(call: tuple[Any, ...]) -> None:
    with pytest.raises(pickle.UnpicklingError):
        unpickled(pickle.dumps(Called(*call)), own=True)
