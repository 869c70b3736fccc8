"""Which replicates a run has, in which order, and how long they took: a pure function of its scenario and records."""

import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storebench.record.schema import Cell, Record

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
