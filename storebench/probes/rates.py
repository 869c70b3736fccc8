"""The rates of this machine: copying samples in memory, and O_DIRECT reads of the device."""

import contextlib
import ctypes
import itertools
import json
import math
import mmap
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from storebench.arrays import Indices, Pixels
from storebench.errors import CorruptDataError
from storebench.probes.machine import IN_MEMORY, mount_of
from storebench.probes.page_cache import ask_to_evict
from storebench.probes.page_count import PAGE_BYTES, opened
from storebench.record.schema import Ceilings
from storebench.system.file_tree import names_of
from storebench.system.json_text import parse_json
from storebench.system.kernel import load_kernel
from storebench.system.reading import read_small_file
from storebench.system.whole_files import made_folder, write_whole

SEQUENTIAL_BYTES = 4 << 20
DEPTHS = (1, 4, 16, 32)
SEQUENTIAL_DEPTHS = (1, 4, 16)

# Files of at least this size represent the device; in smaller ones the extents would be measured.
LARGE_BYTES = 64 << 20
SCRATCH_BYTES = 128 << 20

SEQUENTIAL = "device_sequential_bytes_per_s"
BEST = "device_best_bytes_per_s"
KEYS = (*(f"device_random_{depth}_bytes_per_s" for depth in DEPTHS), SEQUENTIAL, BEST)

MAX_ARRAY_BYTES = 256 << 20
ROUNDS = 4

# Function that copies the samples at some indices of an array into a batch of as many.
Way = Callable[[Pixels, Indices, Pixels], object]

YARDSTICK = "numpy.take"


def take(array: Pixels, indices: Indices, out: Pixels) -> None:
    """Gather with numpy in its default mode, which copies twice."""
    np.take(array, indices, axis=0, out=out)


def take_once(array: Pixels, indices: Indices, out: Pixels) -> None:
    """Gather with numpy in clip mode, which writes into the batch directly."""
    np.take(array, indices, axis=0, out=out, mode="clip")


def rows(array: Pixels, indices: Indices, out: Pixels) -> None:
    """Gather with one memcpy per sample, the fastest method for large samples and the slowest for small ones."""
    length = array.itemsize * math.prod(array.shape[1:])
    start, target = array.ctypes.data, out.ctypes.data
    for place, index in enumerate(indices.tolist()):
        ctypes.memmove(target + place * length, start + index * length, length)


def compiled(array: Pixels, indices: Indices, out: Pixels) -> None:
    """Gather with the compiled kernel, which asks memory for the samples ahead; as `take_once` without it."""
    kernel = load_kernel()
    if kernel is None:
        take_once(array, indices, out)
        return
    length = array.itemsize * math.prod(array.shape[1:])
    # As many bytes of any type are copied, so their type is of no importance.
    flat, batch = array.view(np.uint8).reshape(-1), out.view(np.uint8).reshape(len(out), length)
    if kernel.rows(flat, indices * length, batch) < len(indices):
        raise IndexError("an index is not in the array")


WAYS: dict[str, Way] = {
    YARDSTICK: take,
    "numpy.take(mode='clip')": take_once,
    "one memcpy per sample": rows,
    "compiled, asking ahead": compiled,
}


def gather_rate(
    sample_shape: tuple[int, ...],
    batch_size: int,
    *,
    count: int | None = None,
    max_bytes: int = MAX_ARRAY_BYTES,
    limit_s: float = 0.5,
    shuffle: bool = True,
) -> Ceilings:
    """Gather uint8 samples, shuffled or in the array's order, into one buffer with one thread, for `limit_s` in all."""
    sample_bytes = math.prod(sample_shape)
    held = max(1, max_bytes // sample_bytes)
    held = held if count is None else max(1, min(held, count))
    array = np.ones((held, *sample_shape), np.uint8)
    out = np.ones((batch_size, *sample_shape), np.uint8)
    rng = np.random.default_rng(0)
    places = -(-held // batch_size) * batch_size
    order = (rng.permutation(places) if shuffle else np.arange(places)).reshape(-1, batch_size) % held
    best = dict.fromkeys(WAYS, 0.0)
    slice_s = limit_s / ROUNDS / len(WAYS)
    for _ in range(ROUNDS):  # in turn, so that a slow moment affects all of them
        for name, way in WAYS.items():
            best[name] = max(best[name], batch_size * _batches_per_s(way, array, order, out, slice_s))
    fastest = max(best, key=lambda name: best[name])
    return Ceilings(
        gather_samples_per_s=best[YARDSTICK],
        copy_ceiling_samples_per_s=best[fastest],
        copy_method=fastest,
        memory_bytes_per_s=best[fastest] * sample_bytes,
    )


def _batches_per_s(way: Way, array: Pixels, order: Indices, out: Pixels, limit_s: float) -> float:
    done = 0
    started = time.perf_counter()
    while True:
        way(array, order[done % len(order)], out)
        done += 1
        took_s = time.perf_counter() - started
        if took_s >= limit_s:
            return done / took_s


# Open file and offset.
Request = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """Result of some reads: bytes, and seconds from the first request to the last answer."""

    bytes: int
    seconds: float
    waits_s: Sequence[float] = ()  # Of each request.

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds


def read_direct(
    requests: Sequence[Request], size: int, in_flight: int, limit_s: float | None = None
) -> Delivered:
    """Read `size` bytes per request, `in_flight` at a time, each in a thread; with a limit, again until then."""
    in_flight = min(in_flight, len(requests))
    shares = [requests[number::in_flight] for number in range(in_flight)]
    with ThreadPoolExecutor(in_flight) as threads:
        started = time.perf_counter()
        parts = list(threads.map(lambda share: _one_by_one(share, size, limit_s), shares))
        seconds = time.perf_counter() - started
    waits_s = [wait for _, ends in parts for wait in np.diff(ends)]
    return Delivered(bytes=sum(done for done, _ in parts), seconds=seconds, waits_s=waits_s)


def _one_by_one(requests: Sequence[Request], size: int, limit_s: float | None) -> tuple[int, list[float]]:
    done = 0
    ends = [time.perf_counter()]
    with mmap.mmap(-1, size) as buffer:  # O_DIRECT needs aligned memory
        for fd, offset in requests if limit_s is None else itertools.cycle(requests):
            done += os.preadv(fd, [buffer], offset)
            ends.append(time.perf_counter())
            if limit_s is not None and ends[-1] - ends[0] >= limit_s:
                break
    return done, ends


@contextlib.contextmanager
def opened_direct(files: Sequence[str]) -> Iterator[list[int]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(opened(path, os.O_DIRECT)) for path in files]


_TRIAL_S = 0.1
_MAX_REQUESTS = 100_000
_MAX_FILES = 1000
_FEWEST_FILES = 100
_FROM_MEMORY = "reads with O_DIRECT were not served by a block device"


class _NoRateError(Exception):
    """The device cannot be measured; the text says why."""


def device_rates(
    paths: Sequence[Path | str],
    request_bytes: int,
    *,
    limit_s: float = 0.5,
    scratch: Path | None = None,
) -> Ceilings:
    """Measure the device of the files: `limit_s` seconds per rate, after short trials."""
    rng = np.random.default_rng(0)
    size = -(-request_bytes // PAGE_BYTES) * PAGE_BYTES
    try:
        with _target(paths, scratch, rng) as (fds, words):
            return _measured(fds, words, size, limit_s, rng)
    except _NoRateError as error:
        why = str(error)
    except OSError as error:
        why = f"reads with O_DIRECT do not work here: {error.strerror}"
    return Ceilings(reasons=dict.fromkeys(KEYS, why))


T = TypeVar("T")


def once(kept: Path, name: str, kind: type[T], measured: Callable[[], T]) -> T:
    """Return the rates called `name` in the JSON file that the cells of a run share, measured now if missing."""
    rates_by_name: Any = {}
    with contextlib.suppress(OSError, CorruptDataError):
        rates_by_name = parse_json(read_small_file(kept), kept)
    with contextlib.suppress(KeyError, TypeError):
        return kind(**rates_by_name[name])
    rates = measured()
    if not rates:  # there is nothing to measure
        return rates
    rates_by_name = rates_by_name if isinstance(rates_by_name, dict) else {}
    with contextlib.suppress(OSError), made_folder(kept.parent):
        plain = rates if isinstance(rates, dict) else vars(rates)
        write_whole(kept, json.dumps(rates_by_name | {name: plain}))
    return rates


def _measured(
    fds: Sequence[int], words: str, size: int, limit_s: float, rng: np.random.Generator
) -> Ceilings:
    at_random = _at_random(fds, size, rng)
    if not at_random:
        raise _NoRateError("the files are empty")
    rates: dict[str, float] = {}
    single: dict[str, float] = {}
    for key, depth in zip(KEYS, DEPTHS, strict=False):
        delivered, by_device = _read(at_random, size, depth, limit_s)
        rates[key] = delivered.bytes_per_s
        p50, p99 = np.quantile(delivered.waits_s, [0.5, 0.99]).tolist()
        single |= {f"read_{depth}_p50_s": p50, f"read_{depth}_p99_s": p99}
    if not by_device:
        return Ceilings(single_requests=single, reasons=dict.fromkeys(KEYS, _FROM_MEMORY))
    every = ((fd, at) for fd in fds for at in range(0, os.fstat(fd).st_size, SEQUENTIAL_BYTES))
    in_a_row = list(itertools.islice(every, _MAX_REQUESTS))
    trial_s = min(_TRIAL_S, limit_s / 2)
    trials = {
        depth: _read(in_a_row, SEQUENTIAL_BYTES, depth, trial_s)[0].bytes_per_s for depth in SEQUENTIAL_DEPTHS
    }
    depth = max(trials, key=lambda depth: trials[depth])
    rates[SEQUENTIAL] = _read(in_a_row, SEQUENTIAL_BYTES, depth, limit_s)[0].bytes_per_s
    rates[BEST] = max(rates.values())
    method = f"one read at a time, threads; {words}"
    return Ceilings(**rates, single_requests=single, device_method=method)  # type: ignore[arg-type]


def opens(files: Sequence[Path | str]) -> dict[str, float]:
    """Return the files per second that are opened, asked for their size and closed, by one thread and by several.

    Names and sizes are in memory, as far as the file system keeps them there. Of few files, nothing is returned.
    """
    if len(files) < _FEWEST_FILES:
        return {}
    count = min(len(files), _MAX_FILES)
    chosen = np.random.default_rng(0).choice(len(files), size=count, replace=False).tolist()
    paths = [os.fspath(files[index]) for index in chosen]

    def look(some: Sequence[str]) -> None:
        for path in some:
            with opened(path, 0) as handle:
                os.fstat(handle)

    def per_s(depth: int) -> float:
        begun = time.perf_counter()
        with ThreadPoolExecutor(depth) as threads:
            list(threads.map(look, [paths[number::depth] for number in range(depth)]))
        return count / (time.perf_counter() - begun)

    rates = {}
    for depth in (1, 16):
        look(paths)
        rates[f"open_{depth}_per_s"] = per_s(depth)
    return rates


def _read(requests: Sequence[Request], size: int, depth: int, limit_s: float) -> tuple[Delivered, bool]:
    """Read for so long, and return what was delivered, and whether a block device delivered it."""
    before = _device_bytes()
    reading = read_direct(requests, size, depth, limit_s)
    after = _device_bytes()
    # tmpfs, ZFS and others accept O_DIRECT but serve from memory.
    return reading, before is None or after is None or after - before >= reading.bytes / 2


def _device_bytes() -> int | None:
    # psutil has no such method where the kernel counts nothing.
    with contextlib.suppress(AttributeError, psutil.Error):
        return psutil.Process().io_counters().read_bytes
    return None


@contextlib.contextmanager
def _target(
    files: Sequence[Path | str], scratch: Path | None, rng: np.random.Generator
) -> Iterator[tuple[list[int], str]]:
    sizes = ((os.stat(path).st_size, path) for path in names_of(files))  # noqa: PTH116 - Path objects take seconds
    large, largest = max(sizes, default=(0, ""))
    fds: list[int] = []
    with contextlib.ExitStack() as stack:
        if large >= LARGE_BYTES:
            fds = stack.enter_context(opened_direct([largest]))
            yield fds, f"{Path(largest).name} of the store, {large >> 20} MiB"
            return
        if scratch is not None and all(
            Path(path).stat().st_dev == scratch.stat().st_dev for path in files[:1]
        ):
            if mount_of(scratch).fstype in IN_MEMORY:
                raise _NoRateError(_FROM_MEMORY)
            with contextlib.suppress(OSError):
                fds = stack.enter_context(_scratch(scratch))
        if fds:
            yield fds, f"a scratch file of {SCRATCH_BYTES >> 20} MiB"
            return
        # As many of the files as this process may keep open at once.
        limit = min(_MAX_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        chosen = rng.choice(len(files), size=min(len(files), limit), replace=False)
        fds = stack.enter_context(opened_direct([str(files[index]) for index in np.sort(chosen).tolist()]))
        yield fds, f"{len(fds)} of the store's files, none of them large"


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[list[int]]:
    """Open a new file past the page cache, with bytes that no device can compress; none if there is little room."""
    if shutil.disk_usage(folder).free < 4 * SCRATCH_BYTES:
        yield []
        return
    rng = np.random.default_rng()
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SCRATCH_BYTES // SEQUENTIAL_BYTES):
            os.write(file.fileno(), rng.bytes(SEQUENTIAL_BYTES))
        os.fsync(file.fileno())
        ask_to_evict(file.fileno())
        with opened_direct([f"/proc/self/fd/{file.fileno()}"]) as fds:
            yield fds


def _at_random(fds: Sequence[int], size: int, rng: np.random.Generator) -> list[Request]:
    """Return requests of `size` bytes, no two for the same place; a smaller file is one request."""
    sizes = np.array([os.fstat(fd).st_size for fd in fds], np.int64)
    counts = np.where(sizes > 0, np.maximum(1, sizes // size), 0)
    ends = np.cumsum(counts)
    total = int(counts.sum())
    chosen = rng.choice(total, size=min(total, _MAX_REQUESTS), replace=False)
    owners = np.searchsorted(ends, chosen, side="right")
    offsets = (chosen - (ends - counts)[owners]) * size
    return [(fds[owner], offset) for owner, offset in zip(owners.tolist(), offsets.tolist(), strict=True)]
