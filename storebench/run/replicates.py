"""The replicates of a run: their order, how long they took, and which count because they held their cell's state."""

import dataclasses
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storebench.probes.limited_cache import LIMIT_HEADROOM
from storebench.probes.page_cache import COLD_MAX_FRAC, WARM_MIN_FRAC
from storebench.probes.residency import SAMPLING_ERROR_FRAC
from storebench.record.schema import CacheVerdict, Cell, Record
from storebench.settings.words import CacheState, Fill, Share
from storebench.units import format_bytes

# A cell of which fewer replicates count has no rate; a cell with fewer replicates needs all of them.
FEWEST_SOUND = 3

# A replicate that was disturbed, or did not hold its state, is measured again at most twice.
MOST_ATTEMPTS = 3

# Least share of a store that a warm epoch may leave resident; the kernel reclaims pages that are idle.
_WARM_LEFT_FRAC = 0.9

# What a warm epoch may take from a device: the machine may reclaim pages, and read its libraries.
_WARM_MOST_FRAC, _WARM_MOST_BYTES, _WARM_OTHER_BYTES = 0.05, 16 << 20, 2 << 20

# Cell id and number of a replicate.
ReplicateKey = tuple[str, int]


def replicate_key(record: Record) -> ReplicateKey:
    """Return the replicate that a record belongs to."""
    return record.cell.cell_id, record.replicate


def is_whole(records: Sequence[Record]) -> bool:
    """Whether the records of a replicate, at least one, cover every epoch of it."""
    return len({record.epoch for record in records}) >= records[0].cell.epochs


@dataclass(frozen=True, kw_only=True)
class PendingReplicate:
    """One replicate of one cell that has not run yet."""

    cell: Cell
    replicate: int

    @property
    def key(self) -> ReplicateKey:
        """Cell id and number of the replicate."""
        return self.cell.cell_id, self.replicate


def schedule(
    cells: Sequence[Cell], replicates: int, seed: int, fewer: Mapping[Cell, int] | None = None
) -> list[PendingReplicate]:
    """Return every replicate of every cell, round by round, each round in its own random order."""
    numbers = fewer or {}
    work = [pending for replicate in range(replicates) for pending in round_of(cells, replicate, seed)]
    return [pending for pending in work if pending.replicate < numbers.get(pending.cell, replicates)]


def round_of(cells: Sequence[Cell], replicate: int, seed: int) -> list[PendingReplicate]:
    """Return one round in its random order."""
    drawn = random.Random(f"{seed}:{replicate}")
    blocks: defaultdict[Any, list[Cell]] = defaultdict(list)
    for cell in cells:
        blocks[cell.compared_with].append(cell)
    drawn_blocks = list(blocks.values())
    drawn.shuffle(drawn_blocks)
    order = [cell for block in drawn_blocks for cell in drawn.sample(block, len(block))]
    return [PendingReplicate(cell=cell, replicate=replicate) for cell in order]


def durations(records: Iterable[Record]) -> dict[ReplicateKey, float]:
    """Return the seconds of each replicate; all attempts at it count as long as the one that stands."""
    return {
        replicate_key(record): record.conditions.wall_s * record.conditions.attempt
        for record in records
        if record.conditions is not None  # the same in each epoch of a replicate
    }


def round_s(took: Mapping[ReplicateKey, float], cell_ids: Iterable[str]) -> float:
    """Return the seconds that a round of some cells should take: the sum of the medians so far."""
    by_cell: defaultdict[str, list[float]] = defaultdict(list)
    for (cell_id, _), seconds in took.items():
        by_cell[cell_id].append(seconds)
    return sum(statistics.median(by_cell[cell_id]) for cell_id in cell_ids if cell_id in by_cell)


def enough(sound: int, measured: int) -> bool:
    """Whether this number of a cell's replicates is enough for a rate."""
    return sound >= min(FEWEST_SOUND, measured)


def failures(records: Sequence[Record]) -> list[Record]:
    """Return the records that failed, and those that did not hold their state in a cell that has no rate for it."""
    replicates: dict[str, dict[int, list[Record]]] = {}
    for record in records:
        replicates.setdefault(record.cell.cell_id, {}).setdefault(record.replicate, []).append(record)
    without_rate = {
        cell_id
        for cell_id, of in replicates.items()
        if not enough(sum(not unsound(epochs) for epochs in of.values()), len(of))
    }
    return [
        record
        for record in records
        if (record.cell.cell_id in without_rate if unsound([record]) else record.failed)
    ]


def unsound(records: Sequence[Record]) -> str:
    """Return the reason why the state of a replicate did not hold, so that it does not count, or ""."""
    return next((message for record in records for _, message in shortcomings(record)), "")


def mostly_disturbed(replicates: Sequence[Sequence[Record]]) -> bool:
    """Whether other work disturbed at least half of some replicates, so that it would again."""
    conditions = [records[0].conditions for records in replicates]
    return 2 * sum(bool(each and each.disturbed) for each in conditions) >= len(conditions)


def wants_repeat(records: Sequence[Record], *, is_busy: bool) -> bool:
    """Whether a replicate is worth another attempt; on a busy machine, other work disturbs that one as well."""
    conditions = records[0].conditions
    if conditions is None or conditions.attempt >= MOST_ATTEMPTS:
        return False
    if unsound(records):
        return True
    return bool(conditions.disturbed) and not is_busy and not any(record.failed for record in records)


def badness(records: Sequence[Record]) -> int:
    """Return a number that is larger the less sound an attempt at a replicate is."""
    conditions = records[0].conditions
    if any(record.failed for record in records):
        return 3
    return 2 if unsound(records) else int(bool(conditions and conditions.disturbed))


def counted(record: Record, attempt: int) -> Record:
    """Return a record with the number of attempts so far."""
    if record.conditions is None:
        return record
    return dataclasses.replace(record, conditions=dataclasses.replace(record.conditions, attempt=attempt))


def shortcomings(record: Record) -> Iterator[tuple[str, str]]:
    """Yield figure and reason of everything for which the replicate of a record does not count.

    It concerns this replicate alone: the same cell may be sound in another round.
    """
    cache, tier = record.cache, record.tier
    if tier is not None and tier.exceeded:
        yield "tier", f"the storage was not emulated: {tier.exceeded}"
    if record.failed:
        if cache is not None and cache.verdict is CacheVerdict.FAILED:
            yield "cache.verdict", f"the cache was not {cache.requested}: {cache.reason}"
        return
    yield from _read(record)
    if cache is not None and cache.applies_to != "open" and cache.verdict is CacheVerdict.VERIFIED:
        yield from _above_limit(record) if record.cell.cache == CacheState.LIMITED else _resident(record)


def _read(record: Record) -> Iterator[tuple[str, str]]:
    """Find a warm epoch, or one from a full data store, that read its store from a device."""
    read, store, cell = record.counters.device_read_bytes, record.store, record.cell
    if read is None or cell.backend.is_null:
        return
    most = max(_WARM_MOST_BYTES, _WARM_MOST_FRAC * record.payload_bytes)
    held = cell.share is Share.STORE and not (cell.store_fill is Fill.FIRST_EPOCH and record.epoch == 0)
    if store is not None and cell.cache == CacheState.WARM:
        nodes = record.job.nodes if record.job else 1
        on_disk = max(store.bytes_on_disk, store.file_bytes)
        most = min(most, nodes * (_WARM_OTHER_BYTES + _WARM_MOST_FRAC * on_disk))
    if (cell.cache == CacheState.WARM or held) and read > most:
        called = "warm" if cell.cache == CacheState.WARM else "served from memory"
        permitted = format_bytes(round(most))
        yield (
            "device_read_bytes",
            f"called {called}, but the device delivered {format_bytes(read)}, and {permitted} are permitted",
        )


def _resident(record: Record) -> Iterator[tuple[str, str]]:
    """Find a cold or warm state that the counted pages do not show, on any node."""
    cache, state = record.cache, record.cell.cache
    assert cache is not None
    others = [rank.resident_frac_before for rank in (record.job.per_rank if record.job else ()) if rank.node]
    before = [share for share in (cache.resident_frac_before, *others) if share is not None]
    after = cache.resident_frac_after
    if state == CacheState.COLD and before and max(before) > COLD_MAX_FRAC:
        yield "resident_frac_before", f"called cold with {max(before):.1%} resident"
    elif state == CacheState.WARM and before and min(before) < WARM_MIN_FRAC:
        yield "resident_frac_before", f"called warm with {min(before):.1%} resident"
    elif state == CacheState.WARM and after is not None and after < _WARM_LEFT_FRAC:
        yield "resident_frac_after", f"called warm, but {after:.1%} was resident after the epoch"


def _above_limit(record: Record) -> Iterator[tuple[str, str]]:
    """Find a limited page cache that held more of the store than its limit."""
    cache, limit = record.cache, record.cell.memory_bytes
    assert cache is not None
    if limit is None or record.store is None:
        return
    stored = record.store.file_bytes
    ends = max(cache.resident_frac_before or 0.0, cache.resident_frac_after or 0.0) * stored
    sampled = max([*(point.resident_frac for point in cache.curve), cache.resident_max_frac or 0.0]) * stored
    error = min(cache.sampling_error_frac, SAMPLING_ERROR_FRAC) * stored
    if ends > LIMIT_HEADROOM * limit or sampled > LIMIT_HEADROOM * limit + error:
        held = format_bytes(round(max(ends, sampled)))
        yield (
            "resident_max_frac",
            f"{held} of the store were resident, above the limit of {format_bytes(limit)}",
        )
