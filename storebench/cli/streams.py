"""The two streams of the command line: lines for people and results for programs, plain, and whole where they are a file."""

import fcntl
import io
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from storebench.plain_text import inert, json_text, plain


def say(line: str) -> None:
    """Write one line for a person to standard error; standard output is for programs.

    Where nobody can be told, because the log's disk is full, the exit code says it alone.
    """
    try:
        print(plain(line), file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        _to_nowhere(sys.stderr)


def put(*lines: str) -> None:
    """Write lines to standard output, each made plain, all of them or none (`write_out`)."""
    write_out("".join(f"{plain(line)}\n" for line in lines))


def put_text(text: str) -> None:
    """Write lines of our own making, whose parts are plain already; CI finds no command in them."""
    write_out(inert(text))


def put_json(value: Any) -> None:
    """Write a value as JSON, whole or not at all (`write_out`)."""
    write_out(json_text(json.dumps(value, indent=2)) + "\n")


def write_out(text: str) -> None:
    """Write text to standard output as it is; where that is a file, all of it or nothing.

    Raises
    ------
    OSError
        It cannot be written. Its ``filename`` is the file's path, or "standard output".
    """
    stream = sys.stdout
    # A name that the locale cannot write is no reason to stop.
    encoding = stream.encoding or "utf-8"
    content = text.encode(encoding, "backslashreplace")
    with _whole(stream):
        handle = _descriptor(stream)
        if handle is None:
            stream.write(content.decode(encoding))
            return
        # An unbuffered text stream drops what does not fit into its first write.
        while content:
            content = content[os.write(handle, content) :]


@contextmanager
def _whole(stream: TextIO) -> Iterator[None]:
    """Take back what was written to a file when something goes wrong meanwhile."""
    start: int | None = None
    try:
        stream.flush()
        start = _end(stream)
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        name = _name(stream)
        _take_back(stream, start)
        raise OSError(error.errno, error.strerror, name) from error
    except BaseException:
        _take_back(stream, start)
        raise


def _descriptor(stream: TextIO) -> int | None:
    """Return the file descriptor of a stream; None where it has none (a test's, a notebook's)."""
    try:
        return stream.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return None


def _end(stream: TextIO) -> int | None:
    """Return how long the file is that a stream writes to; None where it is a terminal, a pipe or a device."""
    handle = _descriptor(stream)
    if handle is None:
        return None
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        return None
    appends = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_APPEND
    return found.st_size if appends else os.lseek(handle, 0, os.SEEK_CUR)


def _take_back(stream: TextIO, start: int | None) -> None:
    handle = _descriptor(stream)
    if handle is not None and start is not None:
        os.ftruncate(handle, start)
        os.lseek(handle, start, os.SEEK_SET)
    _to_nowhere(stream)


def _to_nowhere(stream: TextIO) -> None:
    """Let a stream end in ``/dev/null``: what is left in its buffer fails no second time when the process ends."""
    handle = _descriptor(stream)
    if handle is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, handle)
        os.close(nowhere)


def _name(stream: TextIO) -> str:
    handle = _descriptor(stream)
    path = Path(f"/proc/self/fd/{handle}")
    if handle is not None and path.exists():
        return str(path.readlink()) if path.is_file() else "standard output"
    return "standard output"
