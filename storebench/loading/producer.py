"""Make batches from one open reader: the only place where fetch, decode and prep are timed."""

import os
import time
from collections.abc import Callable

import numpy as np
import torch

from storebench.codecs import get_codec
from storebench.digests import DIGEST_BYTES, sample_digest
from storebench.errors import CorruptDataError
from storebench.formats.base import Batch as Pixels
from storebench.formats.base import Indices, Reader
from storebench.formats.registry import get_format
from storebench.loading.batch import LOOP_WORKER, Batch, BatchRequest, LoadJob, Opened, Spans
from storebench.manifest import Manifest

Allocate = Callable[[tuple[int, ...]], torch.Tensor]
"""Give a uint8 tensor of a shape, in memory that the loader chose (fresh, shared, pinned or reused)."""


def allocate_fresh(shape: tuple[int, ...]) -> torch.Tensor:
    """Return a new uint8 tensor in ordinary memory."""
    return torch.empty(shape, dtype=torch.uint8)


class Producer:
    """Open a reader and turn requests into batches.

    Parameters
    ----------
    job
        Which store, which reader, which augmentation.
    allocate
        Where the batches' pixels go.
    worker
        Number of the worker that this producer runs in.
    reader
        An open reader to share with other producers, who opened it and will
        close it; None opens one of its own.
    """

    def __init__(
        self,
        job: LoadJob,
        allocate: Allocate = allocate_fresh,
        worker: int = LOOP_WORKER,
        reader: Reader | None = None,
    ) -> None:
        self.job = job
        self.worker = worker
        self._allocate = allocate
        self._reader = reader
        self._owns_reader = reader is None
        self._scratch: Pixels | None = None
        self._ready: torch.Tensor | None = None

    def open(self) -> Opened:
        """Open the reader in this process, timed."""
        start = time.perf_counter_ns()
        if self._reader is None:
            self._reader = open_backend(self.job)
        return Opened(pid=os.getpid(), open_ns=time.perf_counter_ns() - start, notes=self._reader.notes())

    def close(self) -> Opened:
        """Close the reader and say how it worked."""
        notes = self._reader.notes() if self._reader else {}
        if self._reader is not None and self._owns_reader:
            self._reader.close()
        self._reader = None
        return Opened(pid=os.getpid(), open_ns=0, notes=notes)

    @property
    def reader(self) -> Reader:
        """The open reader."""
        if self._reader is None:
            self.open()
        assert self._reader is not None
        return self._reader

    def produce(self, request: BatchRequest) -> Batch:
        """Fetch, decode and prepare one batch."""
        if self.job.backend.traits.ready_made:
            return self._produce_ready(request)
        reader, indices = self.reader, request.indices
        start = time.perf_counter_ns()
        if request.plan is not None:
            reader.plan(request.plan)
        out = self._allocate((len(indices), *self.job.augment.output_shape(reader.image_shape)))
        decoded = out.numpy() if self.job.augment.identity else self._scratch_for(reader, len(indices))
        payload_bytes, fetched, decode_inside = self._pixels(reader, indices, decoded)
        decoded_at = time.perf_counter_ns()
        # Digests are only asked for in passes that are not timed, so their cost may stand between two clocks.
        digests = _digests(decoded, reader.labels[indices]) if request.check else None
        prep_start = time.perf_counter_ns()
        if not self.job.augment.identity:
            self.job.augment.apply(decoded, indices, out.numpy(), seed=self.job.seed, epoch=request.epoch)
        labels = reader.labels[indices]
        ready = time.perf_counter_ns()
        spans = Spans(
            start_ns=start,
            fetch_ns=fetched - start - decode_inside,
            decode_ns=decoded_at - fetched + decode_inside,
            prep_ns=ready - prep_start,
            ready_ns=ready,
        )
        return Batch(
            pixels=out,
            labels=labels,
            indices=indices,
            spans=spans,
            payload_bytes=payload_bytes,
            worker=self.worker,
            digests=digests,
        )

    def _produce_ready(self, request: BatchRequest) -> Batch:
        """Hand out the batch that was made the first time: nothing is fetched, decoded or prepared."""
        start = time.perf_counter_ns()
        reader, count = self.reader, len(request.indices)
        if self._ready is None or len(self._ready) < count:
            self._ready = self._allocate((count, *self.job.augment.output_shape(reader.image_shape))).fill_(
                128
            )
        return Batch(
            pixels=self._ready[:count],
            labels=reader.labels[request.indices],
            indices=request.indices,
            spans=Spans(start_ns=start, fetch_ns=0, decode_ns=0, prep_ns=0, ready_ns=time.perf_counter_ns()),
            payload_bytes=count * reader.manifest.dataset.image_bytes,
            worker=self.worker,
        )

    def _pixels(self, reader: Reader, indices: Indices, decoded: Pixels) -> tuple[int, int, int]:
        """Fill `decoded`; return payload bytes, when the fetch ended, and the decoding done inside it (ns)."""
        if reader.payload_codec == "raw":
            payload_bytes = reader.fetch_into(indices, decoded)
            return payload_bytes, time.perf_counter_ns(), reader.last_decode_ns
        payloads = reader.fetch(indices)
        fetched = time.perf_counter_ns()
        codec = get_codec(reader.payload_codec)
        for row, payload in enumerate(payloads):
            try:
                codec.decode_into(payload, decoded[row])
            except CorruptDataError as error:
                raise CorruptDataError(f"sample {indices[row]}: {error.what}", where=reader.store) from error
        return sum(map(len, payloads)), fetched, 0

    def _scratch_for(self, reader: Reader, count: int) -> Pixels:
        if self._scratch is None or len(self._scratch) < count:
            self._scratch = np.empty((count, *reader.image_shape), dtype=np.uint8)
        return self._scratch[:count]


def open_backend(job: LoadJob) -> Reader:
    """Open the reader that a job's backend names."""
    manifest = Manifest.read(job.store)
    backend = job.backend
    return get_format(backend.format).reader(job.store, manifest, backend.reader, dict(backend.options))


def _digests(images: Pixels, labels: Indices) -> Pixels:
    rows = b"".join(sample_digest(image, int(label)) for image, label in zip(images, labels, strict=True))
    return np.frombuffer(rows, dtype=np.uint8).reshape(len(images), DIGEST_BYTES)
