"""Read the pickles of CIFAR-10's Python layout: dictionaries of texts, numbers and arrays of bytes, and nothing else."""

import importlib
import io
import pickle
import warnings
from typing import Any

import numpy as np

from storebench.errors import CorruptDataError

_ARRAYS = frozenset({"_reconstruct", "_frombuffer", "ndarray", "dtype"})
"""What rebuilds an array, in numpy 1 and 2, by pickles of any protocol."""

_MODULES = frozenset(
    {"numpy", *(f"numpy.{core}.{part}" for core in ("core", "_core") for part in ("multiarray", "numeric"))}
)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES and name in _ARRAYS:
            return getattr(importlib.import_module(module), name)
        if (module, name) == ("_codecs", "encode"):  # protocol 2 of Python 3 writes bytes so
            return _encode
        raise pickle.UnpicklingError(f"it wants to call {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it refers to something outside, {pid!r}")


def _encode(text: str, _encoding: str) -> bytes:
    return text.encode("latin-1")


def load_dict(raw: bytes, where: str) -> dict[str, Any]:
    """Return the dictionary that `raw` pickles, with keys as text and arrays as uint8."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numpy's own former names, and of damaged texts
            loaded = _Reader(io.BytesIO(raw), encoding="bytes").load()
        return {_text(key): _checked(value) for key, value in _dictionary(loaded).items()}
    except Exception as error:
        raise CorruptDataError(
            f"not a pickle of CIFAR-10 data ({error or type(error).__name__})",
            where=where,
            hint="Delete it and fetch the data again: storebench data fetch cifar10.",
        ) from error


def _dictionary(loaded: Any) -> dict[Any, Any]:
    if not isinstance(loaded, dict):
        raise pickle.UnpicklingError("it does not hold a dictionary")
    return loaded


def _text(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)


def _checked(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype != np.uint8:
        raise pickle.UnpicklingError(f"its pixels are {value.dtype}, not uint8")
    return value
