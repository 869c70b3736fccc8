"""Forks of a process with foreign threads: they wait until no other thread runs, so that none of them hangs."""

import contextlib
import functools
import os
import threading
import time
from pathlib import Path

SETTLING_S = 1.0
"""Longest wait for other threads before a fork; threads that never rest are the caller's own."""


@functools.cache
def fork_when_settled() -> None:
    """From now on, let the other threads of this process finish what they are doing before each fork of it.

    A thread that is not Python's own, such as one of gloo's that drops an exchanged tensor, takes a lock of the interpreter without
    holding the GIL. In Python 3.11 a process that is forked meanwhile waits for this lock for ever:
    https://github.com/python/cpython/issues/112275.
    """
    os.register_at_fork(before=wait_for_other_threads)


def wait_for_other_threads() -> None:
    """Wait until no other thread of this process has run at two moments a millisecond apart, or for `SETTLING_S`."""
    deadline = time.monotonic() + SETTLING_S
    quiet = 0
    while quiet < 2 and time.monotonic() < deadline:
        time.sleep(0.001)  # without the GIL, which such a thread may be waiting for
        quiet = 0 if _another_thread_runs() else quiet + 1


def _another_thread_runs() -> bool:
    own = str(threading.get_native_id())
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            state = (thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2][:1]
            if state == "R" and thread.name != own:
                return True
    return False
