"""Batches without samples, for ranks that have none in a step in which the others have some."""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from storebench.formats.base import Indices
from storebench.loading.batch import LoadedBatch, Spans
from storebench.probes.batch_io import BatchIo


def with_empty_batches(
    batches: Iterator[LoadedBatch], planned: Sequence[Indices], shape: tuple[int, ...]
) -> Iterator[LoadedBatch]:
    """Yield a loader's batches, and an empty one in the place of each planned batch that has no samples."""
    for indices in planned:
        batch = next(batches, None) if len(indices) else empty_batch(shape)
        if batch is None:
            return
        yield batch
    yield from batches


def empty_batch(shape: tuple[int, ...]) -> LoadedBatch:
    """Return a batch without samples."""
    now = time.perf_counter_ns()
    none = np.empty(0, dtype=np.int64)
    return LoadedBatch(
        pixels=torch.empty((0, *shape), dtype=torch.uint8),
        labels=none,
        indices=none,
        spans=Spans(start_ns=now, fetch_ns=0, decode_ns=0, prep_ns=0, ready_ns=now),
        payload_bytes=0,
        io=BatchIo(0, 0, 0, 0, 0),
    )
