"""The order of an epoch: decided by seed, epoch and replicate, the same for every format and any number of workers."""

from collections.abc import Iterator, Sequence

import numpy as np

from storebench.digests import array_digest
from storebench.formats.base import Indices


def epoch_order(count: int, *, seed: int, epoch: int, replicate: int = 0, shuffle: bool = True) -> Indices:
    """Return the order in which an epoch serves `count` samples, int64 [count]."""
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    return np.random.default_rng([seed, epoch, replicate]).permutation(count).astype(np.int64, copy=False)


def pass_orders(
    count: int, *, seed: int, epoch: int, passes: int, replicate: int = 0, shuffle: bool = True
) -> Iterator[Indices]:
    """Yield the order of each pass of an epoch, int64 [count]; no two passes of any epochs have the same number."""
    for turn in range(passes):
        yield epoch_order(count, seed=seed, epoch=epoch * passes + turn, replicate=replicate, shuffle=shuffle)


def split_batches(order: Indices, batch_size: int, max_steps: int | None = None) -> list[Indices]:
    """Cut an order into batches; the last one may be smaller, so that no sample is left out."""
    starts = range(0, len(order), batch_size)
    return [order[start : start + batch_size] for start in starts[:max_steps]]


def order_digest(served: Sequence[Indices]) -> str:
    return array_digest(joined(served))


def joined(batches: Sequence[Indices]) -> Indices:
    """Return the samples of some batches, int64 [n]."""
    return np.concatenate(batches) if len(batches) else np.empty(0, dtype=np.int64)
