"""Read the pickles of CIFAR-10's python layout without running anything that is in them.

A pickle is a program. Here it may only build dictionaries, lists, strings and
integers, and name three numpy functions; even those are replaced by inert
records, from which the arrays are then rebuilt by hand. Everything else is
refused before it is executed.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.errors import CorruptDataError

_ALLOWED_GLOBALS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}

_MEMO_OPCODES = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))

_MALFORMED = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What the standard unpickler raises on bytes that are no pickle."""


class _Inert:
    """Stand in for a numpy function and for what it would return: takes anything, does nothing."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: Any = None

    def __call__(self, *_arguments: object) -> "_Inert":
        return _Inert()

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED_GLOBALS:
            raise pickle.UnpicklingError(f"it wants to call {module}.{name}")
        return _Inert()

    def persistent_load(self, _pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to an object outside the file")


def load_dict(raw: bytes, where: str) -> dict[str, Any]:
    """Return the dictionary that `raw` pickles; its keys as text, its arrays as uint8.

    Raises
    ------
    CorruptDataError
        The bytes are no pickle of a dictionary, or ask for anything beyond
        numpy arrays of bytes. Nothing that the pickle names has been called.
    """
    try:
        _check_memo(raw)
        loaded = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
        if not isinstance(loaded, dict):
            raise pickle.UnpicklingError("it holds no dictionary")
        return {_text(key): _value(value) for key, value in loaded.items()}
    except _MALFORMED as error:
        raise CorruptDataError(
            f"not a pickle of CIFAR-10 data ({error or type(error).__name__}); nothing in it was run",
            where=where,
            hint="Delete it and fetch the data again: storebench data fetch cifar10.",
        ) from error


def _check_memo(raw: bytes) -> None:
    # The unpickler allocates a table up to the largest memo number, which a few bytes can make 16 GiB.
    for opcode, argument, _ in pickletools.genops(raw):
        if opcode.name in _MEMO_OPCODES and not 0 <= int(argument or 0) <= len(raw):
            raise pickle.UnpicklingError("it has an impossible memo number")


def _text(key: object) -> str:
    if isinstance(key, bytes):
        return key.decode("utf-8", "replace")
    if isinstance(key, str):
        return key
    raise pickle.UnpicklingError("a key is no text")


def _value(value: object) -> Any:
    return _array(value.state) if isinstance(value, _Inert) else value


def _array(state: object) -> npt.NDArray[np.uint8]:
    """Rebuild an array from what ndarray.__reduce__ saves: (version, shape, dtype, Fortran order, bytes)."""
    if not (isinstance(state, tuple) and len(state) == 5):
        raise pickle.UnpicklingError("an array is incomplete")
    _, shape, dtype, fortran, data = state
    # Every dtype is one inert record, so the size has to show that the items are single bytes.
    if not (isinstance(dtype, _Inert) and isinstance(data, bytes) and isinstance(shape, tuple)):
        raise pickle.UnpicklingError("an array is not made of bytes")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")
