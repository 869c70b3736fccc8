"""The timed loop, on one screen: wait, copy, compute."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from storebench.formats.base import Indices
from storebench.loading.batch import LoadedBatch, Spans
from storebench.probes.batch_io import BatchIo
from storebench.training.compute import Step


class StepTimes(NamedTuple):
    """Times of one step, by ``time.perf_counter_ns``: batch requested, received, copied, device done."""

    asked_ns: int
    got_ns: int
    copied_ns: int
    done_ns: int
    spans: Spans
    worker: int
    payload_bytes: int
    indices: Indices
    paused_ns: int = 0
    io: BatchIo | None = None


def keep_nothing(_batch: LoadedBatch) -> bool:
    return False


def run_epoch(
    batches: Iterator[LoadedBatch], step: Step, keep: Callable[[LoadedBatch], bool] = keep_nothing
) -> list[StepTimes]:
    """Train on every batch and return the times of each step."""
    clock = time.perf_counter_ns
    rows: list[tuple[Any, ...]] = []
    while True:
        asked = clock()
        batch = next(batches, None)
        got = clock()
        if batch is None:
            return list(map(StepTimes._make, rows))  # here, because one takes longer than a tuple
        step.copy(batch)
        step.compute()
        done = clock()
        resumed = clock() if keep(batch) else done
        copied = min(got + step.h2d_ns(), done)
        spans, worker, size, indices = batch.spans, batch.worker, batch.payload_bytes, batch.indices
        rows.append((asked, got, copied, done, spans, worker, size, indices, resumed - done, batch.io))
