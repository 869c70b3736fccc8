"""Temporary files for a data store that does not fit into memory, on a disk of the rank's own node.

The files have no names. The kernel removes a file when its process ends, and caches as much of it as memory allows.
"""

import mmap
import os
import tempfile
from typing import IO

import numpy as np
import numpy.typing as npt

from storebench.errors import CorruptDataError, StorebenchError, from_os_error
from storebench.filesystem import file_system
from storebench.system.scratch import temporary_place

_IN_MEMORY = ("tmpfs", "ramfs")


def spill_refusal(node: int) -> str | None:
    """Return one line with the reason why `node` cannot spill to disk; None if it can."""
    place = temporary_place()
    kind = file_system(place)
    if kind.partition(" ")[0] in _IN_MEMORY:
        return (
            f"the data store cannot be spilled on node {node}: the folder for temporary files, {place}, is in memory "
            f"({kind}). Set TMPDIR to one on a disk."
        )
    return None


def spilled_array(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return an array in a temporary file whose disk space is already allocated.

    Raises
    ------
    DiskFullError, OutputError
        The file cannot be written.
    """
    size = max(1, int(np.prod(shape)))
    with _file() as file:
        try:
            # Without space for a page, touching it would kill the process; this call fails instead.
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise _failed(error) from error
        mapped = mmap.mmap(file.fileno(), size)
    return np.frombuffer(mapped, np.uint8, int(np.prod(shape))).reshape(shape)


class SpillFile:
    """Samples of any size, concatenated in a temporary file."""

    def __init__(self) -> None:
        self._file = _file()
        self._end = 0

    def append(self, content: bytes) -> int:
        """Append a sample, and return its offset.

        Raises
        ------
        DiskFullError, OutputError
            The sample cannot be written.
        """
        start, left = self._end, memoryview(content)
        try:
            while left:
                written = os.pwrite(self._file.fileno(), left, self._end)
                self._end += written
                left = left[written:]
        except OSError as error:
            raise _failed(error) from error
        return start

    def read(self, start: int, size: int) -> bytes:
        """Return a sample.

        Raises
        ------
        CorruptDataError
            The file ends before the sample does.
        """
        content = os.pread(self._file.fileno(), size, start)
        if len(content) != size:
            raise CorruptDataError(
                "a sample that was spilled to disk cannot be read", where=temporary_place()
            )
        return content


def _file() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile(dir=temporary_place(), buffering=0)
    except OSError as error:
        raise _failed(error) from error


def _failed(error: OSError) -> StorebenchError:
    return from_os_error(error, temporary_place())
