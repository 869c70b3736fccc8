"""Put into a pytest-benchmark what ``storebench check`` needs: a cell id, a calibration beside each round, counters.

For the benchmarks of storebench and for those of a project with a format of its own::

    from storebench.testing.benchmarks import Measurement, measure
    from storebench.testing.calibrations import gather

    def test_my_format(benchmark):
        measure(
            benchmark,
            Measurement(
                cell_id="read/mine/warm",
                target=read_everything,
                samples=1024,
                calibration="memory",
                calibrate=gather((32, 32, 3), 1024),
            ),
        )
"""

import contextlib
import ctypes
import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storebench.check.calibration import LimitingWork
from storebench.check.sides.benchmarks import EXTRA_VERSION
from storebench.probes.counters import CounterProbe
from storebench.results import CacheFacts, CacheVerdict
from storebench.settings.words import CacheState
from storebench.testing.busy import OthersProbe
from storebench.testing.calibrations import Calibrate

ROUNDS = 12

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One benchmark.

    Attributes
    ----------
    cell_id
        Stable name that a check matches on.
    target
        The function to time. It returns the number of samples that it served.
    samples
        Number of samples that it should serve.
    calibration, calibrate
        Name of the work that each round is compared with, and the function that does it; it runs before and
        after every round, so that what slows the machine for a moment slows both. Take the kind of work
        that bounds the target (`storebench.check.calibration.LimitingWork`): figures of another machine can only be
        compared if that kind was shown to carry over.
    prepare
        Runs before each round, untimed; it may return the state of the page cache that it measured.
    pids
        Processes to count system calls, faults and device bytes of, besides this one.
    store
        A path on the filesystem whose device is read; None counts nothing.
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
    """The result of the rounds of one measurement."""

    def __init__(self, measurement: Measurement) -> None:
        self._measurement = measurement
        self._probe: CounterProbe | None = None
        self.calibrations: list[float] = []
        self.served: list[int] = []
        self.counted: list[dict[str, float]] = []
        self.cache: CacheFacts | None = None

    def before(self) -> None:
        measurement = self._measurement
        self.calibrations.append(measurement.calibrate())
        cache = measurement.prepare()
        if self.cache is None or (cache is not None and cache.verdict is not CacheVerdict.VERIFIED):
            self.cache = cache  # the worst of all rounds counts
        if measurement.store is not None:
            self._probe = CounterProbe({os.getpid(), *measurement.pids()}, measurement.store)
            self._probe.start()

    def run(self) -> int:
        served = self._measurement.target()
        self.served.append(served)
        return served

    def after(self) -> None:
        if self._probe is not None:
            counters = self._probe.stop(self._measurement.payload_bytes)
            names = ("device_read_bytes", "read_calls", "major_faults")
            self.counted.append(
                {name: value for name in names if (value := getattr(counters, name)) is not None}
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
        medians: dict[str, float] = {"samples_served": statistics.median(self.served)}
        names = set.intersection(*map(set, self.counted)) if self.counted else set()
        cold = self.cache is not None and self.cache.requested == CacheState.COLD
        if not cold or self.cache is None or self.cache.verdict is not CacheVerdict.VERIFIED:
            names -= {"device_read_bytes"}
        medians |= {
            name: statistics.median(counters[name] for counters in self.counted) for name in sorted(names)
        }
        return medians | dict(self._measurement.counters)


def measure(benchmark: Any, measurement: Measurement) -> None:
    """Run a measurement under pytest-benchmark's fixture and fill its ``extra_info``.

    If benchmarks are disabled, it runs once, as a plain test.

    Raises
    ------
    AssertionError
        A round served another number of samples than it should.
    """
    rounds, others = _Rounds(measurement), OthersProbe()
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
        benchmark.extra_info["busy_cores"] = others.cores()


def _identity(measurement: Measurement) -> dict[str, Any]:
    return {
        "schema_version": EXTRA_VERSION,
        "cell_id": measurement.cell_id,
        "samples": measurement.samples,
        "samples_of": measurement.samples_of,
        "calibration": measurement.calibration,
    }


def _findings(measurement: Measurement, rounds: _Rounds, median_s: float) -> dict[str, Any]:
    calibrations = rounds.beside()[-measurement.rounds :]
    counters = rounds.counters()
    if measurement.payload_bytes is not None:
        counters["payload_bytes"] = measurement.payload_bytes
    extra: dict[str, Any] = {
        "samples_per_s": measurement.samples / median_s,
        "calibration_s": calibrations,
        "counters": counters,
    }
    if measurement.calibration == LimitingWork.MEMORY:
        extra["gather_once_samples_per_s"] = measurement.samples / statistics.median(calibrations)
    if rounds.cache is not None:
        cache = rounds.cache
        extra |= {"cache": cache.requested, "cache_verdict": cache.verdict, "cache_reason": cache.reason}
        extra |= {"cache_method": cache.method, "resident_frac_before": cache.resident_frac_before}
    return extra


def settle_allocator() -> None:
    """Let glibc keep freed memory for the rest of this process instead of giving it back.

    Otherwise a threshold that moves by chance decides whether large buffers are mapped and faulted
    in anew each time: of two identical processes one converted at half the other's speed.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
