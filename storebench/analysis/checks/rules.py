"""The rules for one record: its time is explained, its samples were all served, and its rates are possible."""

import dataclasses
import math
from collections.abc import Iterator

from storebench.analysis.checks.findings import Finding, Rule, agree, finding
from storebench.record.schema import Record
from storebench.run.matrix import MODEL_CROPS
from storebench.run.replicates import shortcomings
from storebench.settings.words import Share, TrainerData
from storebench.units import format_bytes

# Unexplained time is a finding beyond a share, the cost of clock readings, and one or two preemptions.
_OVERHEAD_FRAC, _OVERHEAD_STEP_S, _OVERHEAD_EPOCH_S = 0.05, 50e-6, 10e-3

# Decoding takes longer than this, per batch and per sample; without any, two clock readings lie between its ends.
_DECODE_STEP_S, _DECODE_SAMPLE_S = 2e-6, 1e-7

# Ceilings are measured for half a second, in which the machine may be slower.
_HEADROOM = 1.25


def check_record(record: Record, memory_bytes_per_s: float | None) -> list[Finding]:
    """Return the findings about one usable record, whose machine copies at most `memory_bytes_per_s`."""
    checks = (_timed, _overhead, _decoded, _payload, _coverage, _replicate)
    findings = [problem for check in checks for problem in check(record)]
    return [*findings, *_memory_ceiling(record, memory_bytes_per_s)]


def _replicate(record: Record) -> Iterator[Finding]:
    """Find what takes out this replicate alone."""
    for figure, message in shortcomings(record):
        yield dataclasses.replace(finding(Rule.CACHE, record, figure, message), of_replicate=True)


def _timed(record: Record) -> Iterator[Finding]:
    if record.timed_s <= 0 or record.timed_samples <= 0:
        yield finding(Rule.ARITHMETIC, record, "timed_samples", "no sample was timed, so there is no rate")


def _overhead(record: Record) -> Iterator[Finding]:
    """Find time that nothing explains."""
    most_s = max(_OVERHEAD_EPOCH_S, _OVERHEAD_STEP_S * record.timed_steps, _OVERHEAD_FRAC * record.timed_s)
    ranks = record.job.per_rank if record.job else ()
    if record.job and not ranks:  # a shared run leaves them out
        return
    idle_s = record.timed_s - sum(rank.seconds for rank in ranks) / len(ranks) if ranks else 0.0
    unexplained_s = abs(record.overhead_s - idle_s)
    if unexplained_s > most_s:
        message = f"{unexplained_s * 1000:.3g} ms of {record.timed_s:.4g} s are explained by nothing"
        found = finding(Rule.ARITHMETIC, record, "overhead_s", message)
        # Other work may have kept the loop from a core between two of its times.
        yield dataclasses.replace(found, of_replicate=bool(record.conditions and record.conditions.disturbed))


def decodes(record: Record) -> bool:
    """Whether every sample of the epoch had to be decoded: neither its opening nor a data store decoded it."""
    cell, cache = record.cell, record.cache
    by_opening = cache is None or cache.applies_to == "open"
    return not (
        cell.backend.codec == "raw" or cell.backend.is_null or cell.share is Share.STORE or by_opening
    )


def _decoded(record: Record) -> Iterator[Finding]:
    """Find samples that took no time to decode: kept from an earlier time, or decoded within a fetch."""
    least_s = _DECODE_STEP_S * record.timed_steps + _DECODE_SAMPLE_S * record.timed_samples
    if decodes(record) and record.timed_samples and record.decode_s < least_s:
        message = (
            f"{record.decode_s:.2g} s for {record.timed_samples} samples stored as {record.cell.backend.codec}: the"
            " reader keeps decoded pixels, or does not report its decoding"
        )
        yield finding(Rule.ARITHMETIC, record, "decode_s", message)


def _payload(record: Record) -> Iterator[Finding]:
    """Find a payload that the store cannot have served."""
    store, seen = record.store, record.coverage
    if store is None or not store.count or record.cell.backend.is_null:
        return
    whole = seen is not None and seen.complete and record.samples == store.count
    if record.cell.backend.codec != "raw" and not whole:
        return
    expected = record.samples * store.payload_bytes / store.count
    pixels = record.samples * math.prod(store.image_shape)
    if not (agree(record.payload_bytes, expected) or record.payload_bytes == pixels):
        message = (
            f"{record.payload_bytes} bytes, but {record.samples} samples of this store are {expected:.0f}"
        )
        yield finding(Rule.ARITHMETIC, record, "payload_bytes", message)


def _coverage(record: Record) -> Iterator[Finding]:
    seen = record.coverage
    if seen is None:
        yield finding(Rule.COVERAGE, record, "coverage", "nothing says which samples were served")
        return
    if seen.served != record.samples:
        message = f"{seen.served} indices came, {record.samples} samples are counted"
        yield finding(Rule.COVERAGE, record, "samples", message)
    # Samples are served several times by several passes, by trainers with all samples, and by padding.
    cell = record.cell
    again = cell.passes or cell.pad or cell.trainer_data is TrainerData.REPLICATED
    counted = seen.expected if again else seen.unique + seen.duplicates
    if not seen.complete or counted != seen.served or seen.missing < 0:
        message = (
            f"{seen.duplicates} duplicates, {seen.missing} missing, {seen.timed_wrong} with wrong pixels"
            f" among {seen.served} served"
        )
        yield finding(Rule.COVERAGE, record, "coverage", message)
    if not (seen.timed_checked or record.code is None or cell.backend.is_null):
        message = "no sample of the timed batches was compared with the dataset"
        yield finding(Rule.COVERAGE, record, "coverage", message)


def _memory_ceiling(record: Record, ceiling: float | None) -> Iterator[Finding]:
    """Find more bytes per second than the producers' threads can copy into memory; readers may copy only the crop."""
    if ceiling is None or record.cell.backend.is_null:
        return
    cell, cores, side = record.cell, _cores(record), MODEL_CROPS.get(record.cell.model)
    shape = record.store.image_shape if record.store else (1, 1)
    frac = 1.0 if side is None else min(1.0, side / shape[0]) * min(1.0, side / shape[1])
    readers = record.job.nodes if cell.share is Share.NODE and record.job else cell.ranks
    busy_s = (record.fetch_s + record.decode_s) * readers
    side_by_side = busy_s * max(1, min(cell.threads, cores or cell.threads))
    cpu_s = record.counters.cpu_s
    copying_s = side_by_side if cpu_s is None else min(side_by_side, max(cpu_s, busy_s))
    if busy_s and record.payload_bytes * frac > ceiling * _HEADROOM * copying_s:
        rate, most = (record.payload_bytes * frac / busy_s, ceiling * _HEADROOM * copying_s / busy_s)
        message = (
            f"{format_bytes(round(rate))} per second of fetching and decoding, above the"
            f" {format_bytes(round(most))} that memory can give there"
        )
        yield finding(Rule.CEILING, record, "payload_bytes_per_s", message)


def _cores(record: Record) -> int | None:
    match = record.environment.match if record.environment else {}
    cores, quota = match.get("cores"), match.get("cpu_quota")
    return math.ceil(min(cores, quota or math.inf)) if isinstance(cores, int) else None
