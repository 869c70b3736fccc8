"""The loader of worker processes that write into shared memory; messages have a few hundred bytes."""

import contextlib
import io
import math
import multiprocessing
import os
import pickle
import select
import signal
import socket
import traceback
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch

from storebench.errors import StorebenchError
from storebench.loading.batch import BatchRequest, EpochPlan, LoadedBatch, LoadJob, Spans
from storebench.loading.batch_memory import HeldMemory, Placed, Placing, Regions
from storebench.loading.loader import GRACE_S, batch_shape, requests_of, worker_death
from storebench.loading.producer import Producer
from storebench.loading.worker_queues import SLOTS, Ask, Lane, LaneLoader, Slots, attempt, serve
from storebench.probes.batch_io import BatchIo


class _WorkerEnd:
    """The worker's end: shares and regions come in, batches go out, in the region that was lent last."""

    lost = False

    def __init__(self, job: LoadJob, connection: Connection) -> None:
        self._prepared = job.prepare is not None
        self._connection = connection
        self._memory = Regions(reduction.recv_handle(connection))
        self._lent: list[tuple[tuple[int, int], torch.Tensor]] = []
        self._poll = select.poll()  # once: the connection's own poll() makes a selector each time
        self._poll.register(connection.fileno(), select.POLLIN)

    def allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the beginning of the next batch's region."""
        return self._lent[-1][1][: math.prod(shape)].view(shape)

    def waiting(self) -> bool:
        return bool(self._poll.poll(0))

    def receive(self) -> Any:
        """Return the next request, or raise EOFError if the loop's process has ended."""
        message = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - our own parent wrote it
        if isinstance(message, Ask):
            return message
        share, regions = message
        if share is not None:
            self._lent.clear()
        self._lent.extend((region, torch.from_numpy(self._memory.at(*region))) for region in regions)
        return Ask.RELEASE if share is None else requests_of(share, 1)

    def send(self, message: Any) -> None:
        row = attempt(self._row, message) if isinstance(message, LoadedBatch) else message
        if isinstance(row, BaseException):
            # It has to be pickled, and still to name the place where it was raised.
            trace = "".join(traceback.format_exception(row))
            if not isinstance(row, StorebenchError):
                row.add_note(trace)
            copy = attempt(lambda error: pickle.loads(pickle.dumps(error)), row)  # noqa: S301 - as the loop will
            row = row if type(copy) is type(row) else RuntimeError(trace)
        self._connection.send_bytes(pickle.dumps(row))

    def _row(self, batch: LoadedBatch) -> tuple[Any, ...]:
        """Return the message of a batch, whose pixels are in the region."""
        spans, pixels, content = batch.spans, batch.pixels, None
        region, memory = self._lent[-1]
        if self._prepared:
            out = io.BytesIO()
            placing = Placing(out, memory)
            placing.dump(pixels)
            content = placing.used, out.getvalue()
        elif pixels.data_ptr() != memory.data_ptr():  # a ready-made batch, which has its own memory
            self.allocate(tuple(pixels.shape)).copy_(pixels)
        self._lent.pop()
        return (
            region,
            content,
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

    def close(self) -> None:
        """End the worker, as soon as it receives or sends. Closing alone does not: other workers may hold this end."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class RingLane(Lane):
    """A producer in a process, and the memory that it shares with the loop."""

    channel: _LoopEnd

    def __init__(self, job: LoadJob, worker: int, context: BaseContext, *, pin: bool) -> None:
        self._worker = worker
        rows, *self._shape = batch_shape(job)
        own_end, worker_end = multiprocessing.Pipe()
        self._process: BaseProcess = context.Process(  # type: ignore[attr-defined]  # every context has one
            target=_work, args=(job, worker, worker_end, own_end), daemon=True
        )
        self._process.start()
        worker_end.close()  # the worker's copy is the only one left, so its death ends the connection
        super().__init__(_LoopEnd(own_end, self._process))
        self._memory = Regions(pin=pin)
        self._lent: set[tuple[int, int]] = set()
        with contextlib.suppress(ConnectionError):
            reduction.send_handle(own_end, self._memory.file, self._process.pid)
        if rows:
            self._memory.fit(rows * math.prod(self._shape))
            self.channel.send((None, self._lend(SLOTS)))
            for region in self._lent:
                self._memory.at(*region)  # its page faults belong to the opening

    def release(self) -> None:
        """Ask for one batch more, in a region that is free."""
        self.channel.send((None, self._lend(1)))

    def stop(self) -> None:
        self.channel.close()
        self._process.join(GRACE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self._memory.close()

    def _message(self, requests: list[BatchRequest]) -> Any:
        plan = EpochPlan(epoch=requests[0].epoch, batches=[request.indices for request in requests])
        self._memory.fit(max(map(len, plan.batches)) * math.prod(self._shape))
        while self._lent:  # which may be too small now
            self._memory.free(self._lent.pop()[0])
        return plan, self._lend(SLOTS)

    def _lend(self, count: int) -> list[tuple[int, int]]:
        regions = [self._memory.lend() for _ in range(count)]
        self._lent.update(regions)
        return regions

    def _batch(self, item: Any) -> LoadedBatch:
        region, content, payload_bytes, spans, labels, served, io = item
        indices = np.frombuffer(bytearray(served), dtype=np.int64)
        self._lent.remove(region)
        if content is None:
            shape = (len(indices), *self._shape)
            pixels = torch.from_numpy(self._memory.at(*region)[: math.prod(shape)]).view(shape)
            self._memory.free(region[0])  # it is lent again only when the loop asks for the next batch
        else:
            used, message = content
            self._memory.fit(used)
            pixels = Placed(message, self._memory.held(*region)).load()
        start, fetch, decode, prep, ready = spans
        return LoadedBatch(
            pixels=pixels,
            labels=np.frombuffer(bytearray(labels), dtype=np.int64),
            indices=indices,
            spans=Spans(start_ns=start, fetch_ns=fetch, decode_ns=decode, prep_ns=prep, ready_ns=ready),
            payload_bytes=payload_bytes,
            worker=self._worker,
            io=None if io is None else BatchIo(*io),
        )


class RingLoader(LaneLoader):
    """N worker processes fill shared memory in the DataLoader's round robin.

    A cell's batch is valid until the next one is asked for. The batch of a training script may be kept.
    """

    context: BaseContext | None = None
    """How workers start; None to fork them like the DataLoader's: they touch neither CUDA nor the parent's threads."""

    def _start_lane(self, worker: int) -> Lane:
        context = self.context or multiprocessing.get_context("fork")
        return RingLane(self.job, worker, context, pin=self.pin and self.job.prepare is None)


def _work(job: LoadJob, worker: int, connection: Connection, parents: Connection) -> None:
    """Run in the worker process until the loop closes the connection, or its process ends."""
    parents.close()  # or this process would keep its own connection open when the loop's process dies
    for number in (signal.SIGINT, signal.SIGHUP):  # go to the whole group; the loop decides what they mean
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # as in the DataLoader's workers; a pool of threads does not survive a fork
    with contextlib.suppress(EOFError, ConnectionError):
        end = _WorkerEnd(job, connection)
        # The slots only count batches, as many as are lent regions.
        in_region = job.prepare is None or job.prepare.is_view
        slots = Slots([end.allocate if in_region else HeldMemory()] * SLOTS)
        with contextlib.closing(Producer(job, slots.allocate, worker, own_process=True)) as producer:
            serve(end, producer, slots)
