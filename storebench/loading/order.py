"""The order of an epoch: decided by seed and epoch alone, the same for every format and any number of workers."""

from collections.abc import Sequence

import numpy as np

from storebench.formats.base import Indices


def epoch_order(count: int, *, seed: int, epoch: int, shuffle: bool = True) -> Indices:
    """Return the order in which an epoch serves `count` samples, int64 [count].

    The permutation is numpy's PCG64 generator seeded with (seed, epoch).
    """
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(count).astype(np.int64, copy=False)


def split_batches(order: Indices, batch_size: int, max_steps: int | None = None) -> list[Indices]:
    """Cut an order into batches; the last one may be smaller, so that no sample is left out."""
    starts = range(0, len(order), batch_size)
    return [order[start : start + batch_size] for start in starts[:max_steps]]


def share_of(batches: Sequence[Indices], producer: int, producers: int) -> list[Indices]:
    """Return the batches that producer number `producer` of `producers` makes (round robin, as the DataLoader deals)."""
    return list(batches[producer::producers])
