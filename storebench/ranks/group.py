"""The ranks of a job as a group: waiting for each other, and passing values, outside of everything that is timed."""

import os
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar, cast

from storebench.errors import CellFailedError
from storebench.ranks.heartbeat import NO_PROGRESS, RankProgress
from storebench.ranks.membership import Membership
from storebench.system.processes import fork_when_settled

if TYPE_CHECKING:  # a process that is alone does not load it
    from torch._C._distributed_c10d import TCPStore

# Time to reach the rendezvous, which is there before any rank is started.
CONNECT_S = 8.0

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

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0 on every rank."""
        return value

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

    def broadcast(self, value: T) -> T:
        places = [value]
        with self.progress.waiting():
            self._dist.broadcast_object_list(places, src=0)
        return places[0]

    def close(self) -> None:
        self.barrier()
        self._dist.destroy_process_group()


def join(
    membership: Membership,
    device: str,
    timeout_s: float,
    *,
    progress: RankProgress = NO_PROGRESS,
    connect_s: float = CONNECT_S,
) -> Group:
    """Join the other ranks of a job that torchrun has started, and return the group."""
    import torch
    import torch.distributed as dist

    fork_when_settled()  # the workers of its loader are forked, beside the threads of gloo
    store = _rendezvous(connect_s)
    timeout = timedelta(seconds=timeout_s)
    store.set_timeout(timeout)
    on_gpus = device.startswith("cuda")
    if on_gpus:
        torch.cuda.set_device(device)
    with progress.waiting():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpus else "gloo",
            store=dist.PrefixStore("storebench", store),  # type: ignore[attr-defined]
            rank=membership.rank,
            world_size=membership.ranks,
            timeout=timeout,
        )
    return TorchGroup(membership, progress)


def _rendezvous(connect_s: float) -> "TCPStore":
    """Return a connection to the store by which ranks find each other; torchrun has set its address."""
    import torch.distributed as dist

    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    try:
        store: TCPStore = dist.TCPStore(  # type: ignore[attr-defined]
            host, int(port), is_master=False, timeout=timedelta(seconds=connect_s)
        )
    except (RuntimeError, ValueError):  # torch raises one for a connection that fails, the other for no port
        raise CellFailedError(
            f"the rendezvous at {host}:{port} cannot be reached within {connect_s:g} s",
            hint="Look for a firewall, or for a host name that other nodes cannot resolve.",
        ) from None
    return store


def lost_another(error: BaseException) -> bool:
    """Whether an error only says that another rank has gone."""
    import torch.distributed as dist

    if isinstance(error, dist.DistError | LostRankError):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(lost in words for lost in _LOST)


# The group of a process that has no others.
ALONE = Group()
