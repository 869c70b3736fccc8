"""The ranks of a job as a group: waiting for each other, and passing values, outside of everything that is timed."""

from datetime import timedelta
from typing import TypeVar, cast

from storebench.errors import CellFailedError
from storebench.ranks.heartbeat import NO_PROGRESS, RankProgress
from storebench.ranks.membership import Membership
from storebench.system.processes import fork_when_settled

# Words of torch.distributed's errors when another rank has gone, in lower case.
_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connectfullmesh",
    "gloo",
    "nccl",
)

T = TypeVar("T")


class LostRankError(CellFailedError):
    """Another rank has ended, so this one cannot go on."""


class Group:
    """The ranks of a job; every rank calls the same methods in the same order. This one has a single rank."""

    membership = Membership()

    def __init__(self, progress: RankProgress = NO_PROGRESS) -> None:
        self.progress = progress

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def gather(self, value: T) -> list[T] | None:
        """Return the values of all ranks, in their order, on rank 0; None on the others."""
        return [value]

    def exchange(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order, on every rank."""
        return [value]

    def close(self) -> None:
        """Leave the group when all ranks do."""


class TorchGroup(Group):
    """The default process group of torch.distributed, which this process has joined."""

    def __init__(self, membership: Membership, progress: RankProgress = NO_PROGRESS) -> None:
        import torch.distributed as dist

        super().__init__(progress)
        self.membership = membership
        self._dist = dist

    def barrier(self) -> None:
        with self.progress.waiting():
            self._dist.barrier()

    def gather(self, value: T) -> list[T] | None:
        places: list[T | None] | None = [None] * self.membership.ranks if self.membership.leads else None
        with self.progress.waiting():
            self._dist.gather_object(value, places)
        return cast("list[T] | None", places)

    def exchange(self, value: T) -> list[T]:
        places: list[T | None] = [None] * self.membership.ranks
        with self.progress.waiting():
            self._dist.all_gather_object(places, value)
        return cast("list[T]", places)

    def close(self) -> None:
        self.barrier()
        self._dist.destroy_process_group()


def join(membership: Membership, device: str, timeout_s: float, progress: RankProgress) -> Group:
    """Join the other ranks of a job that torchrun has started, and return the group."""
    import torch
    import torch.distributed as dist

    fork_when_settled()  # the workers of its loader are forked, beside the threads of gloo
    on_gpus = device.startswith("cuda")
    if on_gpus:
        torch.cuda.set_device(device)
    with progress.waiting():
        backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    return TorchGroup(membership, progress)


def lost_another(error: BaseException) -> bool:
    """Whether an error only says that another rank has gone."""
    import torch.distributed as dist

    if isinstance(error, dist.DistError | LostRankError):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(lost in words for lost in _LOST)


# The group of a process that has no others.
ALONE = Group()
