"""Files of JSON lines that a kill, a full disk or an interrupt leaves in the state before a write or after it."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError, from_os_error
from storebench.filesystem import sync
from storebench.system.json_text import IncompleteJsonError, Where, brief, parse_json
from storebench.system.reading import read_small_file
from storebench.system.whole_files import write_whole

JsonLine = dict[str, Any]  # one line of a file, parsed
MOST_BYTES = 2**31

_MOST_LINE_BYTES = 1 << 25
_FILL = b"\0 \t\r\n"  # bytes that may follow the last line: after a power loss, zeros that were never written


def append_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a file as one block and sync it to disk before returning."""
    _append(path, "".join(_line(row) for row in rows).encode())


def replace_lines(
    path: Path, aside: Path, is_old: Callable[[JsonLine], bool], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Append rows to a file and move its old lines to the file `aside`, in one step."""
    old = list(rows_of(path))
    moved = [_line(row).encode() for row in old if is_old(row)]
    if not moved:
        append_lines(path, rows)
        return
    earlier = set(aside.read_bytes().splitlines(keepends=True)) if aside.exists() else set()
    _append(aside, b"".join(line for line in moved if line not in earlier))
    kept = [row for row in old if not is_old(row)]
    content = "".join(map(_line, [*kept, *rows])).encode()
    try:
        write_whole(path, content)
    except OSError as error:
        raise from_os_error(error, path) from error


def rows_of(path: Path) -> Iterator[JsonLine]:
    """Yield the lines of a file; none if there is no file."""
    if path.is_file():
        for _, row in numbered_rows(path, read_small_file(path, most_bytes=MOST_BYTES)):
            if isinstance(row, CorruptDataError):
                raise row
            yield row


def numbered_rows(path: Path, content: bytes) -> Iterator[tuple[str, JsonLine | CorruptDataError]]:
    """Yield FILE:LINE of each line of a file's content, and its JSON object or the reason why it has none."""
    lines = content.rstrip(_FILL).split(b"\n")
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        try:
            if line.strip():
                yield where, _parsed(line, where)
        except CorruptDataError as error:
            if number < len(lines) or not isinstance(error, IncompleteJsonError):
                yield where, error


def damaged_end(path: Path) -> bytes:
    """Return the damaged last line of a file, as a kill or a power loss leaves it; empty if there is none."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return _end(file.fileno(), path)[1]


def _end(handle: int, path: Path) -> tuple[int, bytes]:
    """Return the length of an open file without a damaged last line, or without the last line's end; and that line."""
    start = max(0, os.fstat(handle).st_size - _MOST_LINE_BYTES)
    rows = os.pread(handle, _MOST_LINE_BYTES, start).rstrip(_FILL)
    last = rows.rpartition(b"\n")[2]
    try:
        _parsed(last or b"{}", path)
    except IncompleteJsonError:
        return start + len(rows) - len(last), last
    return start + len(rows), b""


def _append(path: Path, block: bytes) -> None:
    is_new = not path.exists()
    if is_new and not block:
        return
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            end, damaged = _end(handle, path)
            if damaged or os.pread(handle, 2, end) not in (b"\n", b"\r\n"):
                os.ftruncate(handle, end)
                block = b"\n" + block if end and not damaged else block
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


def _parsed(line: bytes, where: Where) -> JsonLine:
    row = parse_json(line, where, hint="Restore the file from a copy, or start a new run.")
    if not isinstance(row, dict):
        raise CorruptDataError(f"{brief(row)} is not a JSON object", where=where)
    return row
