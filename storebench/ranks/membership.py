"""The place of a process in a job, and the samples that it serves there: shards of an order."""

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from storebench.errors import UsageError
from storebench.formats.base import Indices


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The place of a process among the ranks of its job; by default it is the only one."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    node: int = 0

    @property
    def alone(self) -> bool:
        return self.ranks == 1

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes the job's records."""
        return self.rank == 0

    @property
    def leads_node(self) -> bool:
        """Whether this is the rank that prepares and counts the page cache of its node."""
        return self.local_rank == 0

    def __str__(self) -> str:
        return f"rank {self.rank} on node {self.node}"


# Variable of the rank -> that of their number; the most specific launcher first.
_LAUNCHERS = {
    "RANK": "WORLD_SIZE",
    "SLURM_PROCID": "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
}
# What torchrun says in addition; other launchers start one process per node.
_TORCHRUN = {"local_rank": "LOCAL_RANK", "local_ranks": "LOCAL_WORLD_SIZE", "node": "GROUP_RANK"}


def membership(environment: Mapping[str, str] = os.environ) -> Membership:
    """Return the place of this process in its job, from the first launcher whose variables are set."""
    launcher = next((name for name in _LAUNCHERS if name in environment), None)
    if launcher is None:
        return Membership()
    names = {"rank": launcher, "ranks": _LAUNCHERS[launcher]} | (_TORCHRUN if launcher == "RANK" else {})
    try:
        numbers = {field: int(environment[name]) for field, name in names.items()}
    except (KeyError, ValueError):
        raise UsageError(
            f"not all numbers: {', '.join(names.values())}",
            where="environment",
            hint="Start every rank in the same way, with torchrun or srun.",
        ) from None
    return Membership(**{"node": numbers["rank"]} | numbers)


def dealt(
    order: Indices, *, ranks: int, batch_size: int, pad: bool = False, max_steps: int | None = None
) -> Iterator[list[Indices]]:
    """Yield the batches of all ranks, step by step: contiguous pieces, earlier ranks get one more of an uneven step."""
    if pad:
        order = np.resize(order, -(-len(order) // ranks) * ranks)
    size = ranks * batch_size
    for start in range(0, len(order), size)[:max_steps]:
        samples = order[start : start + size]
        each, more = divmod(len(samples), ranks)
        ends = [rank * each + min(rank, more) for rank in range(ranks + 1)]
        yield [samples[begin:end] for begin, end in itertools.pairwise(ends)]
