"""Forked processes that behave as if they had been started anew: pages of their own, and another parent."""

import array
import contextlib
import ctypes
import functools
import itertools
import mmap
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from storebench.system.libc import LIBC

Pages = tuple[int, int]
"""Address and length of adjacent pages."""

SETTLING_S = 1.0
"""Longest wait for other threads before a fork; threads that never rest are the caller's own."""

_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23  # linux/mman.h, since Linux 5.14
_PAGES = Path("/proc/self/pagemap")
_PRESENT, _SWAPPED, _FILE = 1 << 63, 1 << 62, 1 << 61  # of an entry of /proc/PID/pagemap
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_MAPPING = re.compile(r"(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<rights>\S+) \S+ \S+ (?P<inode>\d+)")
_WRITABLE = "rw-p"
_UNKNOWN = 1  # somebody else has waited for it


def can_own_pages() -> bool:
    """Return whether this kernel can give a forked process pages of its own."""
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        try:
            page.madvise(_MADV_POPULATE_WRITE)
        except OSError:
            return False
    return os.access(_PAGES, os.R_OK)


def file_pages() -> list[Pages]:
    """Return the pages of mapped files that this process has touched; a fork of it has to map them again."""
    return [pages for mapping in _mappings() if mapping.file for pages in _runs(mapping, _of_file)]


def own_pages(touched: Sequence[Pages] = ()) -> None:
    """Copy every page that this process shares with the one that forked it and may write to."""
    for mapping in _mappings():
        if mapping.rights == _WRITABLE:
            for address, length in _runs(mapping, _of_memory):
                _populate(address, length, _MADV_POPULATE_WRITE)
    for address, length in touched:
        with contextlib.suppress(OSError):  # a file that became shorter
            _populate(address, length, _MADV_POPULATE_READ)


class _Mapping(NamedTuple):
    start: int
    end: int
    rights: str
    file: bool


def _mappings() -> list[_Mapping]:
    """Return the mappings of this process."""
    text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    return [
        _Mapping(int(found["start"], 16), int(found["end"], 16), found["rights"], found["inode"] != "0")
        for found in map(_MAPPING.match, text.splitlines())
        if found
    ]


def _of_memory(entry: int) -> bool:
    return bool(entry & (_PRESENT | _SWAPPED)) and not entry & _FILE


def _of_file(entry: int) -> bool:
    return entry & (_PRESENT | _FILE) == _PRESENT | _FILE


def _runs(mapping: _Mapping, wanted: Callable[[int], bool]) -> Iterator[Pages]:
    """Return the runs of pages of a mapping whose entries in the kernel's list of pages are wanted."""
    entries = array.array("Q")
    first, end = (address // mmap.PAGESIZE * entries.itemsize for address in (mapping.start, mapping.end))
    with _PAGES.open("rb", buffering=0) as pages:
        entries.frombytes(os.pread(pages.fileno(), end - first, first))
    address = mapping.start
    for chosen, run in itertools.groupby(entries, wanted):
        length = sum(1 for _ in run) * mmap.PAGESIZE
        if chosen:
            yield address, length
        address += length


def _populate(address: int, length: int, advice: int) -> None:
    if LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), advice):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@functools.cache
def fork_when_settled() -> None:
    """From now on, let the other threads of this process finish what they are doing before each fork of it."""
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


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Inside the with statement, processes below this one whose parent ends become its children (see `Adopted`)."""
    before = _children()
    LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for pid in _children() - before:
            # One that is about to end has given back its memory before it closes its files.
            with contextlib.suppress(OSError):
                ends = Path("/proc", str(pid), "statm").read_bytes().startswith(b"0 ")
                os.waitpid(pid, 0 if ends else os.WNOHANG)


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


class Adopted:
    """A child that another process forked; it can be waited for and signalled as a `subprocess.Popen` can."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        try:
            self._process = psutil.Process(pid)
            parent = self._process.ppid()
        except psutil.NoSuchProcess:
            parent = None
        if parent != os.getpid():
            raise ChildProcessError(f"process {pid} is no child of this one")

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended."""
        if self.returncode is None:
            try:
                code = self._process.wait(timeout)
            except psutil.TimeoutExpired:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0) from None
            self.returncode = _UNKNOWN if code is None else int(code)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)  # not yet waited for, so the id is still its own

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)
