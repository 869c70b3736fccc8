"""The time that the replicates of a run took, from their records."""

import statistics
from collections.abc import Iterable

from storebench.results import Record
from storebench.rounds import Costs


def costs_of(records: Iterable[Record]) -> Costs:
    """Return the durations of a run's replicates; both attempts at a repeated one count as long as the second."""
    took: dict[str, dict[int, float]] = {}
    for record in records:
        if record.conditions is not None:  # the same in each epoch of a replicate
            wall_s = record.conditions.wall_s * record.conditions.attempt
            took.setdefault(record.cell.cell_id, {})[record.replicate] = wall_s + record.conditions.start_s
    return Costs(
        spent_s=sum(sum(walls.values()) for walls in took.values()),
        cell_s={cell_id: statistics.median(walls.values()) for cell_id, walls in took.items()},
    )
