"""The shards of an epoch: which samples each rank serves in each step, from the epoch's order alone."""

from collections.abc import Iterator

import numpy as np

from storebench.formats.base import Indices


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
