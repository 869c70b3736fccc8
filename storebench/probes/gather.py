"""The ceiling of every warm reader: gathering the same samples from one array in memory."""

import math
import time
from dataclasses import dataclass

import numpy as np

MAX_ARRAY_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class GatherRate:
    """What `numpy.take` reached in this process."""

    samples_per_s: float
    bytes_per_s: float


def gather_rate(
    sample_shape: tuple[int, ...],
    batch_size: int,
    *,
    count: int | None = None,
    max_bytes: int = MAX_ARRAY_BYTES,
    limit_s: float = 0.5,
    seed: int = 0,
) -> GatherRate:
    """Gather shuffled uint8 samples into one batch buffer, one thread, for `limit_s`.

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
    _gather_for(array, order, out, 0.1 * limit_s)
    batches, took_s = _gather_for(array, order, out, limit_s)
    per_s = batches * batch_size / took_s
    return GatherRate(samples_per_s=per_s, bytes_per_s=per_s * sample_bytes)


def _gather_for(
    array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
    order: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    out: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
    limit_s: float,
) -> tuple[int, float]:
    """Return how many batches were gathered, and the seconds that it took."""
    done = 0
    started = time.perf_counter()
    while True:
        # "clip" writes into `out` at once; the default checks the indices through a copy.
        np.take(array, order[done % len(order)], axis=0, out=out, mode="clip")
        done += 1
        took_s = time.perf_counter() - started
        if took_s >= limit_s:
            return done, took_s
