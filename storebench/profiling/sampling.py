"""Sample, from a thread, the line that another thread executes and the files that this process has open."""

import collections
import contextlib
import fcntl
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

EVERY_S = 0.05
_REST = 1000
"""The thread sleeps at least so many times as long as a sample took."""

_MOST_FILES = 256
_MAPS_AT = 10
_STANDARD = 2
_NOT_DATA = (".so", ".py", ".pyc", ".pyi")
_SYSTEM = ("/dev/", "/proc/", "/sys/", "/usr/lib/", "/lib/")


class Place(NamedTuple):
    """A line of the user's code, and the innermost function that it calls."""

    file: str
    line: int
    inner_file: str
    inner_function: str


def _libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


_LIBRARIES = _libraries()
_OWN = os.path.dirname(__file__)  # noqa: PTH120


class Sampler:
    """Sample one thread while it is busy, until `stop`."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._places: collections.Counter[Place] = collections.Counter()
        self._files: set[str] = set()
        self._taken: set[str] = set()
        self._is_busy = is_busy
        self._thread_id = threading.get_ident()
        self._ended = threading.Event()
        self._samples = 0
        threading.Thread(target=self._run, name="storebench-profile", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def take(self) -> tuple[dict[Place, int], tuple[str, ...]]:
        """Return the lines, with their counts, and the files that were seen since this was last called."""
        places, self._places = self._places, collections.Counter()
        files = self._files.copy() - self._taken
        self._taken |= files
        return dict(places), tuple(files)

    def _run(self) -> None:
        pause_s = EVERY_S
        while not self._ended.wait(pause_s):
            began = time.thread_time()
            if self._is_busy():
                with contextlib.suppress(OSError, RuntimeError, ValueError):  # files close, dictionaries grow
                    self._sample()
            pause_s = max(EVERY_S, _REST * (time.thread_time() - began))

    def _sample(self) -> None:
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - documented, in spite of its name
        if frame is not None and not frame.f_code.co_filename.startswith(_OWN):
            self._places[_place(frame)] += 1
        del frame  # it would keep the user's batch alive
        self._samples += 1
        if len(self._files) < _MOST_FILES:
            for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a Path for each would take longer
                if (
                    int(name) > _STANDARD
                    and fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
                ):
                    self._see(os.readlink(f"/proc/self/fd/{name}"))  # noqa: PTH115
        if self._samples == _MAPS_AT:
            with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:  # noqa: PTH123
                for line in maps:
                    self._see(line[73:].rstrip("\n"))

    def _see(self, path: str) -> None:
        if path.startswith("/") and not (
            path.startswith((*_SYSTEM, *_LIBRARIES))
            or path.endswith((*_NOT_DATA, "(deleted)"))
            or ".so." in path
        ):
            self._files.add(path)


def _place(innermost: FrameType) -> Place:
    """Return the innermost line outside libraries, or of all if the batch is made in libraries only."""
    code, found = innermost.f_code, innermost
    frame: FrameType | None = innermost
    while frame is not None and not frame.f_code.co_filename.startswith(_OWN):
        if not frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen")):
            found = frame
            break
        frame = frame.f_back
    return Place(found.f_code.co_filename, found.f_lineno, code.co_filename, code.co_name)
