"""Rates of the device: random and sequential O_DIRECT reads at several depths, by threads or by fio."""

import contextlib
import dataclasses
import itertools
import os
import resource
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from storebench.probes.direct_reads import Delivered, Request, opened_direct, own_device_bytes, read_direct
from storebench.probes.fio import fio_rate
from storebench.probes.mounts import IN_MEMORY, mount_of
from storebench.probes.page_cache import PAGE_BYTES, ask_to_evict
from storebench.probes.remembered import recall, remember

SEQUENTIAL_BYTES = 4 << 20
DEPTHS = (1, 4, 16, 32)
SEQUENTIAL_DEPTHS = (1, 4, 16)

LARGE_BYTES = 64 << 20
"""Files of at least this size represent the device; in smaller ones the extents would be measured."""
SCRATCH_BYTES = 128 << 20

SEQUENTIAL = "device_sequential_bytes_per_s"
BEST = "device_best_bytes_per_s"
KEYS = (*(f"device_random_{depth}_bytes_per_s" for depth in DEPTHS), SEQUENTIAL, BEST)

_FIO_DEPTH = 16
"""With fewer reads in flight threads reach the same rate, and fio is slow to start."""
_TRIAL_S = 0.1
_MAX_REQUESTS = 100_000
_MAX_FILES = 1000


@dataclass(frozen=True, kw_only=True)
class DeviceRates:
    """Rates in bytes per second, named as in `storebench.results.Ceilings`; None with a reason by name."""

    device_random_1_bytes_per_s: float | None = None
    device_random_4_bytes_per_s: float | None = None
    device_random_16_bytes_per_s: float | None = None
    device_random_32_bytes_per_s: float | None = None
    device_sequential_bytes_per_s: float | None = None
    device_best_bytes_per_s: float | None = None
    device_method: str = ""
    reasons: dict[str, str] = field(default_factory=dict)


class _NoRateError(Exception):
    """The device cannot be measured; the text says why."""


@dataclass(frozen=True, kw_only=True)
class _Target:
    """The files to read: open files, a description, and a path for fio (None if there are several)."""

    fds: list[int]
    words: str
    path: str | None


def device_rates(
    paths: Iterable[Path | str],
    request_bytes: int,
    *,
    limit_s: float = 0.5,
    scratch: Path | None = None,
    seed: int = 0,
) -> DeviceRates:
    """Measure the device of the files: `limit_s` seconds per rate, after short trials."""
    rng = np.random.default_rng(seed)
    size = -(-request_bytes // PAGE_BYTES) * PAGE_BYTES
    try:
        with _target([str(path) for path in paths], scratch, rng) as target:
            return _measured(target, size, limit_s, rng)
    except _NoRateError as error:
        why = str(error)
    except OSError as error:
        why = f"reads with O_DIRECT do not work here: {error.strerror}"
    return DeviceRates(reasons=dict.fromkeys(KEYS, why))


def device_rates_once(
    paths: Sequence[Path | str],
    request_bytes: int,
    *,
    kept: Path,
    replicate: int,
    limit_s: float = 0.5,
    scratch: Path | None = None,
) -> DeviceRates:
    """Return the rates of `device_rates`, measured once per device, request size and replicate of a run."""
    place = paths[0] if paths else scratch
    device = mount_of(place).device if place else None
    name = f"device {device}, {-(-request_bytes // PAGE_BYTES)} pages, replicate {replicate}"
    known = recall(kept)
    with contextlib.suppress(KeyError, TypeError):
        return DeviceRates(**known[name])
    rates = device_rates(paths, request_bytes, limit_s=limit_s, scratch=scratch)
    remember(kept, known | {name: dataclasses.asdict(rates)})
    return rates


def _measured(target: _Target, size: int, limit_s: float, rng: np.random.Generator) -> DeviceRates:
    at_random, in_a_row = _at_random(target.fds, size, rng), _in_a_row(target.fds)
    if not at_random:
        raise _NoRateError("the files are empty")
    rates: dict[str, Any] = {}
    methods: set[str] = set()
    for key, depth in zip(KEYS, DEPTHS, strict=False):
        rates[key], method = _rate(target, _ReadPlan(at_random, size, (depth,)), limit_s)
        methods.add(method)
    rates[SEQUENTIAL], method = _rate(
        target, _ReadPlan(in_a_row, SEQUENTIAL_BYTES, SEQUENTIAL_DEPTHS), limit_s
    )
    rates[BEST] = max(rates.values())
    words = f"{', '.join(sorted({*methods, method}))}; {target.words}"
    return dataclasses.replace(DeviceRates(**rates), device_method=words)


class _ReadPlan(NamedTuple):
    """Reads of one size, and the allowed numbers in flight, of which the best counts."""

    requests: Sequence[Request]
    size: int
    depths: Sequence[int]


def _rate(target: _Target, reads: _ReadPlan, limit_s: float) -> tuple[float, str]:
    """Return the rate at the depth that won a short trial, or by fio, and the method's name."""
    depth = reads.depths[0]
    if len(reads.depths) > 1:
        trials = [_read(reads, depth, min(_TRIAL_S, limit_s / 2)).bytes_per_s for depth in reads.depths]
        depth = reads.depths[trials.index(max(trials))]
    delivered = _read(reads, depth, limit_s)
    if target.path is not None and depth >= _FIO_DEPTH:
        at_random = reads.size != SEQUENTIAL_BYTES
        rate = fio_rate(target.path, reads.size, depth, limit_s, at_random=at_random)
        if rate and rate > delivered.bytes_per_s:
            return rate, "fio"
    return delivered.bytes_per_s, "threads" if depth > 1 else "one read at a time"


def _read(reads: _ReadPlan, depth: int, limit_s: float) -> Delivered:
    before = own_device_bytes()
    reading = read_direct(reads.requests, reads.size, depth, limit_s)
    _check_served(reading, before)
    return reading


def _check_served(delivered: Delivered, before: int | None) -> None:
    # tmpfs, ZFS and others accept O_DIRECT but serve from memory.
    after = own_device_bytes()
    if before is not None and after is not None and after - before < delivered.bytes / 2:
        raise _NoRateError("reads with O_DIRECT were not served by a block device")


@contextlib.contextmanager
def _target(files: Sequence[str], scratch: Path | None, rng: np.random.Generator) -> Iterator[_Target]:
    sizes = [Path(path).stat().st_size for path in files]
    large = max(sizes, default=0)
    if large >= LARGE_BYTES:
        path = files[sizes.index(large)]
        with opened_direct([path]) as fds:
            yield _Target(fds=fds, words=f"{Path(path).name} of the store, {large >> 20} MiB", path=path)
        return
    if scratch is not None and _same_device(scratch, files):
        with contextlib.ExitStack() as stack:
            fd = _entered(stack, scratch)
            if fd is not None:
                words = f"a scratch file of {SCRATCH_BYTES >> 20} MiB"
                yield _Target(fds=[fd], words=words, path=f"/proc/{os.getpid()}/fd/{fd}")
                return
    with opened_direct(_choice(files, rng)) as fds:
        yield _Target(fds=fds, words=f"{len(fds)} of the store's files, none of them large", path=None)


def _same_device(folder: Path, files: Sequence[str]) -> bool:
    return all(Path(path).stat().st_dev == folder.stat().st_dev for path in files[:1])


def _entered(stack: contextlib.ExitStack, folder: Path) -> int | None:
    """Return the scratch file, opened past the page cache until the stack closes; None if there is no room for it."""
    if mount_of(folder).fstype in IN_MEMORY:
        raise _NoRateError("reads with O_DIRECT were not served by a block device")
    if shutil.disk_usage(folder).free < 4 * SCRATCH_BYTES:
        return None
    try:
        return stack.enter_context(_scratch(folder))
    except OSError:
        return None


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[int]:
    with tempfile.TemporaryFile(dir=folder) as file:
        _fill(file.fileno())
        fd = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)


def _fill(fd: int) -> None:
    """Write bytes that no device can compress or deduplicate, and wait until they are stored."""
    rng = np.random.default_rng()
    for _ in range(SCRATCH_BYTES // SEQUENTIAL_BYTES):
        os.write(fd, rng.bytes(SEQUENTIAL_BYTES))
    os.fsync(fd)
    ask_to_evict(fd)


def _choice(files: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return as many of the files, in their order, as this process may keep open at once."""
    limit = min(_MAX_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    chosen = rng.choice(len(files), size=min(len(files), limit), replace=False)
    return [files[index] for index in np.sort(chosen).tolist()]


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


def _in_a_row(fds: Sequence[int]) -> list[Request]:
    every = ((fd, at) for fd in fds for at in range(0, os.fstat(fd).st_size, SEQUENTIAL_BYTES))
    return list(itertools.islice(every, _MAX_REQUESTS))
