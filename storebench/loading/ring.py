"""The loader of worker processes that write into a ring of shared batches; messages have a few hundred bytes."""

import contextlib
import functools
import math
import mmap
import multiprocessing
import os
import pickle
import select
import signal
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch

from storebench.errors import StorebenchError
from storebench.formats.base import Indices
from storebench.loading.batch import BatchRequest, EpochPlan, LoadedBatch, LoadJob, Spans
from storebench.loading.lanes import SLOTS, Ask, Lane, LaneLoader, Slots, serve
from storebench.loading.loader import GRACE_S, requests_of, worker_death
from storebench.loading.producer import Producer
from storebench.manifest import Manifest
from storebench.probes.batch_io import BatchIo


class RingMemory:
    """Slots for batches in anonymous shared memory."""

    def __init__(self, file: int | None = None, *, pin: bool = False, slots: int = SLOTS) -> None:
        self.file = os.memfd_create("storebench-ring") if file is None else file
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.slot_bytes = 0
        self._slots = slots
        self._pin = pin
        self._locked = False

    def fit(self, batch_bytes: int) -> None:
        """Make each slot large enough for a batch of `batch_bytes`. Call it between epochs only: slots move when they grow."""
        if batch_bytes <= self.slot_bytes:
            return
        self._unlock()
        self.slot_bytes = -(-batch_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        size = self._slots * self.slot_bytes
        if os.fstat(self.file).st_size < size:
            os.ftruncate(self.file, size)
        # The map lives for as long as any tensor on it, so a batch that is kept for too long is stale, never a crash.
        mapped = mmap.mmap(self.file, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        mapped.madvise(mmap.MADV_DONTFORK)  # the workers that are forked after this one have no use for it
        self._memory = torch.frombuffer(mapped, dtype=torch.uint8)
        if self._pin and torch.cuda.is_available():
            # Page-lock it. If the driver refuses, copies to the GPU are slower, but not wrong.
            code = _cudart().cudaHostRegister(self._memory.data_ptr(), size, 0)
            self._locked = int(code) == 0

    def slot(self, number: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Return slot `number`, cut to `shape`, for the producer."""
        return self.at(number * self.slot_bytes, shape)

    def at(self, offset: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the batch at `offset`, for the loop."""
        return self._memory[offset : offset + torch.Size(shape).numel()].view(shape)

    def offset_of(self, pixels: torch.Tensor) -> int | None:
        """Return the offset of a batch in this memory; None if it is in other memory."""
        offset = pixels.data_ptr() - self._memory.data_ptr()
        return offset if 0 <= offset < len(self._memory) else None

    def close(self) -> None:
        self._unlock()
        self._memory = torch.empty(0, dtype=torch.uint8)
        os.close(self.file)

    def _unlock(self) -> None:
        if self._locked:
            _cudart().cudaHostUnregister(self._memory.data_ptr())
            self._locked = False


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no annotation for it


@dataclass(frozen=True, kw_only=True, slots=True)
class _Share:
    """A worker's share of an epoch, and the size that its slots need."""

    plan: EpochPlan
    slot_bytes: int


class WorkerEnd(ABC):
    """The worker's end: shares come in as plans, batches go out as rows."""

    lost = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._poll = select.poll()  # once: the connection's own poll() makes a selector each time
        self._poll.register(connection.fileno(), select.POLLIN)

    def waiting(self) -> bool:
        return bool(self._poll.poll(0))

    def receive(self) -> Any:
        """Return the next request, or raise EOFError if the loop's process has ended."""
        return self._request(pickle.loads(self._connection.recv_bytes()))  # noqa: S301 - our own parent wrote it

    def send(self, message: Any) -> None:
        if isinstance(message, LoadedBatch):
            message = self._row(message)
        elif isinstance(message, BaseException):
            # It has to be pickled, and still to name the place where it was raised.
            trace = "".join(traceback.format_exception(message))
            if not isinstance(message, StorebenchError):
                message.add_note(trace)
            try:
                pickle.loads(pickle.dumps(message))  # noqa: S301 - the other side has to load it, too
            except Exception:  # noqa: BLE001 - an error's own pickling may raise anything
                message = RuntimeError(trace)
        self._connection.send_bytes(pickle.dumps(message))

    @abstractmethod
    def _request(self, message: Any) -> Any:
        """Return the request that a message of the loop stands for."""

    @abstractmethod
    def _row(self, batch: LoadedBatch) -> tuple[Any, ...]:
        """Return what is sent of a batch besides its pixels, which are in shared memory."""


class _RingEnd(WorkerEnd):
    """The end of a worker that writes into a ring."""

    def __init__(self, connection: Connection, memory: RingMemory, slots: Slots) -> None:
        super().__init__(connection)
        self._memory = memory
        self._slots = slots

    def _request(self, message: Any) -> Any:
        if not isinstance(message, _Share):
            return message
        self._memory.fit(message.slot_bytes)
        return requests_of(message.plan, 1)

    def _row(self, batch: LoadedBatch) -> tuple[Any, ...]:
        spans, pixels = batch.spans, batch.pixels
        offset = self._memory.offset_of(pixels)
        if offset is None:  # a ready-made batch, which has its own memory
            offset = self._memory.offset_of(self._slots.allocate(tuple(pixels.shape)).copy_(pixels))
        assert offset is not None
        return (
            offset,
            batch.payload_bytes,
            (spans.start_ns, spans.fetch_ns, spans.decode_ns, spans.prep_ns, spans.ready_ns),
            batch.labels.tobytes(),
            batch.indices.tobytes(),
            None if batch.io is None else tuple(batch.io),
        )


class _LoopEnd:
    """The loop's end of a worker's connection; it notices when the worker has ended."""

    def __init__(self, connection: Connection, process: BaseProcess) -> None:
        self.lost = False
        self._connection = connection
        self._process = process

    def send(self, message: Any) -> None:
        """Send a request, unless the worker has died; then the next answer is the error."""
        with contextlib.suppress(ConnectionError):
            self._connection.send_bytes(pickle.dumps(message))

    def receive(self) -> Any:
        """Return the next answer, or the error that explains why there will be none."""
        self.lost = True  # also if an interrupt cuts an answer in two, after which nothing can be read
        try:
            message = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - our own child wrote it
        except (EOFError, ConnectionError):
            return worker_death(self._process)
        self.lost = False
        return message

    def waiting(self) -> bool:
        return self._connection.poll()

    def send_file(self, file: int) -> None:
        """Send a file descriptor, also to a process that was not forked."""
        with contextlib.suppress(ConnectionError):
            reduction.send_handle(self._connection, file, self._process.pid)

    def close(self) -> None:
        self._connection.close()


class ProcessLane(Lane):
    """A producer in a process, which runs ``work(*arguments, connection, the loop's own end of it)``."""

    channel: _LoopEnd

    def __init__(self, context: BaseContext, work: Callable[..., None], *arguments: Any) -> None:
        own_end, worker_end = multiprocessing.Pipe()
        self._process: BaseProcess = context.Process(  # type: ignore[attr-defined]  # every context has one
            target=work, args=(*arguments, worker_end, own_end), daemon=True
        )
        self._process.start()
        worker_end.close()  # the worker's copy is the only one left, so its death ends the connection
        super().__init__(_LoopEnd(own_end, self._process))

    def stop(self) -> None:
        """End the process, by a message if it still answers."""
        if self.channel.lost:
            self._process.kill()
        self.channel.send(Ask.STOP)
        self._process.join(GRACE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self.channel.close()


class RingLane(ProcessLane):
    """A producer in a process, and the memory that it shares with the loop."""

    def __init__(self, job: LoadJob, worker: int, shape: tuple[int, int, int], *, pin: bool) -> None:
        self._worker = worker
        self._shape = shape
        self._memory = RingMemory(pin=pin)
        self._indices: list[Indices] = []
        batch_bytes = job.batch_size * math.prod(shape)
        # Forked like the DataLoader's workers: memory and connection are inherited, no reader is open yet,
        # and the worker touches neither CUDA nor the parent's pool of threads.
        context = multiprocessing.get_context("fork")
        super().__init__(context, _work, job, worker, self._memory.file, batch_bytes)
        self._memory.fit(batch_bytes)

    def begin(self, requests: list[BatchRequest]) -> None:
        """Make room for the largest batch, then send the worker its share."""
        self._indices = [request.indices for request in requests]
        largest = max(map(len, self._indices), default=0)
        self._memory.fit(largest * math.prod(self._shape))
        super().begin(requests)

    def _message(self, requests: list[BatchRequest]) -> Any:
        plan = EpochPlan(epoch=requests[0].epoch, batches=self._indices)
        return _Share(plan=plan, slot_bytes=self._memory.slot_bytes)

    def _batch(self, item: Any) -> LoadedBatch:
        offset, payload_bytes, spans, labels, served, io = item
        indices = np.frombuffer(bytearray(served), dtype=np.int64)
        start, fetch, decode, prep, ready = spans
        return LoadedBatch(
            pixels=self._memory.at(offset, (len(indices), *self._shape)),
            labels=np.frombuffer(bytearray(labels), dtype=np.int64),
            indices=indices,
            spans=Spans(start_ns=start, fetch_ns=fetch, decode_ns=decode, prep_ns=prep, ready_ns=ready),
            payload_bytes=payload_bytes,
            worker=self._worker,
            io=None if io is None else BatchIo(*io),
        )

    def stop(self) -> None:
        """End the process, and release the memory."""
        super().stop()
        self._memory.close()


class RingLoader(LaneLoader):
    """N worker processes fill a bounded ring of shared batches that are reused, in the DataLoader's round robin."""

    def _start_lane(self, worker: int) -> Lane:
        shape = self.job.augment.output_shape(Manifest.read(self.job.store).dataset.image_shape)
        return RingLane(self.job, worker, shape, pin=self.pin)


def _work(
    job: LoadJob, worker: int, file: int, batch_bytes: int, connection: Connection, parents: Connection
) -> None:
    """Run in the worker process until the loop sends `Ask.STOP`, or its process ends."""
    become_worker(parents)
    memory = RingMemory(file)
    memory.fit(batch_bytes)
    slots = Slots([functools.partial(memory.slot, number) for number in range(SLOTS)])
    producer = Producer(job, slots.allocate, worker, own_process=True)
    serve_process(_RingEnd(connection, memory, slots), producer, slots)


def become_worker(parents: Connection) -> None:
    """Prepare a worker process; `parents` is the loop's end of the connection."""
    parents.close()  # or this process would keep its own connection open when the loop's process dies
    for number in (signal.SIGINT, signal.SIGHUP):  # go to the whole group; the loop decides what they mean
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # as in the DataLoader's workers; a pool of threads does not survive a fork


def serve_process(end: WorkerEnd, producer: Producer, slots: Slots) -> None:
    try:
        with contextlib.suppress(EOFError, ConnectionError):
            serve(end, producer, slots)
    finally:
        producer.close()
