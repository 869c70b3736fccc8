"""Communication of trainers: the process group of each, sums over its ranks, and networks in a game."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from storebench.ranks.trainers import Trainer


def trainer_group(trainer: Trainer, timeout_s: float) -> dist.ProcessGroup | None:
    """Return the process group of a trainer; None if it has all ranks, or one. All ranks call it together."""
    if 1 in (trainer.trainers, trainer.ranks):
        return None
    timeout = timedelta(seconds=timeout_s)
    # All ranks must create all groups.
    groups = [
        dist.new_group(list(trainer.members(number)), timeout=timeout) for number in range(trainer.trainers)
    ]
    group: dist.ProcessGroup = groups[trainer.number]
    return group


def summed(count: int, trainer: Trainer, group: dist.ProcessGroup | None) -> int:
    """Return the sum of a number over the ranks of a trainer."""
    if trainer.ranks == 1:
        return count
    total = torch.tensor(count, dtype=torch.int64)
    dist.all_reduce(total, group=group)
    return int(total)


def packed(state: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a copy of the tensors of a training, concatenated: float32 [n] in CPU memory."""
    return torch.cat([tensor.detach().reshape(-1).to("cpu", torch.float32) for tensor in state])


def unpack(content: torch.Tensor, state: Sequence[torch.Tensor]) -> None:
    """Write the content that `packed` returned into the tensors of a training."""
    pieces = torch.split(content, [tensor.numel() for tensor in state])
    with torch.no_grad():
        for tensor, piece in zip(state, pieces, strict=True):
            tensor.copy_(piece.view(tensor.shape))


def exchanged(own: torch.Tensor, peer: int) -> torch.Tensor:
    """Send a tensor to another rank, and return the tensor that it sends, of the same shape and type."""
    theirs = torch.empty_like(own)
    for work in (dist.isend(own, peer), dist.irecv(theirs, peer)):
        assert work is not None
        work.wait()
    return theirs
