"""Put into a pytest-benchmark what ``storebench check`` needs: a cell id, a calibration beside each round, counters.

For the benchmarks of storebench and for those of a project with a format of its own::

    from storebench.testing.benchmarks import Measurement, gather, measure

    def test_my_format(benchmark):
        measure(
            benchmark,
            Measurement(
                cell_id="read/mine/warm",
                target=read_everything,
                samples=1024,
                calibration="gather",
                calibrate=gather((32, 32, 3), 1024),
            ),
        )
"""

import contextlib
import ctypes
import hashlib
import math
import multiprocessing
import os
import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from storebench.check.side_benchmarks import EXTRA_VERSION
from storebench.probes.counters import CounterProbe
from storebench.results import CacheFacts, CacheVerdict

ROUNDS = 12
BATCH = 64

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

Calibrate = Callable[[], float]
"""Do a fixed piece of work that has nothing to do with the code under test; return its seconds."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One benchmark.

    Attributes
    ----------
    cell_id
        Stable name that a check matches on.
    target
        What is timed. It returns how many samples it served.
    samples
        How many it should serve.
    calibration, calibrate
        What each round is held against, by name, and how it is measured; it runs before and
        after every round, so that what slows the machine for a moment slows both.
    prepare
        Runs before each round, untimed; it may return the state of the page cache that it measured.
    pids
        Processes to count system calls, faults and device bytes of, besides this one.
    store
        A path on the filesystem whose device is read; null counts nothing.
    counters
        Counters that are known without counting (bytes on disk).
    payload_bytes
        Payload that one round asks for.
    samples_of
        Fingerprint of the samples: two sides with other samples are not compared.
    """

    cell_id: str
    target: Callable[[], int]
    samples: int
    calibration: str
    calibrate: Calibrate
    prepare: Callable[[], CacheFacts | None] = lambda: None
    pids: Callable[[], Iterable[int]] = tuple
    store: Path | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    payload_bytes: int | None = None
    samples_of: str = ""
    rounds: int = ROUNDS


class _Rounds:
    """What the rounds of one measurement gave."""

    def __init__(self, measurement: Measurement) -> None:
        self._measurement = measurement
        self._probe: CounterProbe | None = None
        self.calibrations: list[float] = []
        self.served: list[int] = []
        self.counted: list[dict[str, float]] = []
        self.cache: CacheFacts | None = None

    def before(self) -> None:
        one = self._measurement
        self.calibrations.append(one.calibrate())
        cache = one.prepare()
        if self.cache is None or (cache is not None and cache.verdict is not CacheVerdict.VERIFIED):
            self.cache = cache  # the worst of all rounds is what counts
        if one.store is not None:
            self._probe = CounterProbe({os.getpid(), *one.pids()}, one.store)
            self._probe.start()

    def run(self) -> int:
        served = self._measurement.target()
        self.served.append(served)
        return served

    def after(self) -> None:
        if self._probe is not None:
            found = self._probe.stop(self._measurement.payload_bytes)
            names = ("device_read_bytes", "read_calls", "major_faults")
            self.counted.append(
                {name: value for name in names if (value := getattr(found, name)) is not None}
            )

    def beside(self) -> list[float]:
        """Return each round's calibration: the smaller of the one before it and the one after it.

        An interruption can only make a calibration longer, and would make the round look fast.
        """
        last = self._measurement.calibrate()
        after = [*self.calibrations[1:], last]
        return [min(pair) for pair in zip(self.calibrations, after, strict=True)]

    def counters(self) -> dict[str, float]:
        """Return the median of each counter over the rounds; device bytes only of verified cold ones."""
        found: dict[str, float] = {"samples_served": statistics.median(self.served)}
        names = set.intersection(*map(set, self.counted)) if self.counted else set()
        cold = self.cache is not None and self.cache.requested == "cold"
        if not cold or self.cache is None or self.cache.verdict is not CacheVerdict.VERIFIED:
            names -= {"device_read_bytes"}
        found |= {name: statistics.median(one[name] for one in self.counted) for name in sorted(names)}
        return found | dict(self._measurement.counters)


def measure(benchmark: Any, measurement: Measurement) -> None:
    """Run a measurement under pytest-benchmark's fixture and fill its ``extra_info``.

    Where benchmarks are disabled it runs once, as a plain test.

    Raises
    ------
    AssertionError
        A round served another number of samples than it should.
    """
    rounds = _Rounds(measurement)
    benchmark.extra_info.update(_identity(measurement))
    benchmark.pedantic(
        rounds.run,
        setup=rounds.before,
        teardown=rounds.after,
        rounds=measurement.rounds,
        warmup_rounds=1,
        iterations=1,
    )
    wrong = [served for served in rounds.served if served != measurement.samples]
    assert not wrong, f"{measurement.cell_id} served {wrong[0]} samples, not {measurement.samples}"
    if not benchmark.disabled:
        benchmark.extra_info.update(_findings(measurement, rounds, benchmark.stats.stats.median))


def _identity(measurement: Measurement) -> dict[str, Any]:
    return {
        "schema_version": EXTRA_VERSION,
        "cell_id": measurement.cell_id,
        "samples": measurement.samples,
        "samples_of": measurement.samples_of,
        "calibration": measurement.calibration,
    }


def _findings(measurement: Measurement, rounds: _Rounds, median_s: float) -> dict[str, Any]:
    beside = rounds.beside()[-measurement.rounds :]
    counters = rounds.counters()
    if measurement.payload_bytes is not None:
        counters["payload_bytes"] = measurement.payload_bytes
    found: dict[str, Any] = {
        "samples_per_s": measurement.samples / median_s,
        "calibration_s": beside,
        "counters": counters,
    }
    if measurement.calibration == "gather":
        found["gather_samples_per_s"] = measurement.samples / statistics.median(beside)
    if rounds.cache is not None:
        cache = rounds.cache
        found |= {"cache": cache.requested, "cache_verdict": cache.verdict, "cache_reason": cache.reason}
        found |= {"cache_method": cache.method, "resident_frac_before": cache.resident_frac_before}
    return found


def settle_allocator() -> None:
    """Let glibc keep freed memory for the rest of this process instead of giving it back.

    Otherwise a threshold that moves by chance decides whether large buffers are mapped and faulted
    in anew each time: of two identical processes one converted at half the other's speed.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def gather(shape: tuple[int, ...], samples: int, *, at_least_s: float = 0.004) -> Calibrate:
    """Return a calibration for readers: `numpy.take` of `samples` shuffled uint8 samples, in batches of 64.

    The gathering is repeated for `at_least_s`, and the seconds of one pass are returned.
    """
    array = np.ones((samples, *shape), np.uint8)
    order = np.random.default_rng(0).permutation(samples)
    out = np.empty((BATCH, *shape), np.uint8)

    def once() -> float:
        passes, started = 0, time.perf_counter()
        while True:
            for start in range(0, samples, BATCH):
                rows = order[start : start + BATCH]
                np.take(array, rows, axis=0, out=out[: len(rows)], mode="clip")
            passes += 1
            took_s = time.perf_counter() - started
            if took_s >= at_least_s:
                return took_s / passes

    return once


def drop(paths: Iterable[Path]) -> None:
    """Ask the kernel once, without waiting, to let go of files' clean pages; what is mapped stays."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read(paths: Iterable[Path]) -> Calibrate:
    """Return a calibration for cold cells: the files read once in a row, each 4 MiB at a time, after evicting them."""
    files = list(paths)
    buffer = bytearray(4 << 20)

    def once() -> float:
        drop(files)
        started = time.perf_counter()
        for path in files:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        return time.perf_counter() - started

    return once


def interpreter(at_least_bytes: int = 1 << 18) -> Calibrate:
    """Return a calibration for work of the CPU: hashing, deflating and a loop in the interpreter, fixed in size."""
    data = np.random.default_rng(0).integers(0, 16, at_least_bytes, np.uint8).tobytes()

    def once() -> float:
        started = time.perf_counter()
        zlib.decompress(zlib.compress(data, 1))
        hashlib.blake2b(data).digest()
        total = 0
        for number in range(20_000):
            total += number
        return time.perf_counter() - started

    return once


def matrix_product(side: int = 1024, repeats: int = 1) -> Calibrate:
    """Return a calibration for training: float32 products by torch, with as many threads as training has."""
    import torch

    left = torch.full((side, side), 1 / math.sqrt(side))

    def once() -> float:
        started = time.perf_counter()
        for _ in range(repeats):
            left @ left
        return time.perf_counter() - started

    return once


def gather_in_processes(
    shape: tuple[int, ...], samples: int, workers: int
) -> tuple[Calibrate, Callable[[], None]]:
    """Return a calibration for loaders with workers, and what ends its processes.

    That many processes gather batches of 64 at the same time and send them through pipes: what
    this machine's cores and pipes can do at best at this moment, without the loader under test.
    """
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(workers)]
    share = samples // max(1, workers)
    processes = [
        context.Process(target=_gather_and_send, args=(theirs, shape, share), daemon=True)
        for _, theirs in ends
    ]
    for process, (_, theirs) in zip(processes, ends, strict=True):
        process.start()
        theirs.close()  # then a process that dies is an error here, and no wait for ever
    ours = [end for end, _ in ends]
    for end in ours:
        end.recv()

    def once() -> float:
        started = time.perf_counter()
        for end in ours:
            end.send(True)
        for _ in range(0, share, BATCH):
            for end in ours:
                end.recv_bytes()
        return time.perf_counter() - started

    def close() -> None:
        for end, process in zip(ours, processes, strict=True):
            end.close()
            process.join(10)

    return once, close


def _gather_and_send(end: Any, shape: tuple[int, ...], samples: int) -> None:
    array = np.ones((samples, *shape), np.uint8)
    order = np.random.default_rng(0).permutation(samples)
    end.send("ready")
    with contextlib.suppress(EOFError, OSError):
        while end.recv():
            for start in range(0, samples, BATCH):
                end.send_bytes(np.take(array, order[start : start + BATCH], axis=0).reshape(-1).data)
