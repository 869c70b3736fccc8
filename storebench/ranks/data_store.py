"""The data store of a job: every rank keeps a part of the samples in memory and sends them to the others."""

import collections
import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from storebench.arrays import Bytes
from storebench.errors import CellFailedError
from storebench.formats.base import Batch, Fetched, Indices, Reader
from storebench.loading.batch import EpochPlan, LoadedBatch, LoadJob, ReaderReport, with_empty_batches
from storebench.loading.loader import ReusedBuffer, batch_shape, requests_of
from storebench.loading.order import split_batches
from storebench.loading.producer import Producer, lasting_memory, open_backend
from storebench.probes.batch_io import IoMeter
from storebench.ranks.group import Group
from storebench.ranks.heartbeat import NO_PROGRESS, RankProgress
from storebench.ranks.launch import MOST_WAIT_S
from storebench.ranks.memory import STEPS_UNDER_WAY, needed_bytes, refusal
from storebench.ranks.sharing import SharedLoader
from storebench.record.schema import DataStoreFacts
from storebench.settings.words import Fill

# The rank that holds each sample in memory, int32 [count].
Owners = npt.NDArray[np.int32]
# The owner of a sample that no rank holds.
NOBODY = -1
# Positions in an array, int64 [n], and bytes of samples, int64 [n].
Positions = npt.NDArray[np.intp]
ByteCounts = npt.NDArray[np.int64]
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


class HeldSamples(ABC):
    """Samples in the memory of their owner."""

    def __init__(self, own: Indices) -> None:
        self.own = own
        self.held_bytes = 0
        self._kept = np.zeros(len(own), bool)

    @property
    def missing(self) -> int:
        return len(self.own) - int(np.count_nonzero(self._kept))

    @abstractmethod
    def pack(self, samples: Indices) -> Bytes:
        """Return a copy of own samples as the content of a message, in the order of `samples`."""

    def _new(self, samples: Indices) -> tuple[Positions, Positions]:
        """Return the rows and places of own samples that are not in memory yet, each sample once."""
        if not len(self.own):
            return np.empty(0, np.intp), np.empty(0, np.intp)
        places: Positions = np.minimum(np.searchsorted(self.own, samples), len(self.own) - 1)
        rows = np.flatnonzero((self.own[places] == samples) & ~self._kept[places])
        places, first = np.unique(places[rows], return_index=True)
        self._kept[places] = True
        return rows[first], places

    def _places(self, samples: Indices) -> Positions:
        """Return the places of own samples that are in memory."""
        places: Positions = np.minimum(np.searchsorted(self.own, samples), max(0, len(self.own) - 1))
        if len(samples) and not (
            len(self.own) and (self.own[places] == samples).all() and self._kept[places].all()
        ):
            raise CellFailedError("the data store was asked for a sample that this rank does not hold")
        return places


class HeldPixels(HeldSamples):
    """Pixels of images of one size."""

    def __init__(self, own: Indices, shape: tuple[int, int, int]) -> None:
        super().__init__(own)
        self._pixels = np.empty((len(own), *shape), np.uint8)

    def keep(self, samples: Indices, pixels: Batch) -> None:
        """Keep the own samples among `samples`, whose `pixels` are uint8 [n, H, W, C]."""
        rows, places = self._new(samples)
        self._pixels[places] = pixels[rows]
        self.held_bytes += len(rows) * self._pixels[:1].nbytes

    def pack(self, samples: Indices) -> Bytes:
        return self._pixels[self._places(samples)].reshape(-1)

    def put(self, samples: Indices, rows: Positions, out: Batch) -> None:
        """Copy own samples into rows of a batch, uint8 [n, H, W, C]."""
        out[rows] = self._pixels[self._places(samples)]


class HeldPayloads(HeldSamples):
    """Payloads as stored, for codecs that the harness decodes."""

    def __init__(self, own: Indices) -> None:
        super().__init__(own)
        self._payloads = [b""] * len(own)
        self.sizes = np.zeros(len(own), np.int64)
        """Bytes of each own payload, in ascending order of the samples; 0 for those that are not in memory yet."""

    def keep(self, samples: Indices, payloads: Sequence[bytes]) -> None:
        """Keep the own samples among `samples`, with their `payloads`."""
        for row, place in zip(*self._new(samples), strict=True):
            payload = self._payloads[place] = payloads[row]
            self.sizes[place] = len(payload)
            self.held_bytes += len(payload)

    def pack(self, samples: Indices) -> Bytes:
        joined = bytearray().join(self.payloads(samples))
        return np.frombuffer(joined, np.uint8)

    def payloads(self, samples: Indices) -> list[bytes]:
        return [self._payloads[place] for place in self._places(samples)]


def cut(content: Bytes, sizes: ByteCounts) -> list[bytes]:
    """Split a message into its payloads, given the bytes of each."""
    ends = np.cumsum(sizes).tolist()
    return [content[end - size : end].tobytes() for end, size in zip(ends, sizes.tolist(), strict=True)]


class Messages:
    """Messages between all ranks of a job. All ranks create theirs together."""

    def __init__(self, progress: RankProgress = NO_PROGRESS) -> None:
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=MOST_WAIT_S))
        self._progress = progress

    def send(self, content: Bytes, to: int, step: int) -> dist.Work:
        """Post a message to another rank and return the work to wait for. `content` must not change until then."""
        return _posted(dist.isend(torch.from_numpy(content), to, group=self._group, tag=step % _TAGS))

    def receive(self, content: Bytes, source: int, step: int) -> dist.Work:
        """Post the receipt of a message into `content`, which has its size, and return the work to wait for."""
        return _posted(dist.irecv(torch.from_numpy(content), source, group=self._group, tag=step % _TAGS))

    def wait(self, works: Sequence[dist.Work]) -> int:
        """Wait until messages have been sent or received, and return the nanoseconds of the wait."""
        if not works:
            return 0
        start = time.perf_counter_ns()
        with self._progress.waiting():
            for work in works:
                work.wait()
        return time.perf_counter_ns() - start


def _posted(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is a member of the group"
    return work


@dataclass(kw_only=True)
class Traffic:
    """Samples, bytes and time of one rank's exchange in one epoch."""

    from_memory: int = 0
    from_ranks: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    exchange_ns: int = 0
    waited_ns: int = 0
    after_last_ns: int = 0
    buffer_bytes: int = 0
    most_buffer_bytes: int = 0

    def take(self, size: int) -> None:
        """Count the buffer of a message: positive when it is posted, negative when it is released."""
        self.buffer_bytes += size
        self.most_buffer_bytes = max(self.most_buffer_bytes, self.buffer_bytes)


@dataclass(kw_only=True)
class Incoming:
    """The messages of one step that this rank receives, with the rows that it does not hold itself."""

    transfer: Transfer
    messages: list[tuple[Positions, Bytes]] = field(default_factory=list)
    works: list[dist.Work] = field(default_factory=list)


class Deliveries:
    """Exchange the samples of one epoch between ranks, step by step; every rank goes through the same steps."""

    def __init__(
        self,
        transfers: Iterable[Transfer],
        *,
        pack: Callable[[Indices], Bytes],
        sizes: ByteCounts,
        messages: Messages,
        traffic: Traffic,
    ) -> None:
        self._transfers = iter(transfers)
        self._pack = pack
        self._sizes = sizes
        self._messages = messages
        self._traffic = traffic
        self._number = 0
        self._incoming: collections.deque[Incoming] = collections.deque()
        # Contents of messages, which must not change until they have arrived.
        self._outgoing: collections.deque[tuple[list[Bytes], list[dist.Work]]] = collections.deque()

    def over(self, batches: Iterator[LoadedBatch]) -> Iterator[LoadedBatch]:
        """Yield batches, exchanging their samples on the way; in a step without samples, this rank only sends."""
        start, traffic = time.perf_counter_ns(), self._traffic
        self._post()
        traffic.exchange_ns += time.perf_counter_ns() - start
        for batch in batches:
            if not len(batch.indices):
                self.take(batch.indices)
            yield batch
        start = time.perf_counter_ns()
        while self._outgoing:
            self._complete()
        traffic.after_last_ns = time.perf_counter_ns() - start
        traffic.exchange_ns += traffic.after_last_ns

    def take(self, samples: Indices) -> Incoming:
        """Return this rank's batch of the next step, and post the messages of the step after it."""
        start = time.perf_counter_ns()
        if not self._incoming or not np.array_equal(self._incoming[0].transfer.samples, samples):
            raise CellFailedError("the data store was asked for a batch that is not the next one of its plan")
        current = self._incoming.popleft()
        self._post()
        traffic = self._traffic
        traffic.waited_ns += self._messages.wait(current.works)
        for rows, content in current.messages:
            traffic.from_ranks += len(rows)
            traffic.received_bytes += content.nbytes
            traffic.take(-content.nbytes)
        traffic.from_memory += len(current.transfer.held)
        traffic.exchange_ns += time.perf_counter_ns() - start
        return current

    def _post(self) -> None:
        transfer = next(self._transfers, None)
        if transfer is None:
            return
        while len(self._outgoing) >= STEPS_UNDER_WAY:
            self._traffic.waited_ns += self._complete()
        incoming = Incoming(transfer=transfer)
        for source, rows in transfer.receive.items():
            content = np.empty(int(self._sizes[transfer.samples[rows]].sum()), np.uint8)
            incoming.messages.append((rows, content))
            incoming.works.append(self._messages.receive(content, source, self._number))
            self._traffic.take(content.nbytes)
        self._incoming.append(incoming)
        contents: list[Bytes] = []
        works: list[dist.Work] = []
        for target, samples in transfer.send.items():
            contents.append(content := self._pack(samples))
            works.append(self._messages.send(content, target, self._number))
            self._traffic.sent_bytes += content.nbytes
            self._traffic.take(content.nbytes)
        self._outgoing.append((contents, works))
        self._number += 1

    def _complete(self) -> int:
        """Wait until this rank's oldest messages have arrived, and return the nanoseconds of the wait."""
        contents, works = self._outgoing.popleft()
        waited_ns = self._messages.wait(works)
        for content in contents:
            self._traffic.take(-content.nbytes)
        return waited_ns


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
        assert plan.everyone is not None
        assert self._messages is not None
        self._traffic = Traffic()
        self._asked_before = self._source.asked_samples
        if not self.filled:
            self._own(first_owners(self._source.manifest.count, plan.everyone))
            yield from batches
            return
        self._deliveries = Deliveries(
            (transfer_of(pieces, self._owners, self._rank) for pieces in plan.everyone),
            pack=self._held.pack,
            sizes=self._sizes,
            messages=self._messages,
            traffic=self._traffic,
        )
        yield from self._deliveries.over(batches)

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
        own_rows = arrived.transfer.held
        for row, payload in zip(own_rows, held.payloads(samples[own_rows]), strict=True):
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
        held.put(samples[arrived.transfer.held], arrived.transfer.held, out)
        for rows, content in arrived.messages:
            out[rows] = content.reshape(-1, *out.shape[1:])
        return Fetched(out.nbytes)

    def _arrived(self, samples: Indices) -> Incoming:
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
        for refused in filter(None, self._group.exchange(mine)):
            raise CellFailedError(refused)

    def _own(self, owners: Owners) -> None:
        self._owners = owners
        samples = np.flatnonzero(owners == self._rank).astype(np.int64)
        self._held = HeldPixels(samples, self._source.image_shape) if self._pixels else HeldPayloads(samples)

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
            self._sizes = np.zeros(len(self._owners), np.int64)
            for rank, sizes in enumerate(self._group.exchange(self._held.sizes)):
                self._sizes[self._owners == rank] = sizes
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
        self._source.spread(work, count)

    def notes(self) -> dict[str, str]:
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


class StoreLoader(SharedLoader):
    """Serve the batches of one rank from the data store of all ranks."""

    _data: DataStore | None = None

    def open(self) -> list[ReaderReport]:
        """Open the reader of the store, connect the ranks, and fill the data store unless the first epoch does."""
        meter = IoMeter()
        meter.begin()
        start = time.perf_counter_ns()
        source = open_backend(self.job)
        data = DataStore(source, self.job, group=self.group, progress=self.progress, meter=meter)
        try:
            data.prepare()
        except BaseException:
            source.close()
            raise
        finally:
            meter.end()
        open_ns = time.perf_counter_ns() - start
        self._producer = Producer(
            self.job,
            ReusedBuffer(pin=self.pin),
            reader=data.reader,
            lasting=lasting_memory(pin=self.pin),
        )
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
        data.reader.close()
        return [closed]

    @property
    def filled(self) -> bool:
        return self._data is not None and self._data.filled

    def close_epoch(self) -> DataStoreFacts | None:
        return None if self._data is None else self._data.close_epoch()
