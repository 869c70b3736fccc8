"""The place of a process in a job, and the samples that it serves there: shards of an order."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from storebench.errors import UsageError
from storebench.formats.base import Indices

_SLURM_COUNT = re.compile(r"(?P<tasks>\d+)(\(x(?P<nodes>\d+)\))?")
_MOST_NODES = 1_000_000


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
        """Whether the job has no other rank."""
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
        """Return the rank and the node in words."""
        return f"rank {self.rank} on node {self.node}"


_LAUNCHERS: dict[str, tuple[Sequence[str], ...]] = {
    "RANK": (["WORLD_SIZE"], ["LOCAL_RANK"], ["LOCAL_WORLD_SIZE"], ["GROUP_RANK"]),
    "SLURM_PROCID": (
        ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"],
        ["SLURM_LOCALID"],
        ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"],
        ["SLURM_NODEID"],
    ),
    # Open MPI and PMI do not number nodes; by default they fill one after the other.
    "OMPI_COMM_WORLD_RANK": (
        ["OMPI_COMM_WORLD_SIZE"],
        ["OMPI_COMM_WORLD_LOCAL_RANK"],
        ["OMPI_COMM_WORLD_LOCAL_SIZE"],
        [],
    ),
    "PMI_RANK": (
        ["PMI_SIZE"],
        ["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
        ["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        [],
    ),
}
"""Variable of the rank -> those of the ranks, the local rank, the local ranks and the node; the most specific launcher first."""


def membership(environment: Mapping[str, str] = os.environ) -> Membership:
    """Return the place of this process in its job, from the first launcher whose variables are set."""
    launcher = next((name for name in _LAUNCHERS if name in environment), None)
    if launcher is None:
        return Membership()
    ranks_names, local_rank_names, local_ranks_names, node_names = _LAUNCHERS[launcher]
    rank, ranks = _number(environment, [launcher]), _number(environment, ranks_names)
    if launcher == "SLURM_PROCID":
        node = _number(environment, node_names, default=0)
        tasks = _slurm_tasks(environment, local_ranks_names)
        local_ranks = tasks[node] if node < len(tasks) else ranks
    else:
        local_ranks = _number(environment, local_ranks_names, default=ranks)
        node = _number(environment, node_names, default=rank // max(1, local_ranks))
    local_rank = _number(environment, local_rank_names, default=rank % max(1, local_ranks))
    if not (rank < ranks and local_rank < local_ranks <= ranks):
        raise UsageError(
            f"rank {rank} of {ranks}, local rank {local_rank} of {local_ranks}: "
            f"the variables beside {launcher} do not fit each other",
            where="environment",
            hint="Unset those of another launcher.",
        )
    return Membership(rank=rank, ranks=ranks, local_rank=local_rank, local_ranks=local_ranks, node=node)


def _number(environment: Mapping[str, str], names: Sequence[str], *, default: int | None = None) -> int:
    """Return the number in the first variable that is set, or the default."""
    name = next((name for name in names if name in environment), None)
    if name is None:
        if default is not None:
            return default
        raise UsageError(
            f"the launcher has not set {names[0]}",
            hint="Start every rank in the same way, with torchrun or srun.",
        )
    if not re.fullmatch(r"\d{1,9}", environment[name]):
        raise UsageError(f"{name} is not a number: {environment[name]!r}", where="environment")
    return int(environment[name])


def _slurm_tasks(environment: Mapping[str, str], names: Sequence[str]) -> list[int]:
    """Return the number of tasks per node, from Slurm's notation, such as ``4(x2),1``; none if it is not set."""
    name = next((name for name in names if name in environment), "")
    tasks: list[int] = []
    for part in environment[name].split(",") if name else ():
        match = _SLURM_COUNT.fullmatch(part)
        nodes = int(match["nodes"] or 1) if match else 0
        if match is None or len(tasks) + nodes > _MOST_NODES:
            raise UsageError(f"{name} is not a list of tasks: {environment[name]!r}", where="environment")
        tasks += [int(match["tasks"])] * nodes
    return tasks


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
    """Return a rank's contiguous piece of a step's samples; earlier ranks get one more sample if the samples do not divide evenly."""
    each, more = divmod(len(samples), ranks)
    start = rank * each + min(rank, more)
    return samples[start : start + each + (rank < more)]
