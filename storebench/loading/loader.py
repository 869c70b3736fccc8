"""The loader of torch's DataLoader: worker processes, or the loop's process; a thread may receive batches."""

import contextlib
import dataclasses
import importlib
import os
import queue
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from multiprocessing.connection import wait
from multiprocessing.context import ForkContext
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
import torch.utils.data as torch_data

from storebench.errors import CellFailedError, StorebenchError, UnknownNameError
from storebench.loading.batch import (
    LOOP_WORKER,
    Allocate,
    BatchRequest,
    EpochPlan,
    LoadedBatch,
    LoadJob,
    ReaderReport,
)
from storebench.loading.batch_memory import HeldMemory
from storebench.loading.producer import Producer, lasting_memory
from storebench.record.manifest import Manifest
from storebench.record.schema import DataStoreFacts
from storebench.settings.words import LoaderKind
from storebench.system.processes import signal_name
from storebench.system.scratch import SEGMENTS, remove_segments_of
from storebench.units import format_bytes

# Loader name -> "module:Class".
LOADERS: dict[str, str] = {
    LoaderKind.PROCESSES: "storebench.loading.loader:ProcessLoader",
    LoaderKind.THREADS: "storebench.loading.threads:ThreadLoader",
    LoaderKind.RING: "storebench.loading.ring:RingLoader",
}

# Seconds that a worker may take to end before it is killed.
GRACE_S = 10.0


class BatchLoader(ABC):
    """Serve the batches of an epoch in the harness's order."""

    serves_empty: ClassVar[bool] = False

    def __init__(self, job: LoadJob, *, workers: int, pin: bool = False) -> None:
        self.job = job
        self.workers = workers
        self.pin = pin

    @abstractmethod
    def open(self) -> list[ReaderReport]:
        """Start the producers and open a reader in each."""

    @abstractmethod
    def epoch(self, plan: EpochPlan) -> Iterator[LoadedBatch]:
        """Serve the plan's batches in order. An error in a producer is raised here unchanged."""

    @abstractmethod
    def close(self) -> list[ReaderReport]:
        """Close every reader and stop the producers."""

    def casualty(self) -> CellFailedError | None:
        """Return an error that names the producer that died, after stopping the others; None if all are alive."""
        return None

    @property
    def filled(self) -> bool:
        """Whether the ranks hold every sample in memory, so the next epoch does not read the store."""
        return False

    def close_epoch(self) -> DataStoreFacts | None:
        """Return the facts of the ranks' data store in the last epoch; None without a data store."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def get_loader(name: str) -> type[BatchLoader]:
    """Return the loader class called `name`, or raise `UnknownNameError`."""
    if name not in LOADERS:
        raise UnknownNameError.of("loader", name, LOADERS)
    module, _, attribute = LOADERS[name].partition(":")
    return cast("type[BatchLoader]", getattr(importlib.import_module(module), attribute))


def requests_of(plan: EpochPlan, producers: int) -> list[BatchRequest]:
    """Return the requests of an epoch; the first one to each producer carries its whole share."""
    return [
        BatchRequest(
            epoch=plan.epoch,
            step=step,
            indices=indices,
            plan=plan.batches[step::producers] if step < producers else None,
        )
        for step, indices in enumerate(plan.batches)
    ]


class ReusedBuffer:
    """Return the same buffer each time, for a loop that finishes with a batch before it asks for the next."""

    def __init__(self, *, pin: bool = False) -> None:
        self._buffer: torch.Tensor | None = None
        self._given: torch.Tensor | None = None
        self._shape: tuple[int, ...] = ()
        self._pin = pin

    def __call__(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the buffer, cut to `shape`; what it held before is gone."""
        if self._given is not None and shape == self._shape:
            return self._given
        if self._buffer is None or self._buffer.shape[1:] != shape[1:] or len(self._buffer) < shape[0]:
            # numpy asks the kernel for huge pages and torch does not: a tenth of the rate with large batches.
            self._buffer = (
                torch.empty(shape, dtype=torch.uint8, pin_memory=True)
                if self._pin
                else torch.from_numpy(np.empty(shape, dtype=np.uint8))
            )
            # The first touch pays for the page faults, milliseconds for each 2 MiB in a virtual machine.
            self._buffer.zero_()
        self._given, self._shape = self._buffer[: shape[0]], shape
        return self._given


def batch_memory(job: LoadJob, *, pin: bool) -> Allocate:
    """Return the allocator of batches that one producer makes in the loop's own process."""
    return ReusedBuffer(pin=pin) if job.prepare is None else HeldMemory(pin=pin)


def batch_shape(job: LoadJob) -> tuple[int, ...]:
    """Return the shape (n, h, w, C) of the largest batch of a job; n is 0 if it is not known yet."""
    return (job.batch_size, *job.augment.output_shape(Manifest.read(job.store).dataset.image_shape))


def allocate_shared(shape: tuple[int, ...]) -> torch.Tensor:
    """Return a uint8 tensor in shared memory, so that sending it to another process copies nothing."""
    size = torch.Size(shape).numel()
    try:
        # What default_collate itself calls; torch has no annotation for it.
        storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]  # noqa: SLF001
    except RuntimeError as error:
        remove_segments_of([os.getpid()])
        reason = str(error).rpartition(": ")[2]
        raise _no_shared_memory(f"a batch of {format_bytes(size)}", reason) from error
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


def _no_shared_memory(purpose: str, reason: str) -> CellFailedError:
    """Return an error for shared memory that the kernel refuses."""
    return CellFailedError(
        f"no shared memory for {purpose}: {reason}",
        where=SEGMENTS,
        hint="Enlarge it, use smaller batches, or take another loader: ring and threads do without it.",
    )


class _BatchDataset(torch_data.Dataset[Any]):
    """A map-style dataset whose `__getitems__` is given a whole batch's request, or "open" or "close"."""

    def __init__(self, job: LoadJob, *, pin: bool) -> None:
        self._job = job
        self._pin = pin
        self._producer: Producer | None = None

    @property
    def producer(self) -> Producer:
        """The producer of this process, made when it is first needed."""
        if self._producer is None:
            info = torch_data.get_worker_info()
            if info:
                self._producer = Producer(
                    self._job, allocate_shared, info.id, lasting=allocate_shared, own_process=True
                )
            else:
                lasting = lasting_memory(pin=self._pin)
                self._producer = Producer(self._job, ReusedBuffer(pin=self._pin), lasting=lasting)
        return self._producer

    def __getitems__(self, request: BatchRequest | str) -> LoadedBatch | ReaderReport | StorebenchError:
        try:
            producer = self.producer
            if isinstance(request, str):
                return producer.open() if request == "open" else producer.close()
            make = producer.produce if producer.worker == LOOP_WORKER else producer.produce_counted
            return make(request)
        except StorebenchError as error:
            return error  # raised here, the DataLoader would tell it in words of its own


class _ResultQueue(Queue):  # type: ignore[type-arg]  # it is no generic class when it runs
    """A queue whose thread reports what it could not send; torch's loop would wait for it for ever."""

    def _on_queue_feeder_error(self, e: Exception, obj: Any) -> None:
        number, item = obj if isinstance(obj, tuple) and len(obj) == 2 else (None, None)
        if number is None or isinstance(item, StorebenchError):
            os._exit(1)  # the loop notices that the worker has died
        self.put((number, CellFailedError(f"a worker could not hand over a batch: {e}")))


class _Context(ForkContext):
    def Queue(self, maxsize: int = 0) -> "Queue[Any]":  # noqa: N802 - what multiprocessing calls it
        return _ResultQueue(maxsize, ctx=self.get_context())


class ProcessLoader(BatchLoader):
    """``torch.utils.data.DataLoader``: worker processes, or the loop's own process for 0 workers."""

    def __init__(self, job: LoadJob, *, workers: int, pin: bool = False) -> None:
        super().__init__(job, workers=workers, pin=pin)
        self._requests: list[Any] = []  # what the batch sampler yields
        self._dataset = _BatchDataset(job, pin=pin)
        # A generator of its own: the DataLoader would otherwise draw from the one that initialises the network.
        self._loader = torch_data.DataLoader(
            self._dataset,
            batch_sampler=self._requests,
            num_workers=workers,
            collate_fn=lambda item: item,
            pin_memory=pin and workers > 0,
            persistent_workers=workers > 0,
            multiprocessing_context=_Context() if workers else None,
            generator=torch.Generator().manual_seed(job.seed),
        )
        self._open = False

    def open(self) -> list[ReaderReport]:
        self._open = True
        try:
            return self._ask_everyone("open")
        except OSError as error:
            # Only the semaphores of the DataLoader's queues are made here without a file that an error would name.
            if not self.workers or error.errno is None or error.filename is not None:
                raise
            self._open = False
            raise _no_shared_memory("the queues of the workers", os.strerror(error.errno)) from error

    def epoch(self, plan: EpochPlan) -> Iterator[LoadedBatch]:
        """Serve the plan's batches through the DataLoader; without workers it would only pass them on."""
        requests = requests_of(plan, max(1, self.workers))
        if not self.workers:
            return map(self._dataset.producer.produce, requests)
        return self._serve(requests)

    def close(self) -> list[ReaderReport]:
        if not self._open:
            return []
        self._open = False
        try:
            return self._ask_everyone("close")
        finally:
            self._stop_workers()

    def _stop_workers(self) -> None:
        # There is no public way to stop persistent workers. Dropping the iterator is not enough while an error
        # propagates: its traceback keeps the iterator, and so the workers, alive.
        iterator = cast("Any", self._loader._iterator)  # noqa: SLF001
        self._loader._iterator = None  # noqa: SLF001
        if iterator is None:
            return
        iterator._shutdown_workers()  # noqa: SLF001
        for worker in cast("list[BaseProcess]", getattr(iterator, "_workers", [])):
            # torch ends the remaining workers with SIGTERM, which a stopped process does not receive.
            worker.join(1.0)
            if worker.is_alive():
                worker.kill()
                worker.join()
            remove_segments_of([worker.pid])

    def _ask_everyone(self, request: str) -> list[ReaderReport]:
        return cast("list[ReaderReport]", list(self._serve([request] * max(1, self.workers))))

    def _serve(self, requests: list[Any]) -> Iterator[Any]:
        self._requests[:] = requests
        try:
            for item in self._items():
                if isinstance(item, StorebenchError):
                    raise item
                yield item
        except (RuntimeError, OSError, EOFError) as error:
            # torch reports a dead worker by a RuntimeError. An OSError is raised if a batch that a dead worker has sent
            # can no longer be fetched from it, which may be a moment before it counts as dead.
            dead = self._dead_worker(wait_s=0.0 if isinstance(error, RuntimeError) else 1.0)
            if dead is None:
                raise
            raise self._mourn(dead) from error

    def _items(self) -> Iterator[Any]:
        return iter(self._loader)

    def casualty(self) -> CellFailedError | None:
        dead = self._dead_worker(wait_s=0.0)
        return None if dead is None else self._mourn(dead)

    def _mourn(self, dead: BaseProcess) -> CellFailedError:
        # Waiting for the others would never end.
        self._open = False
        self._stop_workers()
        return worker_death(dead)

    def _dead_worker(self, wait_s: float) -> BaseProcess | None:
        iterator = cast("Any", self._loader._iterator)  # noqa: SLF001
        workers = cast("list[BaseProcess]", getattr(iterator, "_workers", []))
        if wait_s and workers:
            # torch's handler of SIGCHLD would raise a RuntimeError of its own anywhere in the loop.
            with contextlib.suppress(RuntimeError):
                wait([worker.sentinel for worker in workers], wait_s)
        for worker in workers:
            with contextlib.suppress(RuntimeError):
                if wait([worker.sentinel], 0):
                    worker.join(wait_s)
        return next((worker for worker in workers if not worker.is_alive()), None)


def worker_death(process: BaseProcess) -> CellFailedError:
    """Return an error that describes the end of a worker process."""
    process.join(GRACE_S)
    code = process.exitcode or 0
    how = f"was killed by {signal_name(code)}" if code < 0 else f"ended with exit code {code}"
    hint = "If memory ran out, use fewer workers or smaller batches."
    if code == -signal.SIGBUS:
        hint = "A file that it had mapped was cut short, or cannot be read from its disk."
    return CellFailedError(f"the loader's worker process {process.pid} {how}", hint=hint)


# The thread looks this often whether it is to end.
POLL_S = 0.1

# Note of the readers whose batches a thread received.
RECEIVED = {"received_by": "thread"}


class ReceivingLoader(ProcessLoader):
    """`ProcessLoader` with a thread that receives and copies the batches of the worker processes."""

    def __init__(self, job: LoadJob, *, workers: int, pin: bool = False) -> None:
        super().__init__(job, workers=workers, pin=pin)
        self._receives = workers > 0 and not pin  # where it pins, torch has a thread of its own
        self._thread: _ReceivingThread | None = None

    def open(self) -> list[ReaderReport]:
        opened = super().open()
        if not self._receives:
            return opened
        return [dataclasses.replace(report, notes=report.notes | RECEIVED) for report in opened]

    def _items(self) -> Iterator[Any]:
        items = super()._items()
        if not self._receives:
            yield from items
            return
        if self._thread is None:
            self._thread = _ReceivingThread(items, batch_shape(self.job))
        for item in items:
            buffer = self._thread.buffer_of(item)
            yield item
            self._thread.use_again(buffer)

    def _stop_workers(self) -> None:
        thread, self._thread = self._thread, None
        try:
            if thread is not None:
                thread.stop()
        finally:  # torch or Ctrl-C may interrupt the wait
            super()._stop_workers()


class _ReceivingThread:
    """Take items from the workers' queue, copy the pixels of batches, and pass all on to the DataLoader's iterator."""

    def __init__(self, iterator: Any, shape: tuple[int, ...]) -> None:
        # What torch itself does where it pins: the iterator reads another queue than the workers write to.
        self._sent = iterator._worker_result_queue  # noqa: SLF001
        self._received = iterator._data_queue = _Received()  # noqa: SLF001
        self._free = [ReusedBuffer() for _ in range(3)]  # with the loop, ready, being received
        for buffer in self._free:
            buffer(shape)  # its page faults belong to the opening
        self._lent: dict[int, ReusedBuffer] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="storebench-receiving", daemon=True)
        self._thread.start()

    def buffer_of(self, item: Any) -> ReusedBuffer | None:
        """Return the memory of a batch, which is the loop's until `use_again`; None for other items."""
        return self._lent.pop(item.pixels.data_ptr()) if isinstance(item, LoadedBatch) else None

    def use_again(self, buffer: ReusedBuffer | None) -> None:
        if buffer is not None:
            self._free.append(buffer)

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(5.0)  # it never ends while it waits for the rest of what a dead worker was sending

    def _receive(self) -> None:
        while not self._ending.is_set():
            try:
                number, item = self._sent.get(timeout=POLL_S)
                if isinstance(item, LoadedBatch):
                    # More are taken where batches wait for a slow loop, or for those that it left with an epoch.
                    buffer = self._free.pop() if self._free else ReusedBuffer()
                    pixels = buffer(tuple(item.pixels.shape))
                    np.copyto(pixels.numpy(), item.pixels.numpy())
                    self._lent[pixels.data_ptr()] = buffer
                    item.pixels = pixels
            except queue.Empty:
                continue
            except Exception as error:  # noqa: BLE001 - the loop raises it, and ends its epoch
                self._received.put(error)
                self._ending.wait(POLL_S)  # one that lasts would otherwise fill the queue
                continue
            self._received.put((number, item))
            del item  # or its memory would be held until the next one comes


class _Received(queue.Queue[Any]):
    """A queue that raises the errors that are put into it."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)
        if isinstance(item, Exception):
            raise item
        return item
