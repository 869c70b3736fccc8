"""Make batches from one open reader: the only place where fetch, decode and prep are timed."""

import functools
import os
import time
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch

from storebench.codecs import any_size, get_codec
from storebench.errors import CellFailedError, CorruptDataError, UsageError
from storebench.formats.base import Batch, Indices, Reader
from storebench.formats.options import AUTO
from storebench.formats.reader import Seed
from storebench.formats.registry import get_format, traits_of
from storebench.loading.augment import prepare_files
from storebench.loading.batch import (
    LOOP_WORKER,
    Allocate,
    BatchRequest,
    LoadedBatch,
    LoadJob,
    Prepare,
    ReaderReport,
    Spans,
)
from storebench.loading.order import epoch_order
from storebench.loading.proof import decoded_by
from storebench.probes.batch_io import METER
from storebench.probes.machine import scheduling
from storebench.record.manifest import Manifest
from storebench.system.kernel import load_kernel


class ProcessSettings(dict[str, Any]):
    """The settings of this process and of the calling thread, by name."""

    @classmethod
    def now(cls) -> Self:
        return cls(
            {
                "torch's threads": torch.get_num_threads(),
                "the cores that it may use": sorted(os.sched_getaffinity(0)),
                **{f"its {name}": value for name, value in scheduling().items()},
            }
        )

    def require_unchanged(self, backend: str) -> None:
        """Raise `CellFailedError` if a setting has changed: the cell would compute under other conditions."""
        for name, now in type(self).now().items():
            if now != self[name]:
                raise CellFailedError(
                    f"the reader of {backend} changed {name} from {self[name]} to {now} in the measured process",
                    hint="A reader may set these in processes and threads of its own only.",
                )


# Ready batches of one producer, if they fit into `READY_BYTES`.
READY_BATCHES = 8

# Memory for one producer's ready batches. Two are made in any case, so that consecutive batches differ.
READY_BYTES = 64 << 20


class ReadyBatches:
    """A few different batches of a store's samples, with their own labels."""

    def __init__(self, reader: Reader, job: LoadJob, worker: int, allocate: Allocate) -> None:
        self._reader = reader
        self._job = job
        self._first = worker * READY_BATCHES
        self._allocate = allocate
        self._batches: list[tuple[torch.Tensor, Indices]] = []
        self._rows = self._turn = 0

    def prepare(self, rows: int) -> None:
        """Make batches of at least `rows` samples, unless those that are there are as large."""
        if rows <= self._rows:
            return
        reader, augment, seed = self._reader, self._job.augment, self._job.seed
        shape = (rows, *augment.output_shape(reader.image_shape))
        count = max(2, min(READY_BATCHES, READY_BYTES // int(np.prod(shape))))
        decoded = np.empty((rows, *reader.image_shape), np.uint8)
        self._batches.clear()
        for epoch in range(self._first, self._first + count):
            indices = np.resize(epoch_order(len(reader.labels), seed=seed, epoch=epoch), rows)
            reader.fetch_into(indices, decoded)
            pixels = self._allocate(shape)
            augment.apply(decoded, indices, pixels.numpy(), seed=seed, epoch=epoch)
            self._batches.append((pixels, reader.labels[indices]))
        self._rows = rows

    def take(self, rows: int) -> tuple[torch.Tensor, Indices]:
        """Return pixels, uint8 [rows, H, W, C], and labels, int64 [rows], of the batch whose turn it is."""
        self.prepare(rows)
        pixels, labels = self._batches[self._turn % len(self._batches)]
        self._turn += 1
        return pixels[:rows], labels[:rows]


def lasting_memory(*, pin: bool) -> Allocate:
    """Return a function that allocates new memory in the loop's own process, page-locked for a GPU."""
    return functools.partial(torch.empty, dtype=torch.uint8, pin_memory=pin)


FRESH = lasting_memory(pin=False)


class Producer:
    """Open a reader and turn requests into batches."""

    def __init__(
        self,
        job: LoadJob,
        allocate: Allocate = FRESH,
        worker: int = LOOP_WORKER,
        reader: Reader | None = None,
        lasting: Allocate = FRESH,
        *,
        own_process: bool = False,
    ) -> None:
        self.job = job
        self.worker = worker
        self._allocate = allocate
        self._reader = reader
        self._owns_reader = reader is None
        self._scratch: Batch | None = None
        self._lasting = lasting
        self._own_process = own_process
        self._ready: ReadyBatches | None = None

    def open(self, *, take_memory: bool = True) -> ReaderReport:
        """Open the reader in this process, timed, and make the batches that have to be ready."""
        if self._own_process and self.job.prepare is not None:
            self.job.prepare.enter(self.worker)
        settings = ProcessSettings.now()
        start = time.perf_counter_ns()
        if self._reader is None:
            self._reader = open_backend(self.job)
        if self._ready_made:
            self._ready = ReadyBatches(self._reader, self.job, max(0, self.worker), self._lasting)
            self._ready.prepare(self.job.batch_size)
        open_ns = time.perf_counter_ns() - start
        settings.require_unchanged(self.job.backend.name)
        get_codec(self._reader.payload_codec)  # imports the decoder's library, so that no step does
        if take_memory and self.job.batch_size and not self._ready_made:
            # The memory of a batch, and that of whole images where windows are cut out of them.
            rows, reader, augment = self.job.batch_size, self._reader, self.job.augment
            self._allocate((rows, *augment.output_shape(reader.image_shape)))
            if not (augment.identity or reader.serves_windows or any_size(reader.payload_codec)):
                self._scratch_for(reader, rows)
        return ReaderReport(pid=os.getpid(), open_ns=open_ns, notes=self._notes())

    def close(self) -> ReaderReport:
        notes, requests = self._notes(), None
        if self._reader is not None:
            requests = self._reader.requests()
            if self._owns_reader:
                self._reader.close()
        self._reader = self._ready = None
        return ReaderReport(pid=os.getpid(), open_ns=0, notes=notes, requests=requests)

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            self.open()
        assert self._reader is not None
        return self._reader

    def produce(self, request: BatchRequest) -> LoadedBatch:
        if self._ready_made:
            return self._produce_ready(request)
        reader, indices, augment = self.reader, request.indices, self.job.augment
        start = time.perf_counter_ns()
        if self.job.prepare is not None and self.job.prepare.by_sample:
            return self._produce_by_sample(request, self.job.prepare)
        if any_size(self.reader.payload_codec):
            return self._produce_files(request, start)
        windows = None
        if not augment.identity:
            windows = augment.windows(indices, reader.image_shape, seed=self.job.seed, epoch=request.epoch)
        drawn = time.perf_counter_ns()
        if request.plan is not None:
            reader.plan(request.plan, seed_of(self.job, request.epoch))
        out = self._allocate((len(indices), *augment.output_shape(reader.image_shape)))
        whole: Batch | None = None
        if windows is not None and reader.serves_windows:
            payload_bytes, decode_inside = reader.fetch_windows(indices, windows, out.numpy())
            fetched = decoded_at = time.perf_counter_ns()
        else:
            whole = out.numpy() if windows is None else self._scratch_for(reader, len(indices))
            payload_bytes, fetched, decode_inside = self._pixels(reader, indices, whole)
            decoded_at = time.perf_counter_ns()
        prep_start = time.perf_counter_ns()
        if windows is not None and whole is not None:
            windows.cut(whole, out.numpy())
        labels = reader.labels[indices]
        ready = time.perf_counter_ns()
        spans = Spans(
            start_ns=start,
            fetch_ns=fetched - drawn - decode_inside,
            decode_ns=decoded_at - fetched + decode_inside,
            prep_ns=drawn - start + ready - prep_start,
            ready_ns=ready,
        )
        return self._batch(out, labels, indices, spans, payload_bytes)

    def _produce_files(self, request: BatchRequest, start: int) -> LoadedBatch:
        """Fetch image files as they are, decode them, and make samples of them."""
        reader, indices, job = self.reader, request.indices, self.job
        if request.plan is not None:
            reader.plan(request.plan, seed_of(job, request.epoch))
        out = self._allocate((len(indices), *job.augment.output_shape(reader.image_shape)))
        pixels = out.numpy()
        payloads = reader.fetch(indices)
        fetched = time.perf_counter_ns()
        views = job.augment.views(indices, seed=job.seed, epoch=request.epoch)
        decode_ns = prepare_files(reader, payloads, indices, pixels, views)
        labels = reader.labels[indices]
        ready = time.perf_counter_ns()
        spans = Spans(
            start_ns=start,
            fetch_ns=fetched - start,
            decode_ns=decode_ns,
            prep_ns=ready - fetched - decode_ns,
            ready_ns=ready,
        )
        return self._batch(out, labels, indices, spans, sum(map(len, payloads)))

    def _produce_by_sample(self, request: BatchRequest, prepare: Prepare) -> LoadedBatch:
        reader, start = self.reader, time.perf_counter_ns()
        if request.plan is not None:
            reader.plan(request.plan, seed_of(self.job, request.epoch))
        pixels = prepare.batch(reader, request.indices, self._allocate)
        ready = time.perf_counter_ns()
        spans = Spans(start_ns=start, fetch_ns=ready - start, decode_ns=0, prep_ns=0, ready_ns=ready)
        return self._batch(pixels, reader.labels[request.indices], request.indices, spans, 0)

    def _batch(
        self, out: torch.Tensor, labels: Indices, indices: Indices, spans: Spans, payload_bytes: int
    ) -> LoadedBatch:
        prepare = self.job.prepare
        return LoadedBatch(
            pixels=out if prepare is None or prepare.by_sample else prepare(out),
            labels=labels,
            indices=indices,
            spans=spans,
            payload_bytes=payload_bytes,
            worker=self.worker,
        )

    def produce_counted(self, request: BatchRequest) -> LoadedBatch:
        """Make one batch beside the loop, with the kernel's counters; ready-made batches read nothing."""
        if self._ready is not None:
            return self.produce(request)
        if self._own_process and request.plan is not None:
            METER.begin()
        batch = self.produce(request)
        batch.io = METER.read()
        return batch

    def _produce_ready(self, request: BatchRequest) -> LoadedBatch:
        """Return a batch that was made beforehand: nothing is fetched, decoded or prepared."""
        start = time.perf_counter_ns()
        reader, count = self.reader, len(request.indices)
        if self._ready is None:
            self.open()
        assert self._ready is not None
        pixels, labels = self._ready.take(count)
        payload_bytes = count * reader.manifest.dataset.image_bytes
        ready = time.perf_counter_ns()
        spans = Spans(start_ns=start, fetch_ns=0, decode_ns=0, prep_ns=0, ready_ns=ready)
        return self._batch(pixels, labels, request.indices, spans, payload_bytes)

    def _notes(self) -> dict[str, str]:
        notes = self._reader.notes() if self._reader is not None else {}
        augment = self.job.augment
        if augment.identity or augment.resized is not None or load_kernel() is not None:
            return notes
        return {**notes, "augmentation": "without the compiled kernel"}

    @functools.cached_property
    def _ready_made(self) -> bool:
        return traits_of(self.job.backend).ready_made

    def _pixels(self, reader: Reader, indices: Indices, decoded: Batch) -> tuple[int, int, int]:
        """Fill `decoded`; return payload bytes, when the fetch ended, and the decoding done inside it (ns)."""
        if reader.payload_codec == "raw":
            payload_bytes, decode_ns = reader.fetch_into(indices, decoded)
            return payload_bytes, time.perf_counter_ns(), decode_ns
        payloads = reader.fetch(indices)
        fetched = time.perf_counter_ns()
        codec = get_codec(reader.payload_codec)
        for row, payload in enumerate(payloads):
            try:
                codec.decode_into(payload, decoded[row])
            except CorruptDataError as error:
                raise CorruptDataError(f"sample {indices[row]}: {error.what}", where=reader.store) from error
        return sum(map(len, payloads)), fetched, 0

    def _scratch_for(self, reader: Reader, count: int) -> Batch:
        if self._scratch is None or len(self._scratch) < count:
            self._scratch = np.empty((count, *reader.image_shape), dtype=np.uint8)
            self._scratch.fill(0)  # so that its page faults belong to whoever takes it
        return self._scratch[:count]


def seed_of(job: LoadJob, epoch: int) -> Seed | None:
    """Return the seed of an epoch for a reader with an order of its own; None for one in sequence."""
    return (job.seed, epoch * job.passes) if job.shuffle else None


def native_orders(job: LoadJob, manifest: Manifest) -> Callable[[int], list[Indices]]:
    """Return a function that gives the orders in which a reader with its own order serves the passes of an epoch."""
    backend = job.backend
    reader = get_format(backend.format).readers()[backend.reader].reader
    options = reader.options_type.parse(backend.options, backend.name)

    def orders(epoch: int) -> list[Indices]:
        if not job.shuffle:
            return [np.arange(manifest.count, dtype=np.int64)] * job.passes
        seeds = ((job.seed, epoch * job.passes + turn) for turn in range(job.passes))
        return [reader.native_order(job.store, manifest, options, seed) for seed in seeds]

    return orders


def open_backend(job: LoadJob) -> Reader:
    manifest = decoded_by(Manifest.read(job.store), job.backend)
    backend, store_format = job.backend, get_format(job.backend.format)
    options, rows = dict(backend.options), store_format.readers()[backend.reader].reader.options_type.rows()
    if job.threads is not None and "threads" in rows and options.get("threads", AUTO) == AUTO:
        options["threads"] = str(job.threads)
    reader = store_format.reader(job.store, manifest, backend.reader, options, job.url)
    if any_size(manifest.codec) and not any_size(reader.payload_codec):
        reader.close()
        raise UsageError(
            "this reader decodes by itself, so it cannot serve image files of any size",
            where=backend.name,
            hint="Use another reader, or the codec raw, png or jpeg.",
        )
    return reader
