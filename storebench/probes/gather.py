"""The rate at which memory delivers samples to one thread: a yardstick, and the ceiling of one copy."""

import contextlib
import ctypes
import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storebench.arrays import Indices, Pixels
from storebench.probes.remembered import recall, remember
from storebench.system.copying import load_kernel

MAX_ARRAY_BYTES = 256 << 20
ROUNDS = 4

Way = Callable[[Pixels, Indices, Pixels], object]
"""Function that copies the samples at some indices of an array into a batch of as many."""

YARDSTICK = "numpy.take"


def take(array: Pixels, indices: Indices, out: Pixels) -> None:
    """Gather with numpy in its default mode, which copies twice."""
    np.take(array, indices, axis=0, out=out)


def take_once(array: Pixels, indices: Indices, out: Pixels) -> None:
    """Gather with numpy in clip mode, which writes into the batch directly."""
    np.take(array, indices, axis=0, out=out, mode="clip")


def rows(array: Pixels, indices: Indices, out: Pixels) -> None:
    """Gather with one memcpy per sample, the fastest method for large samples and the slowest for small ones."""
    length = array.itemsize * math.prod(array.shape[1:])
    start, target = array.ctypes.data, out.ctypes.data
    for place, index in enumerate(indices.tolist()):
        ctypes.memmove(target + place * length, start + index * length, length)


def compiled(array: Pixels, indices: Indices, out: Pixels) -> None:
    """Gather with the compiled kernel, which asks memory for the samples ahead; as `take_once` without a C compiler."""
    kernel = load_kernel()
    if kernel is None:
        take_once(array, indices, out)
        return
    length = array.itemsize * math.prod(array.shape[1:])
    # As many bytes of any type are copied, so their type is of no importance.
    flat, batch = array.view(np.uint8).reshape(-1), out.view(np.uint8).reshape(len(out), length)
    if kernel.rows(flat, indices * length, batch) < len(indices):
        raise IndexError("an index is not in the array")


WAYS: dict[str, Way] = {
    YARDSTICK: take,
    "numpy.take(mode='clip')": take_once,
    "one memcpy per sample": rows,
    "compiled, asking ahead": compiled,
}


@dataclass(frozen=True, kw_only=True)
class GatherRate:
    """Rates that one thread of this process reached."""

    samples_per_s: float
    copy_ceiling_samples_per_s: float
    copy_method: str
    memory_bytes_per_s: float


def gather_rate(
    sample_shape: tuple[int, ...],
    batch_size: int,
    *,
    count: int | None = None,
    max_bytes: int = MAX_ARRAY_BYTES,
    limit_s: float = 0.5,
    seed: int = 0,
    shuffle: bool = True,
) -> GatherRate:
    """Gather uint8 samples, in a shuffled order or in that of the array, into one batch buffer with one thread, for `limit_s` in all."""
    sample_bytes = math.prod(sample_shape)
    held = max(1, max_bytes // sample_bytes)
    held = held if count is None else max(1, min(held, count))
    array = np.ones((held, *sample_shape), np.uint8)
    out = np.ones((batch_size, *sample_shape), np.uint8)
    rng = np.random.default_rng(seed)
    places = -(-held // batch_size) * batch_size
    order = (rng.permutation(places) if shuffle else np.arange(places)).reshape(-1, batch_size) % held
    best = dict.fromkeys(WAYS, 0.0)
    slice_s = limit_s / ROUNDS / len(WAYS)
    for _ in range(ROUNDS):  # in turn, so that a slow moment affects all of them
        for name, way in WAYS.items():
            best[name] = max(best[name], batch_size * _batches_per_s(way, array, order, out, slice_s))
    fastest = max(best, key=lambda name: best[name])
    return GatherRate(
        samples_per_s=best[YARDSTICK],
        copy_ceiling_samples_per_s=best[fastest],
        copy_method=fastest,
        memory_bytes_per_s=best[fastest] * sample_bytes,
    )


def gather_rate_once(
    sample_shape: tuple[int, ...],
    batch_size: int,
    *,
    count: int,
    kept: Path,
    replicate: int,
    limit_s: float = 0.5,
    shuffle: bool = True,
) -> GatherRate:
    """Return the rates of `gather_rate`, measured once per shape, batch size, number and order of samples, and replicate."""
    samples = f"{count} samples {'shuffled' if shuffle else 'in order'}"
    name = f"{'x'.join(map(str, sample_shape))}, batch {batch_size}, {samples}, replicate {replicate}"
    known = recall(kept)
    with contextlib.suppress(KeyError, TypeError):
        return GatherRate(**known[name])
    rate = gather_rate(sample_shape, batch_size, count=count, limit_s=limit_s, shuffle=shuffle)
    remember(kept, known | {name: dataclasses.asdict(rate)})
    return rate


def _batches_per_s(way: Way, array: Pixels, order: Indices, out: Pixels, limit_s: float) -> float:
    done = 0
    started = time.perf_counter()
    while True:
        way(array, order[done % len(order)], out)
        done += 1
        took_s = time.perf_counter() - started
        if took_s >= limit_s:
            return done / took_s
