"""Read the pickles of CIFAR-10's Python layout without running anything that they name.

A pickle is a program for a stack machine. The machine here is not Python's: it knows only the instructions that
build dictionaries, lists, tuples, texts and numbers, and executes no more than `MOST_INSTRUCTIONS` of them. A pickle
may name three numpy functions; inert records stand in for them and for their results, and the arrays are rebuilt from
these records. Everything else is refused.

Only texts may be dictionary keys. Hashing a tuple takes as long as visiting everything in it, and a few hundred bytes
can describe a nested tuple that takes centuries.
"""

import pickletools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.errors import CorruptDataError

MOST_INSTRUCTIONS = 1_000_000
"""Most instructions in a pickle; an official batch has about 30,000."""

_ALLOWED_GLOBALS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


class _RefusedError(ValueError):
    """A pickle is refused; the text says why."""


_MALFORMED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors that `pickletools`, the machine and numpy raise for bytes that are not a pickle of arrays."""


class _Inert:
    """Stand in for a numpy function and for its result: stores the state of an array and does nothing else."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: Any = None


def load_dict(raw: bytes, where: str) -> dict[str, Any]:
    """Return the dictionary that `raw` pickles, with keys as text and arrays as uint8.

    Raises
    ------
    CorruptDataError
        The bytes are not a pickle of a dictionary, or need anything beyond
        numpy arrays of bytes. Nothing that the pickle names has been called.
    """
    try:
        with warnings.catch_warnings():
            # An invalid escape in a damaged text, which Python warns of, and leaves as it is.
            warnings.simplefilter("ignore", DeprecationWarning)
            loaded = _Machine(most_memo=len(raw)).run(raw)
        if not isinstance(loaded, dict):
            raise _RefusedError("it does not hold a dictionary")
        return {_text(key): _value(value) for key, value in loaded.items()}
    except _MALFORMED as error:
        raise CorruptDataError(
            f"not a pickle of CIFAR-10 data ({error or type(error).__name__}); nothing in it was run",
            where=where,
            hint="Delete it and fetch the data again: storebench data fetch cifar10.",
        ) from error


class _Machine:
    """Execute the instructions of a pickle that build plain data.

    Parameters
    ----------
    most_memo
        The largest key under which a pickle may memoize a value.
    """

    def __init__(self, most_memo: int) -> None:
        self._most_memo = most_memo
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, raw: bytes) -> Any:
        """Return the value that the pickle builds."""
        for number, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
            if opcode.name == "STOP":
                break
            if number >= MOST_INSTRUCTIONS:
                raise _RefusedError(f"it has more than {MOST_INSTRUCTIONS:,} instructions")
            self._carry_out(opcode.name, argument)
        return self._stack.pop()

    def _carry_out(self, name: str, argument: Any) -> None:
        if name in _VALUES:
            self._stack.append(_VALUES[name](argument))
        elif name in _TUPLES:
            self._stack.append(tuple(self._take(_TUPLES[name])))
        elif name in _ACTIONS:
            _ACTIONS[name](self, argument)
        elif name not in _NO_ACTION:
            raise _RefusedError(f"it has the instruction {name}")

    def _take(self, count: int) -> list[Any]:
        """Remove the top `count` values and return them in order."""
        if len(self._stack) < count:
            raise _RefusedError("it takes a value that is not there")
        taken = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return taken

    def _take_to_mark(self) -> list[Any]:
        if not self._marks:
            raise _RefusedError("a mark is missing")
        return self._take(max(0, len(self._stack) - self._marks.pop()))

    def _top(self, kind: type[Any]) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind):
            raise _RefusedError("it adds to a value that is not a container")
        return self._stack[-1]

    def mark(self, _argument: Any) -> None:
        self._marks.append(len(self._stack))

    def make_tuple(self, _argument: Any) -> None:
        self._stack.append(tuple(self._take_to_mark()))

    def make_list(self, _argument: Any) -> None:
        self._stack.append(self._take_to_mark())

    def make_dict(self, _argument: Any) -> None:
        items = self._take_to_mark()
        self._stack.append({})
        self._set(items)

    def append(self, _argument: Any) -> None:
        items = self._take(1)
        self._top(list).extend(items)

    def appends(self, _argument: Any) -> None:
        items = self._take_to_mark()
        self._top(list).extend(items)

    def set_item(self, _argument: Any) -> None:
        self._set(self._take(2))

    def set_items(self, _argument: Any) -> None:
        self._set(self._take_to_mark())

    def _set(self, items: list[Any]) -> None:
        mapping, keys = self._top(dict), items[::2]
        if not all(isinstance(key, str | bytes) for key in keys):
            raise _RefusedError("a key is not a text")
        mapping.update(zip(keys, items[1::2], strict=True))

    def put(self, argument: Any) -> None:
        number = len(self._memo) if argument is None else int(argument)
        if not 0 <= number <= self._most_memo:
            raise _RefusedError("it has an impossible memo number")
        self._memo[number] = self._top(object)

    def get(self, argument: Any) -> None:
        self._stack.append(self._memo[int(argument)])

    def push_global(self, argument: Any) -> None:
        module, _, name = argument.partition(" ")
        self._push_inert(module, name)

    def push_global_of_stack(self, _argument: Any) -> None:
        module, name = self._take(2)
        if not (isinstance(module, str) and isinstance(name, str)):
            raise _RefusedError("it names something by a value that is not a text")
        self._push_inert(module, name)

    def _push_inert(self, module: str, name: str) -> None:
        if (module, name) not in _ALLOWED_GLOBALS:
            raise _RefusedError(f"it wants to call {module[:80]}.{name[:80]}")
        self._stack.append(_Inert())

    def call(self, _argument: Any) -> None:
        function, arguments = self._take(2)
        if not (isinstance(function, _Inert) and isinstance(arguments, tuple)):
            raise _RefusedError("it calls something that is not a function")
        self._stack.append(_Inert())

    def set_state(self, _argument: Any) -> None:
        (state,) = self._take(1)
        self._top(_Inert).state = state


def _same(value: Any) -> Any:
    return value


def _bytes(value: str) -> bytes:
    # pickletools returns the byte strings of Python 2 as Latin-1.
    return value.encode("latin-1")


_VALUES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"), _same),
    **dict.fromkeys(("FLOAT", "BINFLOAT"), _same),
    **dict.fromkeys(("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"), _same),
    **dict.fromkeys(("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"), _same),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), _bytes),
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
}

_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "TUPLE": _Machine.make_tuple,
    "LIST": _Machine.make_list,
    "DICT": _Machine.make_dict,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    "GLOBAL": _Machine.push_global,
    "STACK_GLOBAL": _Machine.push_global_of_stack,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.set_state,
}

_NO_ACTION = frozenset(("PROTO", "FRAME"))


def _text(key: str | bytes) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else key


def _value(value: object) -> Any:
    return _array(value.state) if isinstance(value, _Inert) else value


def _array(state: object) -> npt.NDArray[np.uint8]:
    """Rebuild an array from the state that ndarray.__reduce__ saves: (version, shape, dtype, Fortran order, bytes)."""
    if not (isinstance(state, tuple) and len(state) == 5):
        raise _RefusedError("an array is incomplete")
    _, shape, dtype, fortran, data = state
    # Every dtype is one inert record, so only the size shows that the items are single bytes.
    if not (isinstance(dtype, _Inert) and isinstance(data, bytes) and isinstance(shape, tuple)):
        raise _RefusedError("an array does not consist of bytes")
    if not all(isinstance(extent, int) for extent in shape):
        raise _RefusedError("the shape of an array does not consist of numbers")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")
