"""The loader of threads: producers in the loop's own process make batches ahead of it, so a handoff copies nothing."""

import collections
import queue
import threading
import time
from dataclasses import replace
from typing import Any

import torch

from storebench.formats.registry import traits_of
from storebench.loading.batch import LOOP_WORKER, BatchRequest, LoadedBatch, LoadJob, ReaderReport
from storebench.loading.loader import batch_memory, batch_shape
from storebench.loading.producer import Producer, lasting_memory
from storebench.loading.worker_queues import SLOTS, Ask, Lane, LaneLoader, Slots, serve

SHORT_STEP_NS = 50_000
"""If the loop asks again within this many nanoseconds, a handoff costs more than it hides."""

SHORT_STEPS = 3
"""After this many short steps in a row, the loop makes the next batch itself."""


class _QueueEnd:
    """One end of a pair of queues; the queue's own methods, because each batch passes here twice."""

    lost = False

    def __init__(self, inbox: "queue.SimpleQueue[Any]", outbox: "queue.SimpleQueue[Any]") -> None:
        self.receive = inbox.get
        self.send = outbox.put
        self._inbox = inbox

    def waiting(self) -> bool:
        return not self._inbox.empty()


class ThreadLane(Lane):
    """A producer in a thread."""

    def __init__(self, producer: Producer, slots: Slots) -> None:
        to_loop: queue.SimpleQueue[Any] = queue.SimpleQueue()
        to_producer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        super().__init__(_QueueEnd(to_loop, to_producer))
        self._thread = threading.Thread(
            target=_work,
            args=(_QueueEnd(to_producer, to_loop), producer, slots),
            name=f"storebench-loader-{producer.worker}",
            daemon=True,  # a loader that was not closed must not keep the interpreter from exiting
        )
        self._thread.start()

    def stop(self) -> None:
        self.channel.send(Ask.STOP)
        self._thread.join()


def _work(channel: _QueueEnd, producer: Producer, slots: Slots) -> None:
    """Run in the producer's thread until the loop sends `Ask.STOP`."""
    # One thread, as in worker processes: two teams of threads in one process wait for each other all the time.
    # Query the number first: a thread that has never queried it adopts the number that another thread sets later.
    torch.get_num_threads()
    torch.set_num_threads(1)
    serve(channel, producer, slots)


class OnlyThreadLane(ThreadLane):
    """The only producer, in a thread; the loop makes batches itself while its steps are too short to hide anything."""

    def __init__(self, producer: Producer, slots: Slots) -> None:
        super().__init__(producer, slots)
        self.made_by_loop = 0
        self._producer = producer
        self._slots = slots
        self._share: list[BatchRequest] = []
        self._given = 0
        self._given_ns: int | None = None
        self._short_steps = 0
        self._parked = False
        self._made: collections.deque[LoadedBatch | BaseException] = collections.deque()

    def begin(self, requests: list[BatchRequest]) -> None:
        self._share, self._given, self._given_ns = requests, 0, None
        self._short_steps, self._parked = 0, False
        self._made.clear()
        super().begin(requests)

    def take(self) -> LoadedBatch:
        """Return the next batch, made here or in the thread, or raise the error that prevented it."""
        if self._given_ns is not None:
            self._choose_side(time.perf_counter_ns() - self._given_ns)
        if self._made:
            made = self._made.popleft()
            if isinstance(made, BaseException):
                raise made
            batch = made
        elif self._parked:
            self._slots.lend()
            batch = self._producer.produce(self._share[self._given])
            batch.worker = LOOP_WORKER
            self.made_by_loop += 1
        else:
            batch = super().take()
        self._given += 1
        self._given_ns = time.perf_counter_ns()
        return batch

    def release(self) -> None:
        if self._parked:
            self._slots.take_back()
        else:
            super().release()

    def paused(self, nanoseconds: int) -> None:
        if self._given_ns is not None:
            self._given_ns += nanoseconds

    def _choose_side(self, step_ns: int) -> None:
        self._short_steps = self._short_steps + 1 if step_ns < SHORT_STEP_NS else 0
        if self._parked and not self._short_steps and not self._made:
            self._parked = False
            super().begin(self._share[self._given :])
        elif not self._parked and self._short_steps == SHORT_STEPS:
            # Let the thread finish its current batch and wait; keep the batches that it has made.
            self._parked = True
            self._taken = self._asked  # so nothing is left to abandon
            self.channel.send(Ask.ABANDON)
            while (item := self.channel.receive()) is not Ask.ABANDON:
                self._made.append(item)


class ThreadLoader(LaneLoader):
    """N threads fill batches ahead of the loop, each with its own reader."""

    # Within one process LMDB opens a file once and shares it, so readers must not open it concurrently.
    asks_at_once = False

    def __init__(self, job: LoadJob, *, workers: int, pin: bool = False) -> None:
        super().__init__(job, workers=workers, pin=pin)
        self._shared = workers > 0 and traits_of(job.backend).holds_pixels
        self._only: OnlyThreadLane | None = None

    def open(self) -> list[ReaderReport]:
        """Start the threads and open their readers, or the one that they share."""
        computing = torch.get_num_threads()
        try:
            if not self._shared:
                return super().open()
            opened = self._own.open(take_memory=False)  # it makes no batches
            super().open()
            return [opened]
        finally:
            # The number that a thread sets also applies to threads that start later.
            torch.set_num_threads(computing)

    def close(self) -> list[ReaderReport]:
        """End the threads after closing their readers; a shared one after that."""
        was_open = self._is_open
        closed = super().close()
        closed = [self._own.close()] if self._shared and was_open else closed
        if self._only is None:
            return closed
        made = {"made_by_loop": f"{self._only.made_by_loop} batches"}
        return [replace(report, notes=report.notes | made) for report in closed]

    def paused(self, nanoseconds: int) -> None:
        """Leave a pause of the loop out of the length of its step, which decides whether the loop makes the next batch."""
        if self._only is not None:
            self._only.paused(nanoseconds)

    def _start_lane(self, worker: int) -> Lane:
        buffers = [batch_memory(self.job, pin=self.pin) for _ in range(SLOTS)]
        if self.job.batch_size:
            shape = batch_shape(self.job)
            for buffer in buffers:
                buffer(shape)  # so that no step pays for its page faults
        slots = Slots(buffers)
        reader = self._own.reader if self._shared else None
        producer = Producer(self.job, slots.allocate, worker, reader, lasting_memory(pin=self.pin))
        if self.workers > 1:
            return ThreadLane(producer, slots)
        self._only = OnlyThreadLane(producer, slots)
        return self._only
