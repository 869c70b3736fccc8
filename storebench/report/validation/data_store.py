"""Rules for a data store in memory: each sample has one owner, messages add up, and a full data store reads nothing."""

import math
from collections.abc import Iterator, Sequence

from storebench.ranks.merging import rank_tables
from storebench.report.validation.findings import Finding, Rule, finding
from storebench.results import DataStoreFacts, Record, StoreFacts
from storebench.settings.words import Fill, Share
from storebench.training.step_table import StepTable

_READ_MOST_FRAC = 0.05
_READ_MOST_BYTES = 16 << 20
"""An epoch from memory that reads more than this from a device has read the store. Less may be pages of libraries."""

_CLOCK_S = 1e-6
"""Tolerance for sums of times recorded in nanoseconds."""


def check_data_store(record: Record) -> Iterator[Finding]:
    """Yield the findings about the data store of one usable record; none for a record whose cell has none."""
    if record.job is None:
        return
    held = [rank.data_store for rank in record.job.per_rank]
    has = record.cell.share is Share.STORE
    for number, facts in enumerate(held):
        if (facts is not None) is not has:
            message = "facts about its data store are missing" if has else "its cell has no data store"
            yield finding(Rule.SCHEMA, record, f"job.per_rank[{number}].data_store", message)
            return
    parts = [facts for facts in held if facts is not None]
    if parts:
        yield from _samples(record, parts)
        yield from _messages(record, parts)
        yield from _reads(record, parts)


def check_waits(record: Record, steps: StepTable) -> Iterator[Finding]:
    """Find ranks that waited for messages longer than for their batches; no rate would include that time.

    Parameters
    ----------
    steps
        The step table of the job, one row per step and rank of the cell.
    """
    ranks = record.job.per_rank if record.job else ()
    for number, (rank, table) in enumerate(zip(ranks, rank_tables(steps), strict=False)):
        held, wait_s = rank.data_store, float(table["data_wait_ns"].sum()) / 1e9
        # In older records, `waited_s` includes the wait after the last batch.
        if held is None or held.after_last_s is None or held.waited_s <= wait_s + _CLOCK_S:
            continue
        message = f"{held.waited_s:.6g} s, but the rank waited {wait_s:.6g} s for its batches"
        yield finding(Rule.STEPS, record, f"job.per_rank[{number}].data_store.waited_s", message)


def _samples(record: Record, parts: Sequence[DataStoreFacts]) -> Iterator[Finding]:
    """Find samples with two owners or none, and samples of unknown origin."""
    count = record.store.count if record.store else 0
    held = sum(part.held_samples for part in parts)
    if record.store is not None and held != count:
        message = f"the ranks hold {held} samples, but the store has {count}"
        yield finding(Rule.COVERAGE, record, "data_store.held_samples", message)
    held_bytes = sum(part.held_bytes for part in parts)
    if record.store is not None and held == count and held_bytes not in _whole_bytes(record.store):
        message = f"the ranks hold {held_bytes} bytes, but the store has {record.store.payload_bytes}"
        yield finding(Rule.ARITHMETIC, record, "data_store.held_bytes", message)
    served = sum(part.from_store + part.from_memory + part.from_ranks for part in parts)
    if served != record.samples:
        message = f"the origin of {served} samples is recorded, but {record.samples} were served"
        yield finding(Rule.ARITHMETIC, record, "data_store.from_memory", message)


def _whole_bytes(store: StoreFacts) -> tuple[int, int]:
    """Return the bytes of all samples of a store: as payloads, and as pixels, which some readers deliver."""
    return store.payload_bytes, store.count * math.prod(store.image_shape)


def _messages(record: Record, parts: Sequence[DataStoreFacts]) -> Iterator[Finding]:
    """Find messages that were sent but not received, and contradictory times."""
    sent, received = sum(part.sent_bytes for part in parts), sum(part.received_bytes for part in parts)
    if sent != received:
        message = f"{sent} bytes were sent, but {received} received"
        yield finding(Rule.ARITHMETIC, record, "data_store.sent_bytes", message)
    if any(part.waited_s + (part.after_last_s or 0) > part.exchange_s + _CLOCK_S for part in parts):
        message = "a rank waited for messages longer than its exchange took"
        yield finding(Rule.ARITHMETIC, record, "data_store.waited_s", message)


def _reads(record: Record, parts: Sequence[DataStoreFacts]) -> Iterator[Finding]:
    """Find reads of the store after the data store was filled, and messages before."""
    fills = record.cell.store_fill is Fill.FIRST_EPOCH and record.epoch == 0
    if fills:
        early = sum(part.from_memory + part.from_ranks for part in parts)
        if early:
            message = f"{early} samples came from memory in the epoch that fills it"
            yield finding(Rule.CACHE, record, "data_store.from_memory", message)
        return
    late = sum(part.from_store for part in parts)
    if late:
        message = f"{late} samples were read from the store after the data store was filled"
        yield finding(Rule.CACHE, record, "data_store.from_store", message)
    read = record.counters.device_read_bytes
    if read is not None and read > max(_READ_MOST_BYTES, _READ_MOST_FRAC * record.payload_bytes):
        share = read / max(1, record.payload_bytes)
        message = f"served from memory, but the device delivered {share:.0%} of the requested bytes"
        yield finding(Rule.CACHE, record, "device_read_bytes", message)
