"""The loader of threads: producers in the loop's own process make batches ahead of it, so a handoff copies nothing."""

import queue
import threading
from typing import Any

import torch

from storebench.formats.registry import traits_of
from storebench.loading.batch import LoadJob, ReaderReport
from storebench.loading.loader import batch_memory, batch_shape
from storebench.loading.producer import Producer, lasting_memory
from storebench.loading.worker_queues import SLOTS, Ask, Lane, LaneLoader, Slots, serve


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


class ThreadLoader(LaneLoader):
    """N threads fill batches ahead of the loop, each with its own reader."""

    # Within one process LMDB opens a file once and shares it, so readers must not open it concurrently.
    asks_at_once = False

    def __init__(self, job: LoadJob, *, workers: int, pin: bool = False) -> None:
        super().__init__(job, workers=workers, pin=pin)
        self._shared = workers > 0 and traits_of(job.backend).holds_pixels

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
        return [self._own.close()] if self._shared and was_open else closed

    def _start_lane(self, worker: int) -> Lane:
        buffers = [batch_memory(self.job, pin=self.pin) for _ in range(SLOTS)]
        if self.job.batch_size:
            shape = batch_shape(self.job)
            for buffer in buffers:
                buffer(shape)  # so that no step pays for its page faults
        slots = Slots(buffers)
        reader = self._own.reader if self._shared else None
        producer = Producer(self.job, slots.allocate, worker, reader, lasting_memory(pin=self.pin))
        return ThreadLane(producer, slots)
