"""The progress of a replicate: a small file per rank, which the rank writes and the launcher reads."""

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from storebench.errors import CellFailedError

_HEADER = struct.Struct("<qqqqqq")  # phase, batches, waits, process id, batches of the whole phase, its begin
_PHASE, _BATCHES, _WAITS, _TOTAL, _BEGUN_NS = 0, 8, 16, 32, 40
_NUMBER = struct.Struct("<q")
_TEXT_AT = 64
_TEXT_BYTES = 64
_FILE_BYTES = _TEXT_AT + _TEXT_BYTES

T = TypeVar("T")


class RankProgress:
    """The progress of one rank, in a file that it shares with its launcher."""

    def __init__(self, file: mmap.mmap) -> None:
        self._file = file
        self._phase = self._batches = self._waits = 0

    @classmethod
    def create(cls, folder: Path, rank: int) -> Self:
        """Make the file of a rank."""
        path = _path(folder, rank)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise CellFailedError("the job was restarted, so it measures nothing") from None
        try:
            os.ftruncate(handle, _FILE_BYTES)
            file = mmap.mmap(handle, _FILE_BYTES)
        finally:
            os.close(handle)
        _HEADER.pack_into(file, 0, 0, 0, 0, os.getpid(), 0, 0)
        return cls(file)

    def begin(self, phase: str, batches: int = 0) -> None:
        """Begin a phase of so many batches, such as "epoch 0"; every rank of the job begins the same ones."""
        self._phase, self._batches = self._phase + 1, 0
        self._file[_TEXT_AT:] = phase.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
        _NUMBER.pack_into(self._file, _BATCHES, 0)
        _NUMBER.pack_into(self._file, _TOTAL, batches)
        _NUMBER.pack_into(self._file, _BEGUN_NS, time.monotonic_ns())
        _NUMBER.pack_into(self._file, _PHASE, self._phase)

    def batch(self) -> None:
        """Count a batch of the phase."""
        self._batches += 1
        _NUMBER.pack_into(self._file, _BATCHES, self._batches)

    def over(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the batches; each counts as it is served."""
        for batch in batches:
            self.batch()
            yield batch

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Say that this rank waits for the others inside a with statement, so that it is not taken for the one that hangs."""
        self._wait()
        yield
        # Not after an error: the others are gone, and this rank still waits for them.
        self._wait()

    def _wait(self) -> None:
        self._waits += 1
        _NUMBER.pack_into(self._file, _WAITS, self._waits)


NO_PROGRESS = RankProgress(mmap.mmap(-1, _FILE_BYTES))
"""The account of a process that nobody watches."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """The position of a rank in its job."""

    rank: int
    phase: int = 0
    batches: int = 0
    total: int = 0
    begun_ns: int = 0
    waits: int = 0
    pid: int | None = None
    name: str = "the start"

    @classmethod
    def of(cls, folder: Path, rank: int) -> Self:
        """Return the position of a rank; the beginning if it has written none yet."""
        try:
            content = _path(folder, rank).read_bytes()
        except OSError:
            content = b""
        if len(content) < _FILE_BYTES:
            return cls(rank=rank)
        phase, batches, waits, pid, total, begun_ns = _HEADER.unpack_from(content)
        name = content[_TEXT_AT:].rstrip(b"\0").decode(errors="replace")
        return cls(
            rank=rank,
            phase=phase,
            batches=batches,
            total=total,
            begun_ns=begun_ns,
            waits=waits,
            pid=pid or None,
            name=name or "the start",
        )

    @property
    def waiting(self) -> bool:
        """Whether it waits for the other ranks."""
        return self.waits % 2 == 1

    @property
    def order(self) -> tuple[int, int]:
        """Sorts ranks by how far they have come."""
        return self.phase, self.batches

    def __str__(self) -> str:
        """Return the place in words."""
        return f"after {self.batches:,} batches of {self.name}" if self.batches else f"during {self.name}"


def _path(folder: Path, rank: int) -> Path:
    return folder / f"progress-{rank}"
