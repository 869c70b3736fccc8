"""Open and read untrusted files: regular files only, up to a size limit."""

import errno
import io
import os
import stat
from pathlib import Path

from storebench.errors import CorruptDataError

SMALL_FILE_BYTES = 64 * 2**20  # default size limit of `read_small_file`
_BLOCK_BYTES = 1 << 20


def read_small_file(path: Path, *, most_bytes: int = SMALL_FILE_BYTES) -> bytes:
    with open_regular(path, most_bytes=most_bytes) as file:
        blocks: list[bytes] = []
        # One byte more than allowed: files of /proc have no size, and others grow while they are read.
        left = most_bytes + 1
        while left > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
            blocks.append(block)
            left -= len(block)
    if left <= 0:
        raise _too_large(path, most_bytes)
    return b"".join(blocks)


def open_regular(path: Path, *, most_bytes: int | None = None) -> io.BufferedReader:
    """Open a regular file for reading, without ever waiting for a file of another kind."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise CorruptDataError("not a regular file", where=path, hint="Replace it by a regular file.")
    if most_bytes is not None and status.st_size > most_bytes:
        raise _too_large(path, most_bytes)
    return path.open("rb")


def _too_large(path: Path, most_bytes: int) -> CorruptDataError:
    return CorruptDataError(
        f"larger than {most_bytes:,} bytes, the most that is read of such a file",
        where=path,
        hint="Replace it by the right file.",
    )
