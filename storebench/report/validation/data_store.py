"""The rules of a data store in memory: who holds the samples, what was sent, and that nothing is read once it is filled."""

from collections.abc import Iterator, Sequence

from storebench.ranks.merging import rank_tables
from storebench.report.validation.findings import Finding, Kind, finding
from storebench.results import DataStoreFacts, Record
from storebench.settings.words import CacheState, Fill, Share
from storebench.training.step_table import StepTable

_READ_MOST_FRAC = 0.05
_READ_MOST_BYTES = 16 << 20
"""An epoch from memory that took more than this from a device read the store; less may be pages of libraries."""

_RESIDENT_MOST_FRAC = 0.05
"""Share of the store that may become resident: read-ahead that the kernel had begun before it was evicted."""

_CLOCK_S = 1e-6
"""Tolerance for sums of times that are kept in nanoseconds."""


def check_data_store(record: Record) -> Iterator[Finding]:
    """Yield the findings about the data store of one usable record; none for a record whose cell has none."""
    if record.job is None:
        return
    held = [rank.data_store for rank in record.job.per_rank]
    has = record.cell.share is Share.STORE
    for number, facts in enumerate(held):
        if (facts is not None) is not has:
            message = "nothing is said of its part of the data store" if has else "its cell has no data store"
            yield finding(Kind.SCHEMA, record, f"job.per_rank[{number}].data_store", message)
            return
    parts = [facts for facts in held if facts is not None]
    if parts:
        yield from _samples(record, parts)
        yield from _messages(record, parts)
        yield from _reads(record, parts)


def check_waits(record: Record, steps: StepTable) -> Iterator[Finding]:
    """Yield ranks that waited for messages longer than for their batches: the time would be in no rate.

    Parameters
    ----------
    steps
        The step table of the job, one row per step and rank: as many ranks as the cell has.
    """
    ranks = record.job.per_rank if record.job else ()
    for number, (rank, table) in enumerate(zip(ranks, rank_tables(steps), strict=False)):
        held, wait_s = rank.data_store, float(table["data_wait_ns"].sum()) / 1e9
        # In earlier releases the wait after the last batch is included.
        if held is None or held.after_last_s is None or held.waited_s <= wait_s + _CLOCK_S:
            continue
        message = f"{held.waited_s:.6g} s, but the rank waited {wait_s:.6g} s for its batches"
        yield finding(Kind.STEPS, record, f"job.per_rank[{number}].data_store.waited_s", message)


def _samples(record: Record, parts: Sequence[DataStoreFacts]) -> Iterator[Finding]:
    """Find samples that are held twice or by nobody, and samples of unknown origin."""
    count = record.store.count if record.store else 0
    held = sum(part.held_samples for part in parts)
    if record.store is not None and held != count:
        message = f"the ranks hold {held} samples, and the store has {count}"
        yield finding(Kind.COVERAGE, record, "data_store.held_samples", message)
    served = sum(part.from_store + part.from_memory + part.from_ranks for part in parts)
    if served != record.samples:
        message = f"the origin of {served} samples is counted, and {record.samples} were served"
        yield finding(Kind.ARITHMETIC, record, "data_store.from_memory", message)


def _messages(record: Record, parts: Sequence[DataStoreFacts]) -> Iterator[Finding]:
    """Find messages that were sent and not received, and times that contradict each other."""
    sent, received = sum(part.sent_bytes for part in parts), sum(part.received_bytes for part in parts)
    if sent != received:
        message = f"{sent} bytes were sent, and {received} received"
        yield finding(Kind.ARITHMETIC, record, "data_store.sent_bytes", message)
    if any(part.waited_s + (part.after_last_s or 0) > part.exchange_s + _CLOCK_S for part in parts):
        message = "a rank waited for messages longer than the whole exchange took"
        yield finding(Kind.ARITHMETIC, record, "data_store.waited_s", message)


def _reads(record: Record, parts: Sequence[DataStoreFacts]) -> Iterator[Finding]:
    """Find reads of the store after the data store was filled, and messages while it was being filled."""
    fills = record.cell.store_fill is Fill.FIRST_EPOCH and record.epoch == 0
    if fills:
        early = sum(part.from_memory + part.from_ranks for part in parts)
        if early:
            message = f"{early} samples came from memory in the epoch that fills it"
            yield finding(Kind.CACHE, record, "data_store.from_memory", message)
        return
    late = sum(part.from_store for part in parts)
    if late:
        message = f"{late} samples were read from the store after the data store was filled"
        yield finding(Kind.CACHE, record, "data_store.from_store", message)
    read = record.counters.device_read_bytes
    spilled = sum(part.spilled_bytes for part in parts)
    if spilled and not record.cell.store_spill:
        message = f"{spilled} bytes of its samples were on disk, and its cell spills none"
        yield finding(Kind.CACHE, record, "data_store.spilled_bytes", message)
    if (
        read is not None
        and not (spilled and record.cell.store_spill)
        and read > max(_READ_MOST_BYTES, _READ_MOST_FRAC * record.payload_bytes)
    ):
        share = read / max(1, record.payload_bytes)
        message = f"served from memory, but the device delivered {share:.0%} of what was asked for"
        yield finding(Kind.CACHE, record, "device_read_bytes", message)
    yield from _residency(record)


def _residency(record: Record) -> Iterator[Finding]:
    """Find pages of an evicted store that became resident in an epoch that reads nothing.

    The store is evicted before each epoch after the one that fills the data store.
    """
    cell = record.cell
    if record.cache is None or cell.cache is not CacheState.COLD or cell.store_fill is not Fill.FIRST_EPOCH:
        return
    ranks = record.job.per_rank if record.job else ()
    nodes = {rank.node: (rank.resident_frac_before, rank.resident_frac_after) for rank in ranks}
    nodes[0] = record.cache.resident_frac_before, record.cache.resident_frac_after
    for node, (before, after) in sorted(nodes.items()):
        if before is not None and after is not None and after > before + _RESIDENT_MOST_FRAC:
            message = (
                f"served from memory, but the resident part of the store on node {node} grew from "
                f"{before:.1%} to {after:.1%}"
            )
            yield finding(Kind.CACHE, record, "resident_frac_after", message)
