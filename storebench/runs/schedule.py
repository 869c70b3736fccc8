"""Which replicates a run has, and in which order: a pure function of its scenario and of the rounds that it added."""

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storebench.results import Cell, Record

ReplicateKey = tuple[str, int]
"""Cell id and number of a replicate."""


def replicate_key(record: Record) -> ReplicateKey:
    """Return the replicate that a record belongs to."""
    return record.cell.cell_id, record.replicate


def is_whole(records: Sequence[Record]) -> bool:
    """Return whether the records of a replicate, at least one, cover every epoch of it."""
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


@dataclass(frozen=True, kw_only=True)
class AddedRound:
    """A round that a run added because ratios were not precise enough."""

    replicate: int
    cell_ids: tuple[str, ...]


def added_rounds(about: Mapping[str, Any]) -> tuple[AddedRound, ...]:
    """Return the rounds that a ``run.json`` lists beyond those of every cell."""
    rows = about.get("added_rounds", ())
    return tuple(AddedRound(replicate=row["replicate"], cell_ids=tuple(row["cell_ids"])) for row in rows)


def schedule(
    cells: Sequence[Cell], replicates: int, seed: int, fewer: Mapping[Cell, int] | None = None
) -> list[PendingReplicate]:
    """Return every replicate of every cell, round by round, each round in its own random order."""
    numbers = fewer or {}
    work = [pending for replicate in range(replicates) for pending in round_of(cells, replicate, seed)]
    return [pending for pending in work if pending.replicate < numbers.get(pending.cell, replicates)]


def round_of(
    cells: Sequence[Cell], replicate: int, seed: int, only: Collection[str] | None = None
) -> list[PendingReplicate]:
    """Return one round in its random order."""
    drawn = random.Random(f"{seed}:{replicate}")
    blocks: defaultdict[Any, list[Cell]] = defaultdict(list)
    for cell in cells:
        blocks[cell.compared_with].append(cell)
    drawn_blocks = list(blocks.values())
    drawn.shuffle(drawn_blocks)
    order = [cell for block in drawn_blocks for cell in drawn.sample(block, len(block))]
    return [
        PendingReplicate(cell=cell, replicate=replicate)
        for cell in order
        if only is None or cell.cell_id in only
    ]
