"""The data store of a job: every rank keeps a part of the samples in memory and sends them to the others."""

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from storebench.arrays import Bytes
from storebench.errors import CellFailedError
from storebench.formats.base import Batch, Fetched, Indices, Reader
from storebench.loading.batch import EpochPlan, LoadedBatch, LoadJob, ReaderReport, with_empty_batches
from storebench.loading.loader import BatchLoader, ReusedBuffer, batch_shape, requests_of
from storebench.loading.order import split_batches
from storebench.loading.producer import Producer, lasting_memory, open_backend
from storebench.probes.batch_io import IoMeter
from storebench.ranks.group import Group
from storebench.ranks.heartbeat import RankProgress
from storebench.ranks.launch import MOST_WAIT_S
from storebench.ranks.store_memory import STEPS_UNDER_WAY
from storebench.record.schema import DataStoreFacts
from storebench.settings.words import Fill

# The rank that holds each sample in memory, int32 [count].
Owners = npt.NDArray[np.int32]
# The owner of a sample that no rank holds.
NOBODY = -1
# Positions in an array, int64 [n], and bytes of samples, int64 [n].
Positions = npt.NDArray[np.intp]
ByteCounts = npt.NDArray[np.int64]
# Pixels of samples, uint8 [n, H, W, C], or payloads, bytes [n].
Contents = npt.NDArray[Any]
# Messages of this many steps have different tags.
_TAGS = 1024
# Samples per read of a preload.
PRELOAD_SAMPLES = 64


def block_owners(count: int, ranks: int) -> Owners:
    """Return the owners if each rank owns a contiguous part. Parts differ by at most one sample."""
    each, more = divmod(count, ranks)
    sizes = [each + (rank < more) for rank in range(ranks)]
    return np.repeat(np.arange(ranks, dtype=np.int32), sizes)


def first_owners(count: int, steps: Iterable[Sequence[Indices]]) -> Owners:
    """Return the owners if each rank owns the samples that it is the first to serve."""
    owners = np.full(count, NOBODY, np.int32)
    for pieces in steps:
        for rank, samples in enumerate(pieces):
            owners[samples[owners[samples] == NOBODY]] = rank
    return owners


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The messages of one step that one rank sends and receives."""

    samples: Indices
    held: Positions
    receive: dict[int, Positions]
    send: dict[int, Indices]


def transfer_of(pieces: Sequence[Indices], owners: Owners, rank: int) -> Transfer:
    """Return the messages of a step for one rank."""
    mine = pieces[rank]
    by = owners[mine]
    requested = {
        other: samples[owners[samples] == rank] for other, samples in enumerate(pieces) if other != rank
    }
    return Transfer(
        samples=mine,
        held=np.flatnonzero(by == rank),
        receive={int(owner): np.flatnonzero(by == owner) for owner in np.unique(by) if owner != rank},
        send={other: samples for other, samples in requested.items() if len(samples)},
    )


class HeldSamples:
    """Samples in the memory of their owner: pixels of images of one `shape`, or payloads as stored."""

    def __init__(self, own: Indices, shape: tuple[int, int, int] | None = None) -> None:
        self.own = own
        self._contents: Contents = (
            np.full(len(own), b"", object) if shape is None else np.empty((len(own), *shape), np.uint8)
        )
        self._kept = np.zeros(len(own), bool)

    @property
    def missing(self) -> int:
        return len(self.own) - int(np.count_nonzero(self._kept))

    @property
    def sizes(self) -> ByteCounts:
        """Bytes of each own sample, in ascending order; 0 for those that are not in memory yet."""
        if self._contents.dtype == object:
            return np.array([len(payload) for payload in self._contents], np.int64)
        return self._kept * np.int64(self._contents[:1].nbytes)

    def keep(self, samples: Indices, contents: Contents) -> None:
        """Keep the own samples among `samples`, each once."""
        if not len(self.own):
            return
        places = np.minimum(np.searchsorted(self.own, samples), len(self.own) - 1)
        rows = np.flatnonzero((self.own[places] == samples) & ~self._kept[places])
        places, first = np.unique(places[rows], return_index=True)
        self._kept[places] = True
        self._contents[places] = contents[rows[first]]

    def of(self, samples: Indices) -> Contents:
        """Return a copy of own samples, in the order of `samples`."""
        return self._contents[np.searchsorted(self.own, samples)]

    def pack(self, samples: Indices) -> Bytes:
        """Return a copy of own samples as the content of a message."""
        contents = self.of(samples)
        if contents.dtype == object:
            return np.frombuffer(bytearray().join(contents), np.uint8)
        return contents.reshape(-1)


def cut(content: Bytes, sizes: ByteCounts) -> list[bytes]:
    """Split a message into its payloads, given the bytes of each."""
    ends = np.cumsum(sizes).tolist()
    return [content[end - size : end].tobytes() for end, size in zip(ends, sizes.tolist(), strict=True)]


@dataclass(kw_only=True)
class Incoming:
    """The messages of one step that this rank receives, with the rows that it does not hold itself."""

    transfer: Transfer
    messages: list[tuple[Positions, Bytes]] = field(default_factory=list)
    works: list[dist.Work | None] = field(default_factory=list)


@dataclass(kw_only=True)
class Deliveries:
    """Exchange and count the samples of one epoch, step by step; every rank goes through the same steps."""

    transfers: Iterator[Transfer]
    pack: Callable[[Indices], Bytes]
    sizes: ByteCounts
    messages: dist.ProcessGroup
    progress: RankProgress
    from_memory: int = 0
    from_ranks: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    exchange_ns: int = 0
    waited_ns: int = 0
    after_last_ns: int = 0
    buffer_bytes: int = 0
    most_buffer_bytes: int = 0
    _number: int = 0
    _incoming: collections.deque[Incoming] = field(default_factory=collections.deque)
    # Contents of messages, which must not change until they have arrived.
    _outgoing: collections.deque[tuple[list[Bytes], list[dist.Work | None]]] = field(
        default_factory=collections.deque
    )

    def over(self, batches: Iterator[LoadedBatch]) -> Iterator[LoadedBatch]:
        """Yield batches, exchanging their samples on the way; in a step without samples, this rank only sends."""
        start = time.perf_counter_ns()
        self._post()
        self.exchange_ns += time.perf_counter_ns() - start
        for batch in batches:
            if not len(batch.indices):
                self.take(batch.indices)
            yield batch
        start = time.perf_counter_ns()
        while self._outgoing:
            self._complete()
        self.after_last_ns = time.perf_counter_ns() - start
        self.exchange_ns += self.after_last_ns

    def take(self, samples: Indices) -> Incoming:
        """Return this rank's batch of the next step, and post the messages of the step after it."""
        start = time.perf_counter_ns()
        if not self._incoming or not np.array_equal(self._incoming[0].transfer.samples, samples):
            raise CellFailedError("the data store was asked for a batch that is not the next one of its plan")
        current = self._incoming.popleft()
        self._post()
        self.waited_ns += self._wait(current.works)
        for rows, content in current.messages:
            self.from_ranks += len(rows)
            self.received_bytes += content.nbytes
            self._count(-content.nbytes)
        self.from_memory += len(current.transfer.held)
        self.exchange_ns += time.perf_counter_ns() - start
        return current

    def _post(self) -> None:
        transfer = next(self.transfers, None)
        if transfer is None:
            return
        while len(self._outgoing) >= STEPS_UNDER_WAY:
            self.waited_ns += self._complete()
        incoming, tag = Incoming(transfer=transfer), self._number % _TAGS
        for source, rows in transfer.receive.items():
            content = np.empty(int(self.sizes[transfer.samples[rows]].sum()), np.uint8)
            incoming.messages.append((rows, content))
            incoming.works.append(dist.irecv(torch.from_numpy(content), source, self.messages, tag))
            self._count(content.nbytes)
        self._incoming.append(incoming)
        contents: list[Bytes] = []
        works: list[dist.Work | None] = []
        for target, samples in transfer.send.items():
            contents.append(content := self.pack(samples))
            works.append(dist.isend(torch.from_numpy(content), target, self.messages, tag))
            self.sent_bytes += content.nbytes
            self._count(content.nbytes)
        self._outgoing.append((contents, works))
        self._number += 1

    def _complete(self) -> int:
        """Wait until this rank's oldest messages have arrived, and return the nanoseconds of the wait."""
        contents, works = self._outgoing.popleft()
        waited_ns = self._wait(works)
        for content in contents:
            self._count(-content.nbytes)
        return waited_ns

    def _wait(self, works: Sequence[dist.Work | None]) -> int:
        """Wait until messages have been sent or received, and return the nanoseconds of the wait."""
        if not works:
            return 0
        start = time.perf_counter_ns()
        with self.progress.waiting():
            for work in works:
                assert work is not None, "this rank is a member of the group"
                work.wait()
        return time.perf_counter_ns() - start

    def _count(self, size: int) -> None:
        """Count the buffer of a message: positive when it is posted, negative when it is released."""
        self.buffer_bytes += size
        self.most_buffer_bytes = max(self.most_buffer_bytes, self.buffer_bytes)


class DataStore(Reader):
    """Serve batches: from the store while this is being filled, then from the memory of all ranks.

    All ranks call the same methods in the same order.
    """

    def __init__(self, source: Reader, fill: Fill, group: Group) -> None:
        super().__init__(source.store, source.manifest, source.options)
        self.labels = source.labels.copy()
        self.payload_codec = source.payload_codec
        self.filled = False
        self._source = source
        self._notes: dict[str, str] | None = None
        self._group = group
        self._owners: Owners = np.empty(0, np.int32)
        self._held = HeldSamples(np.empty(0, np.int64))
        self._sizes = np.empty(0, np.int64)
        self._asked_before = 0
        self._messages = dist.new_group(backend="gloo", timeout=timedelta(seconds=MOST_WAIT_S))
        self._deliveries: Deliveries | None = None
        self._preload_s: float | None = None
        self.preload_device_bytes: int | None = None
        if fill is Fill.PRELOAD:
            self._own(block_owners(self.manifest.count, group.membership.ranks))
            self._preload()
            self._seal()

    def serve(self, plan: EpochPlan, batches: Iterator[LoadedBatch]) -> Iterator[LoadedBatch]:
        assert plan.everyone is not None
        self._asked_before = self._source.asked_samples
        if not self.filled:
            self._own(first_owners(self.manifest.count, plan.everyone))
        rank = self._group.membership.rank
        transfers = (transfer_of(pieces, self._owners, rank) for pieces in plan.everyone)
        self._deliveries = Deliveries(
            transfers=transfers if self.filled else iter(()),
            pack=self._held.pack,
            sizes=self._sizes,
            messages=self._messages,
            progress=self._group.progress,
        )
        yield from self._deliveries.over(batches) if self.filled else batches

    def close_epoch(self) -> DataStoreFacts:
        """Return the facts of the last epoch; at the end of the first one, the data store is full."""
        if not self.filled:
            self._seal()
        counts, held = self._deliveries, self._held
        assert counts is not None, "an epoch was served"
        return DataStoreFacts(
            held_samples=len(held.own) - held.missing,
            held_bytes=int(held.sizes.sum()),
            table_bytes=self._owners.nbytes + self._sizes.nbytes + self.labels.nbytes,
            buffer_bytes=counts.most_buffer_bytes,
            from_store=self._source.asked_samples - self._asked_before,
            from_memory=counts.from_memory,
            from_ranks=counts.from_ranks,
            sent_bytes=counts.sent_bytes,
            received_bytes=counts.received_bytes,
            exchange_s=counts.exchange_ns / 1e9,
            waited_s=counts.waited_ns / 1e9,
            after_last_s=counts.after_last_ns / 1e9,
            preload_s=self._preload_s,
            preload_device_bytes=self.preload_device_bytes,
        )

    def spread(self, work: Callable[[int], None], count: int) -> None:
        self._source.spread(work, count)

    def notes(self) -> dict[str, str]:
        return self._source.notes() if self._notes is None else self._notes

    def _plan(self, batches: Sequence[Indices]) -> None:
        if not self.filled:
            self._source.plan(batches)

    def _fetch(self, indices: Indices) -> list[bytes]:
        if self.payload_codec == "raw":
            return super()._fetch(indices)
        if not self.filled:
            read = self._source.fetch(indices)
            self._held.keep(indices, np.array(read, object))
            return read
        payloads = np.full(len(indices), b"", object)
        for rows, content in self._arrived(indices, payloads).messages:
            payloads[rows] = cut(content, self._sizes[indices[rows]])
        return list(payloads)

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        if not self.filled:
            fetched = self._source.fetch_into(indices, out)
            self._held.keep(indices, out)
            return fetched
        for rows, content in self._arrived(indices, out).messages:
            out[rows] = content.reshape(-1, *out.shape[1:])
        return Fetched(out.nbytes)

    def _close(self) -> None:
        self._source.close()

    def _arrived(self, samples: Indices, out: Contents) -> Incoming:
        """Return the messages of the next batch, and copy the samples that this rank holds into its rows of `out`."""
        assert self._deliveries is not None, "an epoch is being served"
        arrived = self._deliveries.take(samples)
        rows = arrived.transfer.held
        out[rows] = self._held.of(samples[rows])
        return arrived

    def _own(self, owners: Owners) -> None:
        self._owners = owners
        samples = np.flatnonzero(owners == self._group.membership.rank).astype(np.int64)
        self._held = HeldSamples(samples, self.image_shape if self.payload_codec == "raw" else None)

    def _preload(self) -> None:
        """Read all samples that this rank owns, in store order."""
        start = time.perf_counter()
        batches = split_batches(self._held.own.copy(), PRELOAD_SAMPLES)
        if batches:
            self._source.plan(batches)
        pixels = np.empty((PRELOAD_SAMPLES, *self.image_shape), np.uint8)
        for samples in batches:
            if self.payload_codec == "raw":
                self._source.fetch_into(samples, pixels)
                self._held.keep(samples, pixels)
            else:
                self._held.keep(samples, np.array(self._source.fetch(samples), object))
            self._group.progress.batch()
        self._preload_s = time.perf_counter() - start

    def _seal(self) -> None:
        """Mark the data store as filled, and tell the other ranks the sizes of the samples.

        The reader of the store is closed, so nothing can be read from it; one whose threads decode stays open.
        """
        if self._held.missing:
            raise CellFailedError(
                f"{self._held.missing} samples of this rank's part of the data store were not read"
            )
        self._sizes = np.zeros(len(self._owners), np.int64)
        for rank, sizes in enumerate(self._group.exchange(self._held.sizes)):
            self._sizes[self._owners == rank] = sizes
        self.filled = True
        self._notes = self._source.notes()
        if type(self._source).spread is Reader.spread:
            self._source.close()


class StoreLoader(BatchLoader):
    """Serve the batches of one rank from the data store of all ranks."""

    serves_empty = True

    def __init__(self, job: LoadJob, *, group: Group, fill: Fill, pin: bool = False) -> None:
        super().__init__(job, workers=0, pin=pin)
        self._group = group
        self._fill = fill
        self._data: DataStore | None = None

    def open(self) -> list[ReaderReport]:
        """Open the reader of the store, connect the ranks, and fill the data store unless the first epoch does."""
        meter = IoMeter()
        meter.begin()
        start = time.perf_counter_ns()
        source = open_backend(self.job)
        try:
            data = DataStore(source, self._fill, self._group)
            if self._fill is Fill.PRELOAD and (counted := meter.read()) is not None:
                data.preload_device_bytes = counted.device_read_bytes
        except BaseException:
            source.close()
            raise
        finally:
            meter.end()
        open_ns = time.perf_counter_ns() - start
        buffer, lasting = ReusedBuffer(pin=self.pin), lasting_memory(pin=self.pin)
        self._producer = Producer(self.job, buffer, reader=data, lasting=lasting)
        opened = self._producer.open()
        self._data = data
        return [dataclasses.replace(opened, open_ns=open_ns + opened.open_ns)]

    def epoch(self, plan: EpochPlan) -> Iterator[LoadedBatch]:
        """Serve the plan's batches in order, including empty ones. Nothing happens before the first is requested."""
        assert self._data is not None, "the loader is open"
        full = dataclasses.replace(plan, batches=[indices for indices in plan.batches if len(indices)])
        made = map(self._producer.produce, requests_of(full, 1))
        shape = batch_shape(self.job)[1:]
        yield from self._data.serve(plan, with_empty_batches(made, plan.batches, shape))

    def close(self) -> list[ReaderReport]:
        if self._data is None:
            return []
        data, self._data = self._data, None
        closed = self._producer.close()
        data.close()
        return [closed]

    @property
    def filled(self) -> bool:
        return self._data is not None and self._data.filled

    def close_epoch(self) -> DataStoreFacts | None:
        return None if self._data is None else self._data.close_epoch()
