"""Forked processes that behave as if they had been started anew: pages of their own, and another parent.

A process that imports torch takes a second for it, one that is forked afterwards takes milliseconds. It shares the pages
of its parent, though, and would copy each when it first writes to it, in the middle of what is measured. `own_pages`
copies all of them at once. `adopting` makes its children the children of the process that waits for them.
"""

import contextlib
import ctypes
import mmap
import os
import re
import signal
import subprocess
from collections.abc import Iterator

import psutil

from storebench.system.libc import LIBC

_MADV_POPULATE_WRITE = 23  # linux/mman.h, since Linux 5.14
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_MAPPING = re.compile(r"(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<rights>\S+) ")
_WRITABLE = "rw-p"
_UNKNOWN = 1  # somebody else has waited for it


def can_own_pages() -> bool:
    """Return whether this kernel can give a forked process pages of its own."""
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        try:
            page.madvise(_MADV_POPULATE_WRITE)
        except OSError:
            return False
    return True


def own_pages() -> None:
    """Copy every page that this process shares with the one that forked it and may write to.

    A process that was started anew has such pages, and its control group is charged for none of them later on.

    Raises
    ------
    OSError
        The kernel cannot (`can_own_pages`), or there is no memory for the copies.
    """
    start, end, writable = 0, 0, False
    with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as mappings:  # noqa: PTH123
        for line in mappings:
            if found := _MAPPING.match(line):
                start, end = int(found["start"], 16), int(found["end"], 16)
                writable = found["rights"] == _WRITABLE
            elif writable and line.startswith("Shared_Dirty:") and int(line.split()[1]):
                _populate(start, end - start)


def _populate(address: int, length: int) -> None:
    if LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), _MADV_POPULATE_WRITE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Inside the with statement, processes below this one whose parent ends become its children (see `Adopted`).

    Those that have ended by its end are waited for, because nobody else would.
    """
    before = _children()
    LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for pid in _children() - before:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


class Adopted:
    """A child that another process forked; it can be waited for and signalled as a `subprocess.Popen` can.

    Parameters
    ----------
    pid
        Its process id.

    Raises
    ------
    ChildProcessError
        It is no child of this process, or has been waited for.
    """

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
        """Return its exit code once it has ended.

        Raises
        ------
        subprocess.TimeoutExpired
            It has not ended after this many seconds.
        """
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
