"""The place of a process in a job, and the samples that it serves there: shards of an order."""

import os
import re
from collections.abc import Iterator, Mapping
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


def membership(environment: Mapping[str, str] = os.environ) -> Membership:
    """Return the place of this process in its job, from the first launcher whose variables are set."""
    for rank, read in _LAUNCHERS.items():
        if rank in environment:
            return _checked(read(_Variables(environment)), rank)
    return Membership()


class _Variables:
    """Numbers among environment variables."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def number(self, *names: str, default: int | None = None) -> int:
        """Return the number in the first variable that is set, or the default."""
        name = next((name for name in names if name in self._environment), None)
        if name is None:
            if default is not None:
                return default
            raise UsageError(
                f"the launcher has not set {names[0]}",
                hint="Start every rank in the same way, with torchrun or srun.",
            )
        text = self._environment[name]
        if not re.fullmatch(r"\d{1,9}", text):
            raise UsageError(f"{name} is not a number: {text!r}", where="environment")
        return int(text)

    def slurm_tasks(self, *names: str) -> list[int] | None:
        """Return the number of tasks per node, from Slurm's notation, such as ``4(x2),1``, or None if it is not set."""
        name = next((name for name in names if name in self._environment), None)
        if name is None:
            return None
        tasks: list[int] = []
        for part in self._environment[name].split(","):
            match = _SLURM_COUNT.fullmatch(part)
            nodes = int(match["nodes"] or 1) if match else 0
            if match is None or len(tasks) + nodes > _MOST_NODES:
                raise UsageError(
                    f"{name} is not a list of tasks: {self._environment[name]!r}", where="environment"
                )
            tasks += [int(match["tasks"])] * nodes
        return tasks


def _torchrun(variables: _Variables) -> Membership:
    ranks = variables.number("WORLD_SIZE")
    rank = variables.number("RANK")
    local_ranks = variables.number("LOCAL_WORLD_SIZE", default=ranks)
    return Membership(
        rank=rank,
        ranks=ranks,
        local_rank=variables.number("LOCAL_RANK", default=rank % max(1, local_ranks)),
        local_ranks=local_ranks,
        node=variables.number("GROUP_RANK", default=rank // max(1, local_ranks)),
    )


def _slurm(variables: _Variables) -> Membership:
    ranks = variables.number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    node = variables.number("SLURM_NODEID", default=0)
    tasks = variables.slurm_tasks("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    return Membership(
        rank=variables.number("SLURM_PROCID"),
        ranks=ranks,
        local_rank=variables.number("SLURM_LOCALID"),
        local_ranks=ranks if tasks is None or node >= len(tasks) else tasks[node],
        node=node,
    )


def _open_mpi(variables: _Variables) -> Membership:
    rank = variables.number("OMPI_COMM_WORLD_RANK")
    local_ranks = variables.number("OMPI_COMM_WORLD_LOCAL_SIZE")
    return Membership(
        rank=rank,
        ranks=variables.number("OMPI_COMM_WORLD_SIZE"),
        local_rank=variables.number("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_ranks=local_ranks,
        # Open MPI does not number nodes; by default it fills one after the other.
        node=rank // max(1, local_ranks),
    )


def _pmi(variables: _Variables) -> Membership:
    rank, ranks = variables.number("PMI_RANK"), variables.number("PMI_SIZE")
    local_ranks = variables.number("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", default=ranks)
    return Membership(
        rank=rank,
        ranks=ranks,
        local_rank=variables.number("MPI_LOCALRANKID", "PMI_LOCAL_RANK", default=rank % max(1, local_ranks)),
        local_ranks=local_ranks,
        node=rank // max(1, local_ranks),
    )


_LAUNCHERS = {
    "RANK": _torchrun,
    "SLURM_PROCID": _slurm,
    "OMPI_COMM_WORLD_RANK": _open_mpi,
    "PMI_RANK": _pmi,
}
"""Variable with the rank -> function that reads the variables of that launcher, the most specific launcher first."""


def _checked(membership: Membership, variable: str) -> Membership:
    fits = (
        membership.rank < membership.ranks
        and membership.local_rank < membership.local_ranks <= membership.ranks
    )
    if not fits:
        raise UsageError(
            f"rank {membership.rank} of {membership.ranks}, local rank {membership.local_rank} of {membership.local_ranks}: "
            f"the variables beside {variable} do not fit each other",
            where="environment",
            hint="Unset those of another launcher.",
        )
    return membership


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
