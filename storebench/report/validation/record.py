"""The rules within one record: its arithmetic, the coverage of its samples, and its cache state."""

import math
import statistics
from collections.abc import Iterator

from storebench.probes.cgroup import LIMIT_HEADROOM
from storebench.probes.page_cache import COLD_MAX_FRAC, WARM_MIN_FRAC
from storebench.report.texts.labels import size
from storebench.report.validation.findings import ROUNDING, Finding, Rule, agree, finding
from storebench.results import CacheFacts, CacheVerdict, Record
from storebench.settings.words import CacheState, ComputeKind, Share, TrainerData
from storebench.training.step_table import PREFETCHED_MOST_FRAC
from storebench.units import format_bytes

_OVERHEAD_FRAC = 0.05
_OVERHEAD_STEP_S = 50e-6
_OVERHEAD_EPOCH_S = 10e-3
"""Overhead is a finding only if it is a large share, more than clock readings cost, and more than one or two preemptions.

With two workers on two cores, a loop that lost its core has waited 6 ms for it, in an epoch of 67 ms."""

_WARM_LEFT_FRAC = 0.9
"""Least share of a store that a warm epoch may leave resident. The kernel reclaims pages that are idle: 97% was seen."""

_SLEEP_FRAC = 0.01
"""By how much emulated steps may be shorter than they sleep: the two clocks are not one."""

_SPANS_FRAC = 0.02
_SPANS_STEP_S = 50e-6
"""Excess of the producers' spans over the loop's wait that is allowed: the clocks are read at slightly different moments."""

_DECODE_STEP_S = 2e-6
_DECODE_SAMPLE_S = 1e-7
"""Decoding takes longer than this, per batch and per sample; without any, two clock readings lie between its ends."""


def check_record(record: Record) -> list[Finding]:
    """Return the findings about the arithmetic, the coverage and the cache state of one usable record."""
    checks = (_shares, _sums, _computed, _spans, _rates, _decoded, _payload, _order, _coverage, _cache)
    return [problem for check in checks for problem in check(record)]


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
        if value is not None and not 0 <= value <= 1 + ROUNDING:
            kind = Rule.CEILING if name == "accelerator_util_frac" else Rule.ARITHMETIC
            yield finding(kind, record, name, f"{value:.4g} is no share between 0 and 1")


def _sums(record: Record) -> Iterator[Finding]:
    parts = ("timed_s", "data_wait_s", "h2d_s", "compute_s", "fetch_s", "decode_s", "prep_s", "handover_s")
    for name in (*parts, "open_s", "time_to_first_batch_s"):
        value = getattr(record, name)
        if not (math.isfinite(value) and value >= 0):
            yield finding(Rule.ARITHMETIC, record, name, f"{value} is no duration")
    explained = record.data_wait_s + record.h2d_s + record.compute_s
    if not agree(explained + record.overhead_s, record.timed_s):
        message = f"wait, copy, compute and overhead add up to {explained + record.overhead_s:.6g} s, not {record.timed_s:.6g} s"
        yield finding(Rule.ARITHMETIC, record, "timed_s", message)
    unexplained_s = abs(record.overhead_s - _idle_s(record))
    if unexplained_s > _unexplained_most_s(record):
        share = record.overhead_s / record.timed_s if record.timed_s else math.inf
        message = f"{share:.0%} of the time ({unexplained_s * 1000:.3g} ms) is explained by nothing"
        yield finding(Rule.ARITHMETIC, record, "overhead_s", message)
    if record.timed_s > record.epoch_s * (1 + ROUNDING) + 1e-3:
        yield finding(Rule.ARITHMETIC, record, "epoch_s", "the epoch is shorter than its timed steps")


def _computed(record: Record) -> Iterator[Finding]:
    """Find an accelerator that is not the cell's: of another kind, faster than its emulation sleeps, or there where none is."""
    compute = record.cell.compute
    if record.au_kind != compute.kind:
        yield finding(Rule.ARITHMETIC, record, "au_kind", f"{record.au_kind}, but {compute} was asked for")
    if compute.kind is ComputeKind.EMULATED:
        least_s = record.timed_steps * compute.milliseconds / 1000
        if record.compute_s < least_s * (1 - _SLEEP_FRAC):
            message = (
                f"{record.compute_s:.6g} s, but {record.timed_steps} steps of {compute} take {least_s:.6g} s"
            )
            yield finding(Rule.ARITHMETIC, record, "compute_s", message)
    # Ranks that load together wait for each other within a step.
    alone = record.cell.ranks == 1
    if compute.kind is ComputeKind.NONE and alone and record.compute_s > _unexplained_most_s(record):
        message = f"{record.compute_s:.6g} s, but a cell that only loads computes nothing"
        yield finding(Rule.ARITHMETIC, record, "compute_s", message)


def _unexplained_most_s(record: Record) -> float:
    return max(_OVERHEAD_EPOCH_S, _OVERHEAD_STEP_S * record.timed_steps, _OVERHEAD_FRAC * record.timed_s)


def _idle_s(record: Record) -> float:
    """Return the mean time for which the ranks of a job had ended, or not begun, while another rank was at work."""
    ranks = record.job.per_rank if record.job else ()
    return record.timed_s - statistics.fmean(rank.seconds for rank in ranks) if ranks else 0.0


def _spans(record: Record) -> Iterator[Finding]:
    """Find a wait that is shorter than the producer's work in the same process."""
    # With one reader per node, the spans of its batches stand beside every rank that got a piece.
    made_elsewhere = record.cell.workers or record.cell.share is Share.NODE
    if made_elsewhere or record.timed_steps != record.steps or record.cell.backend.is_null:
        return
    worked = record.fetch_s + record.decode_s + record.prep_s
    most = record.data_wait_s * (1 + _SPANS_FRAC) + _SPANS_STEP_S * record.steps
    if worked > most:
        message = (
            f"{record.data_wait_s:.4g} s, but fetch, decode and prep in the same process took {worked:.4g} s"
        )
        yield finding(Rule.ARITHMETIC, record, "data_wait_s", message)


def decodes(record: Record) -> bool:
    """Return whether every sample of the epoch had to be decoded: neither its opening nor a data store decoded it."""
    cell, cache = record.cell, record.cache
    by_opening = cache is None or cache.applies_to == "open"
    return not (
        cell.backend.codec == "raw" or cell.backend.is_null or cell.share is Share.STORE or by_opening
    )


def _decoded(record: Record) -> Iterator[Finding]:
    """Find samples that took no time to decode: kept from an earlier time, or decoded within a fetch that does not say so."""
    least_s = _DECODE_STEP_S * record.timed_steps + _DECODE_SAMPLE_S * record.timed_samples
    if decodes(record) and record.timed_samples and record.decode_s < least_s:
        message = (
            f"{record.decode_s:.2g} s for {record.timed_samples} samples stored as {record.cell.backend.codec}: the reader"
            " keeps decoded pixels, or does not report its decoding"
        )
        yield finding(Rule.ARITHMETIC, record, "decode_s", message)


def _payload(record: Record) -> Iterator[Finding]:
    """Find a payload that the store cannot have served: samples of raw pixels all have the same size.

    A reader that holds decoded samples serves pixels, whatever the codec of the store.
    """
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


def _rates(record: Record) -> Iterator[Finding]:
    if record.timed_s <= 0 or record.timed_samples <= 0:
        yield finding(Rule.ARITHMETIC, record, "timed_samples", "no sample was timed, so there is no rate")
        return
    busy = record.data_wait_s + record.h2d_s + record.compute_s
    expected = {
        "samples_per_s": record.timed_samples / record.timed_s,
        "data_wait_frac": record.data_wait_s / busy if busy else record.data_wait_frac,
        "accelerator_util_frac": record.compute_s / record.timed_s,
    }
    for name, right in expected.items():
        recorded = getattr(record, name)
        if recorded is not None and not agree(recorded, right):
            yield finding(
                Rule.ARITHMETIC, record, name, f"{recorded:.6g}, but the raw figures give {right:.6g}"
            )
    if record.prefetched_samples > PREFETCHED_MOST_FRAC * record.timed_samples:
        share = record.prefetched_samples / record.timed_samples
        message = (
            f"{share:.0%} of the timed samples had been begun before the clock: serve more samples per epoch"
        )
        yield finding(Rule.ARITHMETIC, record, "prefetched_samples", message)
    if record.timed_samples > record.samples or record.timed_steps > record.steps:
        message = f"{record.timed_samples} timed of {record.samples} served"
        yield finding(Rule.ARITHMETIC, record, "timed_samples", message)
    most = record.payload_bytes / record.timed_s
    if record.payload_bytes_per_s > most * (1 + ROUNDING):
        message = f"{record.payload_bytes_per_s:.6g}, but all payload over the timed seconds is {most:.6g}"
        yield finding(Rule.ARITHMETIC, record, "payload_bytes_per_s", message)


def _order(record: Record) -> Iterator[Finding]:
    wait = record.data_wait_ns
    if wait is not None and not 0 <= wait.p50 <= wait.p95 <= wait.p99 <= wait.max:
        message = f"p50 {wait.p50}, p95 {wait.p95}, p99 {wait.p99} and max {wait.max} are not in order"
        yield finding(Rule.ARITHMETIC, record, "data_wait_ns", message)
    if wait is not None and wait.max > (record.data_wait_s * record.cell.ranks + 1e-6) * 1e9:
        message = f"the longest wait ({wait.max} ns) is longer than all of them ({record.data_wait_s} s)"
        yield finding(Rule.ARITHMETIC, record, "data_wait_ns", message)


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
            f"{seen.duplicates} duplicates, {seen.missing} missing, {seen.pixels_wrong} with wrong pixels"
            f" among {seen.served} served"
        )
        yield finding(Rule.COVERAGE, record, "coverage", message)


def _cache(record: Record) -> Iterator[Finding]:
    cache = record.cache
    if cache is None:
        if record.cell.cache != CacheState.ANY and not record.cell.backend.is_null:
            yield finding(
                Rule.CACHE,
                record,
                "cache",
                f"the cell is {record.cell.cache}, but no resident pages were counted",
            )
        return
    if cache.verdict is CacheVerdict.FAILED:
        yield finding(
            Rule.CACHE, record, "cache.verdict", "the cache state failed, but the record is not failed"
        )
    before, after = cache.resident_frac_before, cache.resident_frac_after
    if cache.verdict is not CacheVerdict.VERIFIED or cache.applies_to == "open":
        return
    yield from _other_nodes(record)
    if before is None:
        yield finding(Rule.CACHE, record, "resident_frac_before", "called verified, but nothing was counted")
    elif record.cell.cache == CacheState.COLD and before > COLD_MAX_FRAC:
        yield finding(Rule.CACHE, record, "resident_frac_before", f"called cold with {before:.1%} resident")
    elif record.cell.cache == CacheState.WARM and before < WARM_MIN_FRAC:
        yield finding(Rule.CACHE, record, "resident_frac_before", f"called warm with {before:.1%} resident")
    elif record.cell.cache == CacheState.WARM and after is not None and after < _WARM_LEFT_FRAC:
        message = f"called warm, but {after:.1%} was resident after the epoch"
        yield finding(Rule.CACHE, record, "resident_frac_after", message)
    elif record.cell.cache == CacheState.LIMITED:
        yield from _limited(record, cache)


def _other_nodes(record: Record) -> Iterator[Finding]:
    """Find a node after the first whose page cache was not in the state of the cell."""
    state = record.cell.cache
    for number, rank in enumerate(record.job.per_rank if record.job else ()):
        before = rank.resident_frac_before
        if before is None or not rank.node:
            continue
        warm = state == CacheState.COLD and before > COLD_MAX_FRAC
        cold = state == CacheState.WARM and before < WARM_MIN_FRAC
        if warm or cold:
            figure = f"job.per_rank[{number}].resident_frac_before"
            message = f"called {state} with {before:.1%} resident on node {rank.node}"
            yield finding(Rule.CACHE, record, figure, message)


def _limited(record: Record, cache: CacheFacts) -> Iterator[Finding]:
    """Find a limited page cache that held more of the store than its limit before or after an epoch."""
    if cache.limit_bytes is None or cache.limit_bytes != record.cell.memory_bytes:
        forced = "no limit" if cache.limit_bytes is None else format_bytes(cache.limit_bytes)
        limit = "nothing" if record.cell.memory_bytes is None else format_bytes(record.cell.memory_bytes)
        message = f"called limited to {limit}, but {forced} was in force"
        yield finding(Rule.CACHE, record, "cache.limit_bytes", message)
        return
    # `validation.limits` compares the samples in between with the limit.
    most = max(cache.resident_frac_before or 0.0, cache.resident_frac_after or 0.0)
    stored = record.store.file_bytes if record.store else 0
    if most * stored > LIMIT_HEADROOM * cache.limit_bytes:
        message = (
            f"called limited to {format_bytes(cache.limit_bytes)} with {most:.1%} of the store resident,"
            f" which is {size(most * stored)}"
        )
        yield finding(Rule.CACHE, record, "resident_frac_after", message)
