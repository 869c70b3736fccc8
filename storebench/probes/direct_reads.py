"""Keep O_DIRECT reads in flight: with Linux's asynchronous I/O, or with threads if the kernel refuses it.

Asynchronous I/O is used through its system calls. Requests are laid out in memory
before the clock starts, and one call submits as many as fit, so the interpreter does
not limit the rate and nothing has to be compiled. One thread per core submits,
because submitting itself takes a core's time.
"""

import contextlib
import ctypes
import functools
import itertools
import mmap
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from storebench.probes.machine import read_text
from storebench.system.libc import LIBC

Request = tuple[int, int]
"""Open file and offset."""

ONE_BY_ONE = "one read at a time"
ASYNCHRONOUS = "asynchronous I/O"
THREADS = "threads"

MOST_JOBS = 4
"""Threads that submit; each submits several hundred thousand requests per second."""

# io_setup, io_destroy, io_submit, io_getevents.
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4), "riscv64": (0, 1, 2, 4)}

_IOCB = np.dtype(
    [
        ("data", "<u8"),
        ("key", "<u4"),
        ("rw_flags", "<u4"),
        ("opcode", "<u2"),
        ("priority", "<i2"),
        ("fd", "<u4"),
        ("buffer", "<u8"),
        ("bytes", "<u8"),
        ("offset", "<i8"),
        ("reserved", "<u8"),
        ("flags", "<u4"),
        ("event_fd", "<u4"),
    ]
)
_EVENT = np.dtype([("data", "<u8"), ("iocb", "<u8"), ("result", "<i8"), ("result2", "<i8")])


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """Result of some reads: bytes, seconds from the first request to the last answer, and the method."""

    bytes: int
    seconds: float
    method: str

    @property
    def bytes_per_s(self) -> float:
        """Bytes over seconds."""
        return self.bytes / self.seconds


def read_direct(
    requests: Sequence[Request],
    size: int,
    in_flight: int,
    limit_s: float | None = None,
    *,
    method: str = ASYNCHRONOUS,
) -> Delivered:
    """Read `size` bytes per request, with `in_flight` of them at a time; the bytes are discarded.

    Parameters
    ----------
    requests
        At least one: files opened with O_DIRECT, and offsets that are a multiple of the page size.
    limit_s
        Repeat from the first request until this time is over; None reads each request once.
    method
        `ASYNCHRONOUS`, if the kernel permits it, or `THREADS`; with one read at a time neither is needed.

    Raises
    ------
    OSError
        A read failed.
    """
    in_flight = min(in_flight, len(requests))
    if in_flight == 1:
        return _timed([functools.partial(_one_by_one, requests, size, limit_s)], ONE_BY_ONE)
    if method == THREADS:
        return _by_threads(requests, size, in_flight, limit_s)
    jobs = min(in_flight, MOST_JOBS, len(os.sched_getaffinity(0)))
    with contextlib.ExitStack() as stack:
        try:
            readers = [
                stack.enter_context(_AsyncReader(requests[job::jobs], size, in_flight // jobs))
                for job in range(jobs)
            ]
        except OSError:
            return _by_threads(requests, size, in_flight, limit_s)
        return _timed([functools.partial(reader.read, limit_s) for reader in readers], ASYNCHRONOUS)


def _by_threads(requests: Sequence[Request], size: int, in_flight: int, limit_s: float | None) -> Delivered:
    parts = (requests[number::in_flight] for number in range(in_flight))
    return _timed([functools.partial(_one_by_one, part, size, limit_s) for part in parts], THREADS)


def _timed(works: Sequence[Callable[[], int]], method: str) -> Delivered:
    """Run all functions at the same time, each in its own thread, and add up the bytes."""
    totals = [0] * len(works)
    errors: list[OSError] = []

    def work(number: int) -> None:
        try:
            totals[number] = works[number]()
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, len(works))]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    work(0)
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if errors:
        raise errors[0]
    return Delivered(bytes=sum(totals), seconds=seconds, method=method)


def _one_by_one(requests: Sequence[Request], size: int, limit_s: float | None) -> int:
    done = 0
    started = time.perf_counter()
    with mmap.mmap(-1, size) as buffer:  # O_DIRECT needs aligned memory
        for fd, offset in requests if limit_s is None else itertools.cycle(requests):
            done += os.preadv(fd, [buffer], offset)
            if limit_s is not None and time.perf_counter() - started >= limit_s:
                break
    return done


class _AsyncReader(contextlib.AbstractContextManager["_AsyncReader"]):
    """Requests laid out for the kernel, and a queue of its asynchronous I/O.

    Raises
    ------
    OSError
        This machine has no such queue, or refuses to create one.
    """

    def __init__(self, requests: Sequence[Request], size: int, depth: int) -> None:
        if platform.machine() not in _CALLS:
            raise OSError("the numbers of the system calls are not known for this processor")
        self._setup, self._destroy, self._submit, self._getevents = _CALLS[platform.machine()]
        self._depth, self._count = depth, len(requests)
        self._buffer = mmap.mmap(-1, size * depth)
        self._iocbs = self._laid_out(requests, size)
        each = self._iocbs.ctypes.data + np.arange(self._count, dtype=np.uint64) * _IOCB.itemsize
        self._pointers = np.concatenate([each, each[:depth]])
        self._events = np.zeros(depth, _EVENT)
        self._context = ctypes.c_ulong(0)
        _call(self._setup, ctypes.c_long(depth), ctypes.byref(self._context))

    def _laid_out(
        self, requests: Sequence[Request], size: int
    ) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
        iocbs = np.zeros(len(requests), _IOCB)
        memory = np.frombuffer(self._buffer, np.uint8)
        memory[:] = 0  # otherwise the first reads would wait for memory, too
        base = memory.ctypes.data
        iocbs["fd"] = [fd for fd, _ in requests]
        iocbs["offset"] = [offset for _, offset in requests]
        iocbs["bytes"] = size
        # Requests in flight may share a part of the buffer, because the bytes are not used.
        iocbs["buffer"] = base + np.arange(len(requests), dtype=np.uint64) % self._depth * size
        return iocbs

    def read(self, limit_s: float | None) -> int:
        """Return the bytes that were read: each request once, or repeatedly from the first until the time is over."""
        done = sent = waiting = 0
        started = time.perf_counter()
        while True:
            if limit_s is None:
                room = min(self._depth - waiting, self._count - sent)
            else:
                over = time.perf_counter() - started >= limit_s
                room = 0 if over else min(self._depth - waiting, self._count)
            if room:
                taken = self._send(sent % self._count, room)
                sent, waiting = sent + taken, waiting + taken
            if not waiting:
                return done
            got = self._wait()
            waiting -= got
            done += self._bytes(got)

    def _send(self, first: int, count: int) -> int:
        address = self._pointers.ctypes.data + 8 * first
        return _call(self._submit, self._context, ctypes.c_long(count), ctypes.c_void_p(address))

    def _wait(self) -> int:
        address = ctypes.c_void_p(self._events.ctypes.data)
        return _call(
            self._getevents, self._context, ctypes.c_long(1), ctypes.c_long(self._depth), address, None
        )

    def _bytes(self, got: int) -> int:
        results = self._events["result"][:got]
        if results.min() < 0:
            code = -int(results.min())
            raise OSError(code, os.strerror(code))
        return int(results.sum())

    def __exit__(self, *_: object) -> None:
        """Release the queue; the kernel waits for reads that are still in flight."""
        _call(self._destroy, self._context)


def _call(number: int, *arguments: object) -> int:
    done: int = LIBC.syscall(ctypes.c_long(number), *arguments)
    if done < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return done


def own_device_bytes() -> int | None:
    """Return the bytes that block devices delivered to this process; None if the kernel does not count them."""
    for line in (read_text("/proc/self/io") or "").splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return None


@contextlib.contextmanager
def opened_direct(files: Sequence[str]) -> Iterator[list[int]]:
    """Open files for reading past the page cache.

    Raises
    ------
    OSError
        One of them cannot be opened that way.
    """
    fds: list[int] = []
    try:
        fds.extend(os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC) for path in files)
        yield fds
    finally:
        for fd in fds:
            os.close(fd)
