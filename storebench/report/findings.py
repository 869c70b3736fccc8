"""What validation can find wrong with a result, and the arithmetic and ceilings of a single record."""

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass

from storebench.results import CacheVerdict, Record, Status

COLD_MOST_RESIDENT_FRAC = 0.01
WARM_LEAST_RESIDENT_FRAC = 0.99

_SAME = 1e-6
"""Relative difference that rounding explains."""

_MEMORY_HEADROOM = 2.0
"""A compiled gather with several threads beats the one-threaded gather rate by less than this for each producer."""

_DEVICE_LEAST_FRAC = 0.9
"""Block layers and counters disagree by a few percent; a tenth is missing for a reason."""

_OVERHEAD_FRAC = 0.05
_OVERHEAD_NS = 100_000
"""Overhead is a finding only where it is both a large share and more than clock readings cost."""


class Kind(enum.StrEnum):
    """Which rule a finding breaks."""

    SCHEMA = "schema"
    ARITHMETIC = "arithmetic"
    COVERAGE = "coverage"
    CACHE = "cache"
    CEILING = "ceiling"
    DISAGREEMENT = "disagreement"
    STEPS = "steps"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with a result.

    Attributes
    ----------
    cell
        "backend, setting" in words, or the place in the file where there is no cell.
    cell_id, run_id
        Of the record, or "".
    figure
        Name of the figure that is wrong.
    message
        What is wrong, with the values.
    """

    kind: Kind
    cell: str
    cell_id: str
    run_id: str
    figure: str
    message: str

    def __str__(self) -> str:
        return f"{self.cell}: {self.figure}: {self.message} ({self.kind})"


def record_name(record: Record) -> str:
    """Return a record in words, with what finds it again."""
    cell = record.cell
    return (
        f"{cell.dataset} {cell.backend} {cell.cache} workers={cell.workers} [{cell.cell_id}]"
        f" replicate {record.replicate} epoch {record.epoch}"
    )


def finding(kind: Kind, record: Record, figure: str, message: str) -> Finding:
    """Return a finding about a record."""
    return Finding(
        kind=kind,
        cell=record_name(record),
        cell_id=record.cell.cell_id,
        run_id=record.run_id,
        figure=figure,
        message=message,
    )


def check_record(record: Record) -> list[Finding]:
    """Return everything that is wrong with one usable record by itself; a failed record claims nothing."""
    if record.status is not Status.OK:
        return []
    checks = (_shares, _sums, _rates, _order, _coverage, _cache, _memory_ceiling, _device_floor)
    return [one for check in checks for one in check(record)]


def _shares(record: Record) -> Iterator[Finding]:
    cache = record.cache
    shares = {
        "data_wait_frac": record.data_wait_frac,
        "accelerator_util_frac": record.accelerator_util_frac,
        "test_accuracy": record.test_accuracy,
        "resident_frac_before": cache.resident_frac_before if cache else None,
        "resident_frac_after": cache.resident_frac_after if cache else None,
    }
    for name, value in shares.items():
        if value is not None and not 0 <= value <= 1 + _SAME:
            kind = Kind.CEILING if name == "accelerator_util_frac" else Kind.ARITHMETIC
            yield finding(kind, record, name, f"{value:.4g} is no share between 0 and 1")


def _sums(record: Record) -> Iterator[Finding]:
    parts = ("timed_s", "data_wait_s", "h2d_s", "compute_s", "fetch_s", "decode_s", "prep_s", "open_s")
    for name in (*parts, "time_to_first_batch_s"):
        value = getattr(record, name)
        if not (math.isfinite(value) and value >= 0):
            yield finding(Kind.ARITHMETIC, record, name, f"{value} is no duration")
    explained = record.data_wait_s + record.h2d_s + record.compute_s
    if not _close(explained + record.overhead_s, record.timed_s):
        message = f"wait, copy, compute and overhead add up to {explained + record.overhead_s:.6g} s, not {record.timed_s:.6g} s"
        yield finding(Kind.ARITHMETIC, record, "timed_s", message)
    overhead_ns = abs(record.overhead_s) * 1e9 / max(record.timed_steps, 1)
    if abs(record.overhead_s) > _OVERHEAD_FRAC * record.timed_s and overhead_ns > _OVERHEAD_NS:
        share = record.overhead_s / record.timed_s if record.timed_s else math.inf
        yield finding(
            Kind.ARITHMETIC, record, "overhead_s", f"{share:.0%} of the time is explained by nothing"
        )
    if record.timed_s > record.epoch_s * (1 + _SAME) + 1e-3:
        yield finding(Kind.ARITHMETIC, record, "epoch_s", "the epoch is shorter than its timed steps")


def _rates(record: Record) -> Iterator[Finding]:
    if record.timed_s <= 0 or record.timed_samples <= 0:
        yield finding(Kind.ARITHMETIC, record, "timed_samples", "no sample was timed, so there is no rate")
        return
    busy = record.data_wait_s + record.h2d_s + record.compute_s
    expected = {
        "samples_per_s": record.timed_samples / record.timed_s,
        "data_wait_frac": record.data_wait_s / busy if busy else record.data_wait_frac,
        "accelerator_util_frac": record.compute_s / record.timed_s,
    }
    for name, right in expected.items():
        said = getattr(record, name)
        if said is not None and not _close(said, right):
            yield finding(Kind.ARITHMETIC, record, name, f"{said:.6g}, but the raw figures give {right:.6g}")
    if record.timed_samples > record.samples or record.timed_steps > record.steps:
        message = f"{record.timed_samples} timed of {record.samples} served"
        yield finding(Kind.ARITHMETIC, record, "timed_samples", message)
    most = record.payload_bytes / record.timed_s
    if record.payload_bytes_per_s > most * (1 + _SAME):
        message = f"{record.payload_bytes_per_s:.6g}, but all payload over the timed seconds is {most:.6g}"
        yield finding(Kind.ARITHMETIC, record, "payload_bytes_per_s", message)


def _order(record: Record) -> Iterator[Finding]:
    wait = record.data_wait_ns
    if wait is not None and not 0 <= wait.p50 <= wait.p95 <= wait.p99 <= wait.max:
        message = f"p50 {wait.p50}, p95 {wait.p95}, p99 {wait.p99} and max {wait.max} are not in order"
        yield finding(Kind.ARITHMETIC, record, "data_wait_ns", message)
    if wait is not None and wait.max > (record.data_wait_s + 1e-6) * 1e9:
        message = f"the longest wait ({wait.max} ns) is longer than all of them ({record.data_wait_s} s)"
        yield finding(Kind.ARITHMETIC, record, "data_wait_ns", message)


def _coverage(record: Record) -> Iterator[Finding]:
    seen = record.coverage
    if seen is None:
        yield finding(Kind.COVERAGE, record, "coverage", "nothing says which samples were served")
        return
    if seen.served != record.samples:
        message = f"{seen.served} indices came, {record.samples} samples are counted"
        yield finding(Kind.COVERAGE, record, "samples", message)
    if not seen.complete or seen.unique + seen.duplicates != seen.served or seen.missing < 0:
        message = (
            f"{seen.duplicates} duplicates, {seen.missing} missing, {seen.pixels_wrong} with wrong pixels"
            f" among {seen.served} served"
        )
        yield finding(Kind.COVERAGE, record, "coverage", message)


def _cache(record: Record) -> Iterator[Finding]:
    cache = record.cache
    if cache is None:
        if record.cell.cache != "any" and record.cell.format != "null":
            yield finding(
                Kind.CACHE, record, "cache", f"{record.cell.cache} was asked for and nothing was counted"
            )
        return
    if cache.verdict is CacheVerdict.FAILED:
        yield finding(
            Kind.CACHE, record, "cache.verdict", "the cache state failed, but the record is not failed"
        )
    before = cache.resident_frac_before
    if cache.verdict is not CacheVerdict.VERIFIED or cache.applies_to == "open":
        return
    if before is None:
        yield finding(Kind.CACHE, record, "resident_frac_before", "called verified, but nothing was counted")
    elif record.cell.cache == "cold" and before > COLD_MOST_RESIDENT_FRAC:
        yield finding(Kind.CACHE, record, "resident_frac_before", f"called cold with {before:.1%} resident")
    elif record.cell.cache == "warm" and before < WARM_LEAST_RESIDENT_FRAC:
        yield finding(Kind.CACHE, record, "resident_frac_before", f"called warm with {before:.1%} resident")


def _memory_ceiling(record: Record) -> Iterator[Finding]:
    gather = record.ceilings.memory_bytes_per_s
    if gather is None or record.cell.format == "null":
        return
    most = gather * _MEMORY_HEADROOM * max(record.cell.workers, 1)
    if record.payload_bytes_per_s > most:
        message = (
            f"{record.payload_bytes_per_s:.3g} bytes/s, above what memory can give here ({most:.3g}:"
            f" {_MEMORY_HEADROOM:g} times the gather rate for each producer)"
        )
        yield finding(Kind.CEILING, record, "payload_bytes_per_s", message)


def _device_floor(record: Record) -> Iterator[Finding]:
    cache, read = record.cache, record.counters.device_read_bytes
    if cache is None or cache.resident_frac_before is None or read is None:
        return
    if record.cell.cache != "cold" or cache.applies_to == "open" or record.cell.format == "null":
        return
    least = record.payload_bytes * (1 - cache.resident_frac_before) * _DEVICE_LEAST_FRAC
    if read < least:
        message = (
            f"{read} bytes came from the device, but {record.payload_bytes} were asked for and only"
            f" {cache.resident_frac_before:.1%} of the store was resident: something else held the data"
        )
        yield finding(Kind.CEILING, record, "device_read_bytes", message)


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_SAME, abs_tol=1e-9)
