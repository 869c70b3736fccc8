"""The kernel's counters for one batch: bytes from block devices, read calls and page faults of its process."""

import os
import resource
import threading
from typing import NamedTuple

_IO_FILE = "/proc/self/io"
# Positions of the values of ``syscr`` and ``read_bytes`` among the words of ``/proc/self/io``.
_CALLS, _DEVICE = 5, 9

_CounterValues = tuple[int, int, int, int]


class BatchIo(NamedTuple):
    """Increments of a process's counters from one reading to the next."""

    device_read_bytes: int
    read_calls: int
    major_faults: int
    minor_faults: int
    own_reads: int


class IoMeter:
    """Read the counters of this process, as increments since the last reading by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: int | None = None
        self._last: _CounterValues = (0, 0, 0, 0)
        self._own_reads = 0

    def begin(self) -> None:
        """Count from now on. If the kernel does not show the counters, `read` returns None."""
        with self._lock:
            self._close()
            self._own_reads = 0
            try:
                # Opened anew: a descriptor from before a fork shows the counters of the parent.
                self._file = os.open(_IO_FILE, os.O_RDONLY | os.O_CLOEXEC)
                self._last, self._own_reads = _totals(self._file), 1
            except (OSError, ValueError, IndexError):
                self._close()

    def read(self) -> BatchIo | None:
        """Return the increments since the last reading; None if nothing is being counted."""
        with self._lock:
            if self._file is None:
                return None
            last, self._last = self._last, _totals(self._file)
            own_reads, self._own_reads = self._own_reads + 1, 0
            now = self._last
        return BatchIo(now[0] - last[0], now[1] - last[1] - 1, now[2] - last[2], now[3] - last[3], own_reads)

    def end(self) -> int:
        """Stop counting; return the read calls of the meter that no reading has reported."""
        with self._lock:
            self._close()
            own_reads, self._own_reads = self._own_reads, 0
        return own_reads

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


# The meter of this process.
METER = IoMeter()


def _totals(file: int) -> _CounterValues:
    """Return bytes, read calls, major and minor faults since the process started, by one read call."""
    words = os.pread(file, 512, 0).split()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int(words[_DEVICE]), int(words[_CALLS]), usage.ru_majflt, usage.ru_minflt
