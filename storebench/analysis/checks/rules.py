"""The rules for one record: its work is that of its cell, its samples were all served, and its rates are possible."""

import dataclasses
import math
from collections.abc import Iterator

from storebench.analysis.checks.findings import Finding, Rule, agree, finding
from storebench.record.schema import CacheVerdict, Record
from storebench.record.steps import PREFETCHED_MOST_FRAC
from storebench.run.matrix import MODEL_CROPS
from storebench.run.replicates import above_limit, shortcomings, wrong_limit
from storebench.settings.words import CacheState, ComputeKind, Fill, Share, TrainerData
from storebench.units import format_bytes, number_of

# Unexplained time is a finding beyond a share, the cost of clock readings, and one or two preemptions.
_OVERHEAD_FRAC, _OVERHEAD_STEP_S, _OVERHEAD_EPOCH_S = 0.05, 50e-6, 10e-3

# Decoding takes longer than this, per batch and per sample; without any, two clock readings lie between its ends.
_DECODE_STEP_S, _DECODE_SAMPLE_S = 2e-6, 1e-7

# Ceilings are measured for half a second, in which the machine may be slower; CPU seconds include start and end.
_HEADROOM, _CPU_HEADROOM, _CPU_BESIDE_S = 1.25, 1.1, 0.1


def check_record(record: Record, memory_bytes_per_s: float | None) -> list[Finding]:
    """Return the findings about one usable record, whose machine copies at most `memory_bytes_per_s`."""
    checks = (
        _work,
        _decoded,
        _payload,
        _prefetched,
        _coverage,
        _cache,
        _tier,
        _replicate,
        _job,
    )
    findings = [problem for check in checks for problem in check(record)]
    if not record.cell.backend.is_null:
        findings += [*_cpu_ceiling(record), *_memory_ceiling(record, memory_bytes_per_s)]
    return findings


def _replicate(record: Record) -> Iterator[Finding]:
    """Find what takes out this replicate alone."""
    for figure, message in shortcomings(record):
        yield dataclasses.replace(finding(Rule.CACHE, record, figure, message), of_replicate=True)


def _work(record: Record) -> Iterator[Finding]:
    """Find computing in a cell that only loads, and time that is explained by nothing."""
    most_s = max(_OVERHEAD_EPOCH_S, _OVERHEAD_STEP_S * record.timed_steps, _OVERHEAD_FRAC * record.timed_s)
    loads = record.cell.compute.kind is ComputeKind.NONE and record.cell.ranks == 1
    if loads and record.compute_s > most_s:
        message = f"{record.compute_s:.6g} s, but a cell that only loads computes nothing"
        yield finding(Rule.ARITHMETIC, record, "compute_s", message)
    ranks = record.job.per_rank if record.job else ()
    idle_s = record.timed_s - sum(rank.seconds for rank in ranks) / len(ranks) if ranks else 0.0
    unexplained_s = abs(record.overhead_s - idle_s)
    if unexplained_s > most_s:
        message = f"{unexplained_s * 1000:.3g} ms of {record.timed_s:.4g} s are explained by nothing"
        yield finding(Rule.ARITHMETIC, record, "overhead_s", message)


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


def _prefetched(record: Record) -> Iterator[Finding]:
    """Find a rate that rests on nothing, or on samples that were begun before the clock."""
    if record.timed_s <= 0 or record.timed_samples <= 0:
        yield finding(Rule.ARITHMETIC, record, "timed_samples", "no sample was timed, so there is no rate")
    elif record.prefetched_samples > PREFETCHED_MOST_FRAC * record.timed_samples:
        share = record.prefetched_samples / record.timed_samples
        message = (
            f"{share:.0%} of the timed samples had been begun before the clock: serve more samples per epoch"
        )
        yield finding(Rule.ARITHMETIC, record, "prefetched_samples", message)


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


def _cache(record: Record) -> Iterator[Finding]:
    """Find a cache state that nothing shows, or that contradicts its cell."""
    cache, cell = record.cache, record.cell
    if cache is None:
        if cell.cache != CacheState.ANY and not cell.backend.is_null:
            message = f"the cell is {cell.cache}, but no resident pages were counted"
            yield finding(Rule.CACHE, record, "cache", message)
        return
    if cache.verdict is CacheVerdict.FAILED:
        message = "the cache state failed, but the record is not failed"
        yield finding(Rule.CACHE, record, "cache.verdict", message)
    if record.portion is not None and cell.cache != CacheState.LIMITED:
        message = f"steady steps in a cell whose cache state is {cell.cache}"
        yield finding(Rule.CACHE, record, "portion", message)
    if wrong_limit(record) and cell.cache == CacheState.LIMITED:
        forced = "no limit" if cache.limit_bytes is None else format_bytes(cache.limit_bytes)
        asked = "nothing" if cell.memory_bytes is None else format_bytes(cell.memory_bytes)
        message = f"called limited to {asked}, but {forced} was in force"
        yield finding(Rule.CACHE, record, "cache.limit_bytes", message)
    if cache.applies_to == "open":
        return
    if cache.verdict is not CacheVerdict.VERIFIED:
        # Pages that were counted, although nothing could count them.
        for figure, message in above_limit(record) if cell.cache == CacheState.LIMITED else ():
            yield finding(Rule.CACHE, record, figure, message)
        return
    if cache.resident_frac_before is None:
        yield finding(Rule.CACHE, record, "resident_frac_before", "called verified, but nothing was counted")


def _tier(record: Record) -> Iterator[Finding]:
    """Find emulated storage without limits."""
    if record.cell.tier is not None and record.tier is None:
        yield finding(Rule.CACHE, record, "tier", f"no limits for {record.cell.tier}")


def _job(record: Record) -> Iterator[Finding]:
    """Find ranks that are missing or began again, and samples of a data store that were read after it was filled."""
    job, cell = record.job, record.cell
    if job is None:
        if cell.ranks > 1 and record.timed_steps:
            message = f"the cell has {cell.ranks} ranks, but the record has no facts about them"
            yield finding(Rule.SCHEMA, record, "job", message)
        return
    if not job.ranks == len(job.per_rank) == cell.ranks:
        message = f"{job.ranks} ranks, of which {len(job.per_rank)} are described, in a cell of {cell.ranks}"
        yield finding(Rule.ARITHMETIC, record, "job.ranks", message)
    if job.duplicates and not cell.pad:
        message = f"{job.duplicates} samples were served again, but the cell has no padding"
        yield finding(Rule.COVERAGE, record, "job.duplicates", message)
    late = sum(rank.data_store.from_store for rank in job.per_rank if rank.data_store is not None)
    if late and not (cell.store_fill is Fill.FIRST_EPOCH and record.epoch == 0):
        message = f"{late} samples were read from the store after the data store was filled"
        yield finding(Rule.CACHE, record, "data_store.from_store", message)


def _cpu_ceiling(record: Record) -> Iterator[Finding]:
    """Find a rate at which the epoch's CPU seconds per sample would need more cores than there are."""
    cores, spent_s = _cores(record), record.counters.cpu_s
    if cores is None or spent_s is None:
        return
    cpu_s = spent_s - _CPU_BESIDE_S * record.cell.ranks * (1 + record.cell.workers)
    nodes = record.job.nodes if record.job else 1
    most = nodes * cores * record.samples / cpu_s if cpu_s > 0 else math.inf
    rate = record.samples_per_s or 0.0
    if rate > most * _CPU_HEADROOM:
        each_ms = 1000 * cpu_s / record.samples
        message = f"{rate:.4g}, but {number_of(nodes * cores, 'core')} do {most:.4g} at {each_ms:.3g} ms each"
        yield finding(Rule.CEILING, record, "samples_per_s", message)


def _memory_ceiling(record: Record, ceiling: float | None) -> Iterator[Finding]:
    """Find more bytes per second than the producers' threads can copy into memory; readers may copy only the crop."""
    if ceiling is None:
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
