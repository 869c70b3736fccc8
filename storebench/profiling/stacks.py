"""Sample, from a thread, the line that another thread executes and the files that this process has open."""

import contextlib
import fcntl
import itertools
import os
import sys
import sysconfig
import threading
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Self

_EVERY_S = 0.05
# Looks at the line for one at the files, whose many short calls take the interpreter lock from the loop each time.
_FILES_EVERY = 4
# The thread sleeps at least this many times as long as a sample took, and longer where few batches are timed.
_REST, _IDLE_S = 1000, 0.5

LIBRARIES = (
    "<frozen",
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)
_NOT_DATA = ("/dev/", "/proc/", "/sys/", *LIBRARIES)
# The folders of what watches a program: the profiler and the audit.
_HERE = os.path.dirname(__file__)  # noqa: PTH120
WATCHERS = (_HERE, os.path.join(os.path.dirname(_HERE), "auditing"))  # noqa: PTH118, PTH120


class CodeLine(NamedTuple):
    """A line of the user's code, and the file and name of the innermost function that it calls."""

    file: str
    line: int
    calls: str


class Seen(NamedTuple):
    """How often lines, open files, waits for a device ("io") and operations were seen, and why no operations were.

    `costs` counts samples by eighths of octaves of their nanoseconds.
    """

    lines: Counter[CodeLine]
    files: Counter[str]
    waits: Counter[str]
    operations: Counter[str]
    unclocked: Counter[str]
    costs: Counter[int]

    @classmethod
    def nothing(cls) -> Self:
        return cls(*(Counter[Any]() for _ in cls._fields))

    def add(self, other: "Seen") -> None:
        for counts, others in zip(self, other, strict=True):
            counts.update(others)  # type: ignore[attr-defined]


class StackSampler:
    """Sample one thread while it is busy, until `stop`."""

    def __init__(self, is_busy: Callable[[], bool], is_idle: Callable[[], bool]) -> None:
        self.seen = Seen.nothing()
        self._is_busy, self._is_idle = is_busy, is_idle
        self._thread_id, self._native_id = threading.get_ident(), threading.get_native_id()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="storebench-profile", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def take(self) -> Seen:
        """Return the looks since the last call."""
        seen, self.seen = self.seen, Seen.nothing()
        return seen

    def _run(self) -> None:
        pause_s, looks = _EVERY_S, itertools.count()
        while not self._ended.wait(pause_s):
            began = time.thread_time()
            if self._is_busy():
                self._see_line()
                with contextlib.suppress(OSError):  # too many are open, or there is no /proc
                    # It sleeps uninterruptibly, as for a block device or a page of a file.
                    with open(f"/proc/self/task/{self._native_id}/stat", "rb") as file:  # noqa: PTH123 - faster
                        self.seen.waits["io"] += file.read().rpartition(b")")[2].split()[0] == b"D"
                    if next(looks) % _FILES_EVERY == 0:
                        self._see_files()
            pause_s = max(_IDLE_S if self._is_idle() else _EVERY_S, _REST * (time.thread_time() - began))

    def _see_line(self) -> None:
        """Count the innermost line outside libraries, or of all if the batch is made in libraries only."""
        innermost = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - documented, in spite of its name
        if innermost is None or innermost.f_code.co_filename.startswith(WATCHERS):
            return
        frames = itertools.takewhile(
            lambda frame: not frame.f_code.co_filename.startswith(WATCHERS),
            (frame for frame, _ in traceback.walk_stack(innermost)),
        )
        frame = next((frame for frame in frames if is_users(frame)), innermost)
        calls = f"{os.path.basename(innermost.f_code.co_filename)} {innermost.f_code.co_name}"  # noqa: PTH119
        self.seen.lines[CodeLine(frame.f_code.co_filename, frame.f_lineno, calls)] += 1

    def _see_files(self) -> None:
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a Path for each would take longer
            with contextlib.suppress(OSError):  # closed since
                path = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
                mode = fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE
                if path.startswith("/") and mode == os.O_RDONLY and not path.startswith(_NOT_DATA):
                    self.seen.files[path] += 1


def is_users(frame: types.FrameType) -> bool:
    """Whether a frame is outside of the libraries, the profiler and the audit."""
    return not frame.f_code.co_filename.startswith((*WATCHERS, *LIBRARIES))
