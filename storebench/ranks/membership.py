"""The place of a process in a job, and the samples that it serves there: shards of an order."""

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


def shard_of(
    order: Indices,
    *,
    rank: int,
    ranks: int,
    batch_size: int,
    pad: bool = False,
    max_steps: int | None = None,
) -> list[Indices]:
    """Return the batches of one rank, one int64 array per step."""
    steps = _steps(order, ranks * batch_size, ranks, pad=pad)
    return [_piece(samples, rank, ranks) for samples in steps[:max_steps]]


def dealt(
    order: Indices, *, ranks: int, batch_size: int, pad: bool = False, max_steps: int | None = None
) -> Iterator[list[Indices]]:
    """Yield the batches of all ranks, step by step: one int64 array per rank, the same as in `shard_of`."""
    for samples in _steps(order, ranks * batch_size, ranks, pad=pad)[:max_steps]:
        yield [_piece(samples, rank, ranks) for rank in range(ranks)]


def global_sizes(
    count: int, *, ranks: int, batch_size: int, pad: bool = False, max_steps: int | None = None
) -> list[int]:
    """Return the number of samples in each step of a job, over all ranks."""
    whole = _padded(count, ranks) if pad else count
    step = ranks * batch_size
    return [min(step, whole - start) for start in range(0, whole, step)[:max_steps]]


def _steps(order: Indices, size: int, ranks: int, *, pad: bool) -> list[Indices]:
    """Return the samples of each step, over all ranks: `size` samples per step, fewer in the last one."""
    whole = np.resize(order, _padded(len(order), ranks)) if pad and len(order) else order
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def _padded(count: int, ranks: int) -> int:
    return -(-count // ranks) * ranks


def _piece(samples: Indices, rank: int, ranks: int) -> Indices:
    """Return a rank's contiguous piece of a step's samples; earlier ranks get one more of an uneven step."""
    each, more = divmod(len(samples), ranks)
    start = rank * each + min(rank, more)
    return samples[start : start + each + (rank < more)]
