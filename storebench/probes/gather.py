"""The two rates that every warm reader is held against: numpy's gather, and what memory itself gives.

The gather rate is ``numpy.take(array, indices, axis=0, out=batch)``, the plain
way to collect a batch from an array. It is a yardstick, not the physical
limit: numpy's default mode checks the indices through a second copy. The same
call with ``mode="clip"`` writes into the batch at once; that one is the
ceiling which no reader of one thread can be above.
"""

import math
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

MAX_ARRAY_BYTES = 256 << 20
ROUNDS = 4

Mode = Literal["raise", "clip"]


@dataclass(frozen=True, kw_only=True)
class GatherRate:
    """What `numpy.take` reached in this process.

    Attributes
    ----------
    samples_per_s
        The gather rate: numpy's default mode.
    memory_bytes_per_s
        The ceiling: the same without numpy's second copy.
    """

    samples_per_s: float
    memory_bytes_per_s: float


def gather_rate(
    sample_shape: tuple[int, ...],
    batch_size: int,
    *,
    count: int | None = None,
    max_bytes: int = MAX_ARRAY_BYTES,
    limit_s: float = 0.5,
    seed: int = 0,
) -> GatherRate:
    """Gather shuffled uint8 samples into one batch buffer, one thread, for `limit_s` in all.

    Parameters
    ----------
    sample_shape
        Shape of one sample, uint8.
    count
        Samples in the data set; the array holds that many, or what `max_bytes` allows.
    """
    sample_bytes = math.prod(sample_shape)
    rows = max(1, max_bytes // sample_bytes)
    rows = rows if count is None else max(1, min(rows, count))
    array = np.ones((rows, *sample_shape), np.uint8)
    out = np.ones((batch_size, *sample_shape), np.uint8)
    rng = np.random.default_rng(seed)
    order = rng.permutation(-(-rows // batch_size) * batch_size).reshape(-1, batch_size) % rows
    gather, memory = 0.0, 0.0
    slice_s = limit_s / ROUNDS / 2
    for _ in range(ROUNDS):  # in turn, so that a slow moment hits both
        gather = max(gather, batch_size * _gather_for(array, order, out, "raise", slice_s))
        memory = max(memory, batch_size * _gather_for(array, order, out, "clip", slice_s))
    return GatherRate(samples_per_s=gather, memory_bytes_per_s=max(gather, memory) * sample_bytes)


def _gather_for(
    array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
    order: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    out: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
    mode: Mode,
    limit_s: float,
) -> float:
    """Return the batches gathered in a second."""
    done = 0
    started = time.perf_counter()
    while True:
        np.take(array, order[done % len(order)], axis=0, out=out, mode=mode)
        done += 1
        took_s = time.perf_counter() - started
        if took_s >= limit_s:
            return done / took_s
