"""The progress of a replicate: a small file per rank, which the rank writes and the launcher reads."""

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from storebench.errors import CellFailedError

_TEXT_BYTES = 64
# The fields of a position, in their order.
_LAYOUT = struct.Struct(f"<6q{_TEXT_BYTES}s")

T = TypeVar("T")


class Position(NamedTuple):
    """The position of a rank in its job."""

    rank: int
    phase: int = 0
    batches: int = 0
    total: int = 0
    begun_ns: int = 0
    waits: int = 0
    pid: int = 0
    name: str = "the start"

    @classmethod
    def of(cls, folder: Path, rank: int) -> Self:
        """Return the position of a rank; the beginning if it has written none yet."""
        try:
            *numbers, text = _LAYOUT.unpack(_path(folder, rank).read_bytes())
        except (OSError, struct.error):
            return cls(rank)
        return cls._make((rank, *numbers, text.rstrip(b"\0").decode(errors="replace") or "the start"))

    @property
    def waiting(self) -> bool:
        return self.waits % 2 == 1

    @property
    def order(self) -> tuple[int, int]:
        """Sorts ranks by how far they have come."""
        return self.phase, self.batches

    def __str__(self) -> str:
        return f"after {self.batches:,} batches of {self.name}" if self.batches else f"during {self.name}"


class RankProgress:
    """The progress of one rank, in a file that it shares with its launcher."""

    def __init__(self, file: mmap.mmap) -> None:
        self._file = file
        self._phase = self._batches = self._total = self._begun_ns = self._waits = 0
        self._pid, self._name = os.getpid(), b""
        self._write()

    @classmethod
    def create(cls, folder: Path, rank: int) -> Self:
        """Make the file of a rank."""
        try:
            with _path(folder, rank).open("xb+") as file:
                file.truncate(_LAYOUT.size)
                return cls(mmap.mmap(file.fileno(), _LAYOUT.size))
        except FileExistsError:
            raise CellFailedError("the job was restarted, so it measures nothing") from None

    def begin(self, phase: str, batches: int = 0) -> None:
        """Begin a phase of `batches` batches, such as "epoch 0"; every rank of the job begins the same ones."""
        self._phase, self._batches, self._total = self._phase + 1, 0, batches
        self._begun_ns, self._name = time.monotonic_ns(), phase.encode()[:_TEXT_BYTES]
        self._write()

    def batch(self) -> None:
        self._batches += 1
        self._write()

    def over(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the batches; each counts as it is served."""
        for batch in batches:
            self.batch()
            yield batch

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Say that this rank waits for the others inside a with statement: it is not the one that hangs."""
        self._waits += 1
        self._write()
        yield
        # Not after an error: the others are gone, and this rank still waits for them.
        self._waits += 1
        self._write()

    def _write(self) -> None:
        numbers = self._phase, self._batches, self._total, self._begun_ns, self._waits, self._pid
        _LAYOUT.pack_into(self._file, 0, *numbers, self._name)


# The account of a process that nobody watches.
NO_PROGRESS = RankProgress(mmap.mmap(-1, _LAYOUT.size))


def _path(folder: Path, rank: int) -> Path:
    return folder / f"progress-{rank}"
