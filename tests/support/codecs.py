"""The codecs of images of one size, at the qualities that tests use."""

import importlib.util
from collections.abc import Iterable, Iterator

import pytest

from storebench.codecs import CODECS

LOSSLESS = ("raw", "png", "webp", "jxl", "qoi", "zstd", "lz4")
LOSSY = ("jpeg", "jpeg:60", "webp:80", "jxl:80")
ALL = (*LOSSLESS, *LOSSY)


def installed(names: Iterable[str]) -> list[object]:
    """Return codecs as parameters of a test, which is skipped where a library is missing."""
    return list(_marked(names))


def _marked(names: Iterable[str]) -> Iterator[object]:
    for name in names:
        library = CODECS[name.partition(":")[0]].library
        missing = bool(library) and importlib.util.find_spec(library) is None
        yield pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"{library} is not installed"))
