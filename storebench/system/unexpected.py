"""Report an unexpected error: one line, and a file with the traceback."""

import contextlib
import os
import sys
import tempfile
import traceback

from storebench._version import __version__

DEBUG_ENV = "STOREBENCH_DEBUG"
DETAILS_PREFIX = "storebench-error-"

_MOST_CHARACTERS = 300


def debugging() -> bool:
    """Return True if to show tracebacks: STOREBENCH_DEBUG is set, and not to 0."""
    return os.environ.get(DEBUG_ENV, "0") not in ("", "0")


def summary(error: BaseException) -> str:
    """Return an error's type and text in one line of bounded length."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return words if len(words) <= _MOST_CHARACTERS else f"{words[:_MOST_CHARACTERS]}..."


def unexpected_line(error: BaseException) -> str:
    """Return the line for an unexpected error, and write its traceback to the file that the line names."""
    path = ""
    with contextlib.suppress(OSError):
        lines = [
            f"storebench {__version__}, Python {sys.version.split()[0]}, {sys.platform}\n",
            f"arguments: {sys.argv[1:]}\n\n",
            *traceback.format_exception(error),
        ]
        handle, name = tempfile.mkstemp(prefix=DETAILS_PREFIX, suffix=".txt")
        with os.fdopen(handle, "wb") as file:
            file.write("".join(lines).encode("utf-8", "backslashreplace"))
        path = name
    details = f"the details are in {path}" if path else f"{DEBUG_ENV}=1 shows the details"
    return f"unexpected error: {summary(error)}; {details}"
