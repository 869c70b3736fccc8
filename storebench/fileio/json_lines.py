"""Files of JSON lines that a kill, a full disk or an interrupt leaves in the state before a write or after it.

A file only grows, by blocks of complete lines: one block is one write and one fsync.
Lines that are replaced move to another file and are never deleted.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError, from_os_error
from storebench.fileio.json_text import parse_line
from storebench.fileio.whole_files import write_whole
from storebench.filesystem import sync

Row = dict[str, Any]
"""One line of a file, parsed."""


def append_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a file as one block and sync it to disk before returning.

    After an error the file has its old length. A kill may leave a part of the block,
    which ends inside a line or between two lines. If the file ends with an incomplete line,
    that line is terminated first, so that only it is lost.

    Raises
    ------
    DiskFullError, OutputError
        The file cannot be written; the message names it.
    """
    _append(path, "".join(_line(row) for row in rows).encode())


def replace_lines(
    path: Path, aside: Path, is_old: Callable[[Row], bool], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Append rows to a file and move its old lines to the file `aside`, in one step.

    The moved lines are written and synced to `aside` before the file is replaced. After a kill
    between the two, they are in both files; the next call does not write them to `aside` again.

    Parameters
    ----------
    is_old
        Returns whether to move a parsed line. Lines that are not JSON objects stay.

    Raises
    ------
    DiskFullError, OutputError
        A file cannot be written; `path` is unchanged.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith(b"\n"):
        lines[-1] += b"\n"
    moved = [line for line in lines if (row := _parsed(line)) is not None and is_old(row)]
    if not moved:
        append_lines(path, rows)
        return
    known = set(aside.read_bytes().splitlines(keepends=True)) if aside.exists() else set()
    _append(aside, b"".join(line for line in moved if line not in known))
    going = set(moved)
    kept = b"".join(line for line in lines if line not in going)
    content = kept + "".join(_line(row) for row in rows).encode()
    try:
        write_whole(path, content)
    except OSError as error:
        raise from_os_error(error, path) from error


def rows_of(path: Path) -> Iterator[Row]:
    """Yield the lines of a file that are JSON objects; none if there is no file."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            row = _parsed(line)
            if row is not None:
                yield row


def _append(path: Path, block: bytes) -> None:
    if not block:
        return
    is_new = not path.exists()
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            _append_to(handle, block)
        except BaseException:
            if is_new:
                path.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)
        if is_new:
            sync(path.parent)
    except OSError as error:
        raise from_os_error(error, path) from error


def _append_to(handle: int, block: bytes) -> None:
    """Write a block at the end of an open file; after any failure, restore the file's old length."""
    length = os.fstat(handle).st_size
    if length and os.pread(handle, 1, length - 1) != b"\n":
        block = b"\n" + block
    try:
        written = 0
        while written < len(block):
            written += os.write(handle, memoryview(block)[written:])
        os.fsync(handle)
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, length)
        raise


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True) + "\n"


def _parsed(line: bytes) -> Row | None:
    try:
        row = parse_line(line, "a line")
    except CorruptDataError:
        return None
    return row if isinstance(row, dict) else None
