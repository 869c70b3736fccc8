"""The two output streams: messages on standard error and results on standard output, written whole to files."""

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
    """Write one message to standard error; standard output is for results.

    If the message cannot be written, because the log's disk is full, only the exit code remains.
    """
    try:
        print(plain(line), file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        _to_nowhere(sys.stderr)


def rewrite(line: str) -> None:
    """Replace the current line of a terminal with a message; "" clears it."""
    try:
        sys.stderr.write(f"\r\x1b[2K{plain(line)}")
        sys.stderr.flush()
    except BrokenPipeError:
        raise
    except OSError:
        _to_nowhere(sys.stderr)


def put(*lines: str) -> None:
    """Write lines to standard output as plain text, all of them or none (`write_out`)."""
    write_out("".join(f"{plain(line)}\n" for line in lines))


def put_text(text: str) -> None:
    """Write our own lines, whose parts are already plain, so that CI finds no command in them."""
    write_out(inert(text))


def put_json(value: Any) -> None:
    """Write a value as JSON, whole or not at all (`write_out`)."""
    write_out(json_text(json.dumps(value, indent=2)) + "\n")


def write_out(text: str) -> None:
    """Write text to standard output unchanged; if that is a file, all of it or nothing."""
    stream = sys.stdout
    # A name that the locale cannot encode must not stop the command.
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
    """Restore the length of an output file if an error occurs inside the with statement."""
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
    """Return the file descriptor of a stream; None if it has none (in a test or a notebook)."""
    try:
        return stream.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return None


def _end(stream: TextIO) -> int | None:
    """Return the write position in a stream's file; None for a terminal, a pipe or a device."""
    handle = _descriptor(stream)
    if handle is None:
        return None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        return None
    appends = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_APPEND
    return status.st_size if appends else os.lseek(handle, 0, os.SEEK_CUR)


def _take_back(stream: TextIO, start: int | None) -> None:
    handle = _descriptor(stream)
    if handle is not None and start is not None:
        os.ftruncate(handle, start)
        os.lseek(handle, start, os.SEEK_SET)
    _to_nowhere(stream)


def _to_nowhere(stream: TextIO) -> None:
    """Redirect a stream to ``/dev/null``, so that its buffer does not fail a second time when the process ends."""
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
