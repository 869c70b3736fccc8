"""The timed loop, on one screen: wait, copy, compute."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from storebench.formats.base import Indices
from storebench.loading.batch import LoadedBatch, Spans
from storebench.probes.batch_io import BatchIo
from storebench.training.steps import Step


@dataclass(frozen=True, slots=True)
class StepTimes:
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
    rows: list[tuple[int, int, int, int, Spans, int, int, Indices, int, BatchIo | None]] = []
    while True:
        asked = clock()
        batch = next(batches, None)
        got = clock()
        if batch is None:
            return [StepTimes(*row) for row in rows]
        step.copy(batch)
        step.compute()
        done = clock()
        resumed = clock() if keep(batch) else done
        copied = min(got + step.h2d_ns(), done)
        rows.append(
            (
                asked,
                got,
                copied,
                done,
                batch.spans,
                batch.worker,
                batch.payload_bytes,
                batch.indices,
                resumed - done,
                batch.io,
            )
        )
