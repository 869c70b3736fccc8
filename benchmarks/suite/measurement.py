"""Put into a pytest-benchmark what a reader of its figures needs: samples, counters and the state of the page cache."""

import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storebench.probes.counters import CounterProbe
from storebench.record.schema import CacheFacts, CacheVerdict
from storebench.settings.words import CacheState

ROUNDS = 12

_COUNTED = ("device_read_bytes", "read_calls", "major_faults")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One benchmark: `target` returns how many samples it served, and `prepare` runs before each round, untimed."""

    target: Callable[[], int]
    samples: int
    prepare: Callable[[], CacheFacts | None] = lambda: None
    pids: Callable[[], Iterable[int]] = tuple
    store: Path | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    payload_bytes: int | None = None
    rounds: int = ROUNDS


class _Rounds:
    """The result of the rounds of one measurement."""

    def __init__(self, measurement: Measurement) -> None:
        self._measurement = measurement
        self._probe: CounterProbe | None = None
        self.served: list[int] = []
        self.counted: list[dict[str, float]] = []
        self.cache: CacheFacts | None = None

    def before(self) -> None:
        measurement = self._measurement
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
            self.counted.append(
                {name: value for name in _COUNTED if (value := getattr(counters, name)) is not None}
            )

    def counters(self) -> dict[str, float]:
        """Return the median of each counter over the rounds; device bytes only of verified cold ones."""
        names = set.intersection(*map(set, self.counted)) if self.counted else set()
        cache = self.cache
        if cache is None or cache.requested != CacheState.COLD or cache.verdict is not CacheVerdict.VERIFIED:
            names -= {"device_read_bytes"}
        medians = {
            name: statistics.median(counters[name] for counters in self.counted) for name in sorted(names)
        }
        return medians | dict(self._measurement.counters)


def measure(benchmark: Any, measurement: Measurement) -> None:
    """Run a measurement under pytest-benchmark's fixture and fill its ``extra_info``; if disabled, as a plain test."""
    rounds = _Rounds(measurement)
    benchmark.pedantic(
        rounds.run,
        setup=rounds.before,
        teardown=rounds.after,
        rounds=measurement.rounds,
        warmup_rounds=1,
        iterations=1,
    )
    wrong = [served for served in rounds.served if served != measurement.samples]
    assert not wrong, f"it served {wrong[0]} samples, not {measurement.samples}"
    if benchmark.disabled:
        return
    benchmark.extra_info |= {
        "samples": measurement.samples,
        "samples_per_s": measurement.samples / benchmark.stats.stats.median,
        "payload_bytes": measurement.payload_bytes,
        "counters": rounds.counters(),
    }
    if rounds.cache is not None:
        cache = rounds.cache
        benchmark.extra_info |= {
            "cache": cache.requested,
            "cache_verdict": cache.verdict,
            "cache_reason": cache.reason,
        }
