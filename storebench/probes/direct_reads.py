"""Keep O_DIRECT reads in flight, with one thread each: `os.preadv` releases the interpreter lock while it waits."""

import contextlib
import itertools
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storebench.probes.machine import read_text

Request = tuple[int, int]
"""Open file and offset."""


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """Result of some reads: bytes, and seconds from the first request to the last answer."""

    bytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """Bytes over seconds."""
        return self.bytes / self.seconds


def read_direct(
    requests: Sequence[Request], size: int, in_flight: int, limit_s: float | None = None
) -> Delivered:
    """Read `size` bytes per request, with `in_flight` of them at a time; the bytes are discarded."""
    in_flight = min(in_flight, len(requests))
    totals = [0] * in_flight
    errors: list[OSError] = []

    def work(number: int) -> None:
        try:
            totals[number] = _one_by_one(requests[number::in_flight], size, limit_s)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, in_flight)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    work(0)
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if errors:
        raise errors[0]
    return Delivered(bytes=sum(totals), seconds=seconds)


def _one_by_one(requests: Sequence[Request], size: int, limit_s: float | None) -> int:
    done = 0
    started = time.perf_counter()
    with mmap.mmap(-1, size) as buffer:  # O_DIRECT needs aligned memory
        for fd, offset in requests if limit_s is None else itertools.cycle(requests):
            done += os.preadv(fd, [buffer], offset)
            if limit_s is not None and time.perf_counter() - started >= limit_s:
                break
    return done


def own_device_bytes() -> int | None:
    """Return the bytes that block devices delivered to this process; None if the kernel does not count them."""
    for line in (read_text("/proc/self/io") or "").splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return None


@contextlib.contextmanager
def opened_direct(files: Sequence[str]) -> Iterator[list[int]]:
    """Open files for reading past the page cache."""
    fds: list[int] = []
    try:
        fds.extend(os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC) for path in files)
        yield fds
    finally:
        for fd in fds:
            os.close(fd)
