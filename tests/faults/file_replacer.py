"""A tiny program that replaces a file, in several ways. Only "whole" is right; the harness must catch the others.

``python file_replacer.py WAY``; it works in the current folder and imports nothing of storebench.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

ANSWER = Path("out", "answer.json")
TEXT = json.dumps({"answer": list(range(200))})


def whole() -> None:
    """Write beside the name, sync, rename, sync the folder."""
    unfinished = _unfinished()
    _write(unfinished, sync=True)
    unfinished.replace(ANSWER)
    _sync(ANSWER.parent)


def in_place() -> None:
    """Write into the file itself: for a moment it is incomplete."""
    _write(ANSWER, sync=True)


def unsynced() -> None:
    """Rename a file that has not reached the disk yet."""
    unfinished = _unfinished()
    _write(unfinished, sync=False)
    unfinished.replace(ANSWER)


def silent() -> None:
    """Ignore errors."""
    with contextlib.suppress(OSError):
        whole()


def littering() -> None:
    """Write it well, but under a temporary name that no later run removes."""
    unfinished = ANSWER.with_name(f"answer.tmp-{os.getpid()}")
    _write(unfinished, sync=True)
    unfinished.replace(ANSWER)
    _sync(ANSWER.parent)


WAYS: dict[str, Callable[[], None]] = {
    way.__name__: way for way in (whole, in_place, unsynced, silent, littering)
}


def _unfinished() -> Path:
    for path in ANSWER.parent.glob("*.tmp"):
        path.unlink()  # left by a killed process
    return ANSWER.with_name("answer.tmp")


def _write(path: Path, *, sync: bool) -> None:
    with path.open("w") as file:
        file.write(TEXT)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def main(way: str) -> int:
    """Replace the file in a `way`; an error becomes one line."""
    signal.signal(signal.SIGHUP, _stop)
    try:
        WAYS[way]()
    except KeyboardInterrupt:
        print("storebench: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        for path in ANSWER.parent.glob("*.tmp*"):
            path.unlink()
        full = "the disk is full" if error.errno == 28 else error.strerror
        print(f"storebench: {ANSWER}: {full}", file=sys.stderr)
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
