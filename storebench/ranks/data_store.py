"""The data store of a job: every rank keeps a part of the samples in memory and sends them to the ranks that need them."""

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from storebench.errors import CellFailedError
from storebench.formats.base import Batch, Fetched, Indices, Reader
from storebench.loading.batch import EpochPlan, LoadedBatch, LoadJob
from storebench.loading.order import split_batches
from storebench.probes.batch_io import IoMeter
from storebench.ranks.deliveries import Arrived, Deliveries, Traffic
from storebench.ranks.group import Group
from storebench.ranks.held import HeldPayloads, HeldPixels, HeldSamples, cut, joined_sizes
from storebench.ranks.messages import Messages
from storebench.ranks.owners import Owners, block_owners, first_owners, transfer_of
from storebench.ranks.progress import RankProgress
from storebench.ranks.room import needed_bytes, refusal
from storebench.results import DataStoreFacts
from storebench.settings.words import Fill

PRELOAD_SAMPLES = 64
"""Samples per read of a preload."""


class DataStore:
    """One rank's part of the data store. All ranks call the same methods in the same order."""

    def __init__(
        self, source: Reader, job: LoadJob, *, group: Group, progress: RankProgress, meter: IoMeter
    ) -> None:
        self.filled = False
        self.reader = DataStoreReader(source, self)
        self._source = source
        self._pixels = source.payload_codec == "raw"
        self._job = job
        self._group = group
        self._progress = progress
        self._meter = meter
        self._rank = group.membership.rank
        self._owners: Owners = np.empty(0, np.int32)
        self._held: HeldSamples = HeldPayloads(np.empty(0, np.int64))
        self._sizes = np.empty(0, np.int64)
        self._traffic = Traffic()
        self._asked_before = 0
        self._messages: Messages | None = None
        self._deliveries: Deliveries | None = None
        self._preload_s: float | None = None
        self._preload_device_bytes: int | None = None

    def prepare(self) -> None:
        """Connect the ranks, and fill the data store if it is filled before the first epoch."""
        self._require_room()
        self._messages = Messages(self._progress)
        if self._job.store_fill is Fill.PRELOAD:
            self._own(block_owners(self._source.manifest.count, self._group.membership.ranks))
            self._preload()
            self._seal()

    def serve(self, plan: EpochPlan, batches: Iterator[LoadedBatch]) -> Iterator[LoadedBatch]:
        """Yield the batches of an epoch, exchanging their samples on the way."""
        assert plan.everyone is not None
        assert self._messages is not None
        self._traffic = Traffic()
        self._asked_before = self._source.asked_samples
        if not self.filled:
            self._own(first_owners(self._source.manifest.count, plan.everyone))
            yield from batches
            return
        deliveries = Deliveries(
            (transfer_of(pieces, self._owners, self._rank) for pieces in plan.everyone),
            pack=self._held.pack,
            sizes=self._sizes,
            messages=self._messages,
            traffic=self._traffic,
        )
        self._deliveries = deliveries
        yield from _delivered(deliveries, batches)

    def close_epoch(self) -> DataStoreFacts:
        """Return the facts of the last epoch; at the end of the first one, the data store is full."""
        if not self.filled:
            self._seal()
        traffic, held = self._traffic, self._held
        return DataStoreFacts(
            held_samples=len(held.own) - held.missing,
            held_bytes=held.held_bytes,
            table_bytes=self._owners.nbytes + self._sizes.nbytes + self.reader.labels.nbytes,
            buffer_bytes=traffic.most_buffer_bytes,
            from_store=self._source.asked_samples - self._asked_before,
            from_memory=traffic.from_memory,
            from_ranks=traffic.from_ranks,
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
            exchange_s=traffic.exchange_ns / 1e9,
            waited_s=traffic.waited_ns / 1e9,
            after_last_s=traffic.after_last_ns / 1e9,
            preload_s=self._preload_s,
            preload_device_bytes=self._preload_device_bytes,
        )

    def payloads(self, samples: Indices) -> list[bytes]:
        """Return the payloads of the next batch."""
        held = self._held
        assert isinstance(held, HeldPayloads)
        if not self.filled:
            read = self._source.fetch(samples)
            held.keep(samples, read)
            return read
        arrived = self._arrived(samples)
        payloads = [b""] * len(samples)
        for row, payload in zip(arrived.held, held.payloads(samples[arrived.held]), strict=True):
            payloads[row] = payload
        for rows, content in arrived.messages:
            for row, payload in zip(rows, cut(content, self._sizes[samples[rows]]), strict=True):
                payloads[row] = payload
        return payloads

    def copy_pixels(self, samples: Indices, out: Batch) -> Fetched:
        """Copy the pixels of the next batch into `out`, uint8 [n, H, W, C]."""
        held = self._held
        assert isinstance(held, HeldPixels)
        if not self.filled:
            fetched = self._source.fetch_into(samples, out)
            held.keep(samples, out)
            return fetched
        arrived = self._arrived(samples)
        held.put(samples[arrived.held], arrived.held, out)
        for rows, content in arrived.messages:
            out[rows] = content.reshape(-1, *out.shape[1:])
        return Fetched(out.nbytes)

    def _arrived(self, samples: Indices) -> Arrived:
        assert self._deliveries is not None, "an epoch is being served"
        return self._deliveries.take(samples)

    def _require_room(self) -> None:
        """Check on every rank that the data store fits into the memory of each node."""
        me, manifest = self._group.membership, self._source.manifest
        size = manifest.count * manifest.dataset.image_bytes if self._pixels else manifest.payload_bytes
        needed = needed_bytes(
            manifest.count,
            size,
            ranks=me.ranks,
            local_ranks=me.local_ranks,
            batch_size=self._job.batch_size,
        )
        mine = refusal(needed, self._job.store_memory_bytes, me.node) if me.leads_node else None
        refused = next((line for line in self._group.exchange(mine) if line is not None), None)
        if refused is not None:
            raise CellFailedError(refused)

    def _own(self, owners: Owners) -> None:
        """Allocate memory for the samples that this rank owns."""
        self._owners = owners
        own = np.flatnonzero(owners == self._rank).astype(np.int64)
        self._held = HeldPixels(own, self._source.image_shape) if self._pixels else HeldPayloads(own)

    def _preload(self) -> None:
        """Read all samples that this rank owns, in store order."""
        start = time.perf_counter()
        batches = split_batches(self._held.own.copy(), PRELOAD_SAMPLES)
        if batches:
            self._source.plan(batches)
        pixels = np.empty((PRELOAD_SAMPLES if self._pixels else 0, *self._source.image_shape), np.uint8)
        for samples in batches:
            if isinstance(self._held, HeldPixels):
                self._source.fetch_into(samples, pixels)
                self._held.keep(samples, pixels)
            elif isinstance(self._held, HeldPayloads):
                self._held.keep(samples, self._source.fetch(samples))
            self._progress.batch()
        self._preload_s = time.perf_counter() - start
        counted = self._meter.read()
        self._preload_device_bytes = None if counted is None else counted.device_read_bytes

    def _seal(self) -> None:
        """Mark the data store as filled, and tell the other ranks the sizes of the samples."""
        if self._held.missing:
            raise CellFailedError(
                f"{self._held.missing} samples of this rank's part of the data store were not read"
            )
        if isinstance(self._held, HeldPayloads):
            self._sizes = joined_sizes(self._group.exchange(self._held.sizes), self._owners)
        else:
            self._sizes = np.full(len(self._owners), self._source.manifest.dataset.image_bytes, np.int64)
        self.filled = True
        self.reader.let_go()


class DataStoreReader(Reader):
    """Serve batches of a data store: from the store while it is being filled, then from the memory of all ranks."""

    def __init__(self, source: Reader, data: DataStore) -> None:
        super().__init__(source.store, source.manifest, source.options)
        self.labels = source.labels.copy()
        self.payload_codec = source.payload_codec
        self._source = source
        self._data = data
        self._notes: dict[str, str] | None = None

    def let_go(self) -> None:
        """Close the reader of the store, so nothing can be read from it; a reader whose threads decode stays open."""
        self._notes = self._source.notes()
        if type(self._source).spread is Reader.spread:
            self._source.close()

    def spread(self, work: Callable[[int], None], count: int) -> None:
        """Run calls in the threads of the store's reader, if it has any."""
        self._source.spread(work, count)

    def notes(self) -> dict[str, str]:
        """Return the notes of the store's reader."""
        return self._source.notes() if self._notes is None else self._notes

    def _plan(self, batches: Sequence[Indices]) -> None:
        if not self._data.filled:
            self._source.plan(batches)

    def _fetch(self, indices: Indices) -> list[bytes]:
        if self.payload_codec == "raw":
            return super()._fetch(indices)
        return self._data.payloads(indices)

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        return self._data.copy_pixels(indices, out)

    def _close(self) -> None:
        self._source.close()


def _delivered(deliveries: Deliveries, batches: Iterator[LoadedBatch]) -> Iterator[LoadedBatch]:
    """Yield batches, exchanging their samples on the way."""
    deliveries.begin()
    for batch in batches:
        if not len(batch.indices):
            deliveries.skip()
        yield batch
    deliveries.finish()
