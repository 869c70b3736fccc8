"""The messages between a producer and the training loop: requests, and batches with the spans measured for them."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from storebench.formats.base import Indices, Reader
from storebench.formats.reader import RequestTable
from storebench.loading.augment import Augment
from storebench.probes.batch_io import BatchIo
from storebench.settings.backend import Backend

# The worker number of batches that the loop's own process made.
LOOP_WORKER = -1


# Give a uint8 tensor of a shape, in memory that the loader chose (fresh, shared, pinned or reused).
Allocate = Callable[[tuple[int, ...]], torch.Tensor]


class Prepare(Protocol):
    """The work of a training script on a batch's pixels, in the producer. The script may keep what it returns."""

    @property
    def by_sample(self) -> bool:
        """Whether batches are made of single samples, by `batch`, and not of the pixels of a batch."""

    def batch(self, reader: Reader, indices: Indices, allocate: Allocate, /) -> Any:
        """Return the script's batch of some samples, whose pixels are decoded into memory from `allocate`."""

    @property
    def is_view(self) -> bool:
        """Whether it returns a view of the pixels, so that these may be made in shared memory at once."""

    def __call__(self, pixels: torch.Tensor, /) -> Any:
        """Return the script's batch of pixels, uint8 [n, H, W, C]."""

    def enter(self, worker: int, /) -> None:
        """Set up a worker process before its first batch."""


@dataclass(frozen=True, kw_only=True)
class LoadJob:
    """The task of a producer: the store, how to read it, and what to do to the images."""

    store: Path
    backend: Backend
    augment: Augment = field(default_factory=Augment)
    seed: int = 0
    batch_size: int = 0
    threads: int | None = None
    shuffle: bool = True
    passes: int = 1
    prepare: "Prepare | None" = None
    url: str = ""


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """The batches of one epoch, in order."""

    epoch: int
    batches: list[Indices]
    everyone: Iterable[Sequence[Indices]] | None = None


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """One batch to make. `plan` comes with a producer's first batch of an epoch: all that it will be asked for."""

    epoch: int
    step: int
    indices: Indices
    plan: list[Indices] | None = None


# Not frozen: one is made per batch, and each frozen field would take 0.1 us.
@dataclass(kw_only=True, slots=True)
class Spans:
    """When a batch was made, by ``time.perf_counter_ns`` (one clock for all processes on Linux)."""

    start_ns: int = 0
    fetch_ns: int = 0
    decode_ns: int = 0
    prep_ns: int = 0
    ready_ns: int = 0


@dataclass(kw_only=True, slots=True)
class LoadedBatch:
    """Samples for one step."""

    pixels: torch.Tensor
    labels: Indices
    indices: Indices
    spans: Spans = field(default_factory=Spans)
    payload_bytes: int = 0
    worker: int = LOOP_WORKER
    io: BatchIo | None = None

    def pin_memory(self) -> "LoadedBatch":
        """Move the pixels to page-locked memory (called by the DataLoader's pinning thread)."""
        self.pixels = self.pixels.pin_memory()
        return self


@dataclass(frozen=True, kw_only=True)
class ReaderReport:
    """The report of a producer that has opened or closed its reader."""

    pid: int
    open_ns: int
    notes: dict[str, str] = field(default_factory=dict)
    requests: RequestTable | None = None


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
    now = time.perf_counter_ns()
    none = np.empty(0, dtype=np.int64)
    return LoadedBatch(
        pixels=torch.empty((0, *shape), dtype=torch.uint8),
        labels=none,
        indices=none,
        spans=Spans(start_ns=now, ready_ns=now),
        io=BatchIo(0, 0, 0, 0, 0),
    )
