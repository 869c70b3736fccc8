"""Names of samples, the paths of their files or their keys in a container: one line each, in memory and in stores."""

import re
from array import array
from collections.abc import Sequence
from typing import overload

import numpy as np

_ESCAPED = re.compile(r"\\(.)")


def line_of(name: str) -> bytes:
    """Return a name as a line of UTF-8; bytes of a file's name that are no UTF-8 stay as they are."""
    text = name.replace("\\", "\\\\").replace("\n", "\\n")
    return text.encode("utf-8", "surrogateescape") + b"\n"


class SampleNames(Sequence[str]):
    """Names in little memory: their UTF-8 and 8 bytes each."""

    def __init__(self, lines: bytes = b"") -> None:
        self._lines, self._ends = bytearray(lines), array("q", [0])
        ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n")) + 1
        self._ends.frombytes(ends.astype(np.int64).tobytes())

    def append(self, name: str) -> None:
        self._lines += line_of(name)
        self._ends.append(len(self._lines))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        places = range(len(self))[index]
        return self._name(places) if isinstance(places, int) else [self._name(place) for place in places]

    def _name(self, place: int) -> str:
        line = self._lines[self._ends[place] : self._ends[place + 1] - 1].decode("utf-8", "surrogateescape")
        return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], line)
