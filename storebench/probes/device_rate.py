"""How fast the device itself delivers a store's files: O_DIRECT reads, at random and in a row."""

import contextlib
import itertools
import mmap
import os
import resource
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from storebench.probes.machine import read_text
from storebench.probes.page_cache import PAGE_BYTES

SEQUENTIAL_BYTES = 4 << 20
IN_FLIGHT = 16

KEYS = (
    "device_random_1_bytes_per_s",
    "device_random_16_bytes_per_s",
    "device_sequential_bytes_per_s",
)

_MAX_REQUESTS = 100_000
_MAX_FILES = 1000

_Request = tuple[int, int]
"""Open file and offset."""


@dataclass(frozen=True, kw_only=True)
class DeviceRates:
    """Rates in bytes per second, named as in `storebench.results.Ceilings`; null with a reason by name."""

    device_random_1_bytes_per_s: float | None = None
    device_random_16_bytes_per_s: float | None = None
    device_sequential_bytes_per_s: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)


class _NoRateError(Exception):
    """The device cannot be asked; the text says why."""


def device_rates(
    paths: Iterable[Path | str], request_bytes: int, *, limit_s: float = 1.0, seed: int = 0
) -> DeviceRates:
    """Read the files past the page cache for up to `limit_s` each: random 1 and 16 at a time, and in a row.

    What is in the page cache stays as it is, so this may run beside cold and warm
    cells, though not at the same time. A small store is read more than once; of
    very many files a random choice is read.

    Parameters
    ----------
    request_bytes
        Payload of one sample; reads are rounded up to whole pages, as the device must.
    """
    rng = np.random.default_rng(seed)
    rates: dict[str, float] = {}
    reasons: dict[str, str] = {}
    try:
        with _opened(_choice([str(path) for path in paths], rng)) as fds:
            for key, size, in_flight, requests in _plans(fds, request_bytes, rng):
                try:
                    rates[key] = _rate(requests, size, in_flight, limit_s)
                except _NoRateError as error:
                    reasons[key] = str(error)
    except OSError as error:
        why = f"reads with O_DIRECT do not work here: {error.strerror}"
        reasons = {key: why for key in KEYS if key not in rates}
    return DeviceRates(**rates, reasons=reasons)


def _choice(files: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return as many of the files, in their order, as this process may keep open beside others."""
    limit = min(_MAX_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    chosen = rng.choice(len(files), size=min(len(files), limit), replace=False)
    return [files[index] for index in np.sort(chosen).tolist()]


@contextlib.contextmanager
def _opened(files: Sequence[str]) -> Iterator[list[int]]:
    fds: list[int] = []
    try:
        fds.extend(os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC) for path in files)
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def _plans(
    fds: Sequence[int], request_bytes: int, rng: np.random.Generator
) -> Iterator[tuple[str, int, int, list[_Request]]]:
    """Yield what to measure: name, bytes of a read, reads in flight, requests."""
    size = -(-request_bytes // PAGE_BYTES) * PAGE_BYTES
    yield KEYS[0], size, 1, _at_random(fds, size, rng)
    yield KEYS[1], size, IN_FLIGHT, _at_random(fds, size, rng)
    yield KEYS[2], SEQUENTIAL_BYTES, 1, list(itertools.islice(_in_a_row(fds), _MAX_REQUESTS))


def _at_random(fds: Sequence[int], size: int, rng: np.random.Generator) -> list[_Request]:
    """Return requests of `size` bytes, no two for the same place; a smaller file is one request."""
    sizes = np.array([os.fstat(fd).st_size for fd in fds], np.int64)
    counts = np.where(sizes > 0, np.maximum(1, sizes // size), 0)
    ends = np.cumsum(counts)
    total = int(counts.sum())
    chosen = rng.choice(total, size=min(total, _MAX_REQUESTS), replace=False)
    owners = np.searchsorted(ends, chosen, side="right")
    offsets = (chosen - (ends - counts)[owners]) * size
    return [(fds[owner], offset) for owner, offset in zip(owners.tolist(), offsets.tolist(), strict=True)]


def _in_a_row(fds: Sequence[int]) -> Iterator[_Request]:
    for fd in fds:
        yield from ((fd, offset) for offset in range(0, os.fstat(fd).st_size, SEQUENTIAL_BYTES))


def _rate(requests: Sequence[_Request], size: int, in_flight: int, limit_s: float) -> float:
    if not requests:
        raise _NoRateError("the files are empty")
    before = _own_device_bytes()
    done, took_s = _read_all(requests, size, in_flight, limit_s)
    after = _own_device_bytes()
    # tmpfs, ZFS and others take O_DIRECT and serve from memory all the same.
    if before is not None and after is not None and after - before < done / 2:
        raise _NoRateError("reads with O_DIRECT were not served by a block device")
    return done / took_s


def _own_device_bytes() -> int | None:
    for line in (read_text("/proc/self/io") or "").splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return None


def _read_all(requests: Sequence[_Request], size: int, in_flight: int, limit_s: float) -> tuple[int, float]:
    """Return bytes read by `in_flight` threads until the time is up, and the seconds that it took."""
    totals = [0] * in_flight
    errors: list[OSError] = []
    started = time.perf_counter()

    # The loop body is as bare as can be: beside it the interpreter lets one thread run at a time.
    def reader(number: int) -> None:
        with mmap.mmap(-1, size) as buffer:  # O_DIRECT wants aligned memory
            try:
                for fd, offset in itertools.cycle(requests[number::in_flight] or requests):
                    totals[number] += os.preadv(fd, [buffer], offset)
                    if time.perf_counter() - started >= limit_s:
                        return
            except OSError as error:
                errors.append(error)

    threads = [threading.Thread(target=reader, args=(number,)) for number in range(in_flight)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(totals), time.perf_counter() - started
