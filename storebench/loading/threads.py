"""The loader of threads: batches are made ahead of the loop in its own process, so handing one over moves nothing."""

import queue
import threading
from typing import Any

from storebench.loading.batch import LoadJob, Opened
from storebench.loading.lanes import SLOTS, Ask, Lane, LaneLoader, Slots, serve
from storebench.loading.loader import ReusedBuffer
from storebench.loading.producer import Producer


class _QueueEnd:
    """One end of a pair of queues; the queue's own methods, because each batch passes here twice."""

    lost = False

    def __init__(self, inbox: "queue.SimpleQueue[Any]", outbox: "queue.SimpleQueue[Any]") -> None:
        self.receive = inbox.get
        self.send = outbox.put
        self._inbox = inbox

    def waiting(self) -> bool:
        """Return whether a message has arrived."""
        return not self._inbox.empty()


class ThreadLane(Lane):
    """A producer in a thread."""

    def __init__(self, producer: Producer, slots: Slots) -> None:
        to_loop: queue.SimpleQueue[Any] = queue.SimpleQueue()
        to_producer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        super().__init__(_QueueEnd(to_loop, to_producer))
        self._thread = threading.Thread(
            target=serve,
            args=(_QueueEnd(to_producer, to_loop), producer, slots),
            name=f"storebench-loader-{producer.worker}",
            daemon=True,  # a loader that nobody closed must not keep the interpreter from ending
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self.channel.send(Ask.STOP)
        self._thread.join()


class ThreadLoader(LaneLoader):
    """N threads fill batches ahead of the loop, each with a reader of its own.

    Threads help where a reader's work runs without the interpreter lock
    (``Traits.releases_gil``); where it does not, they take turns with the loop.

    A reader that holds all pixels in memory is opened once and shared: fetching
    from it only reads, and a copy for each thread would be a copy of the dataset.
    """

    # Within one process formats need not expect that: LMDB opens a file once and shares it.
    asks_at_once = False

    def __init__(self, job: LoadJob, *, workers: int, pin: bool = False) -> None:
        super().__init__(job, workers=workers, pin=pin)
        self._shared = workers > 0 and job.backend.traits.holds_pixels

    def open(self) -> list[Opened]:
        """Start the threads and open their readers, or the one that they share."""
        if not self._shared:
            return super().open()
        opened = self._own.open()
        super().open()
        return [opened]

    def close(self) -> list[Opened]:
        """End the threads after closing their readers; a shared one after that."""
        was_open = self._is_open
        closed = super().close()
        return [self._own.close()] if self._shared and was_open else closed

    def _start_lane(self, worker: int) -> Lane:
        slots = Slots([ReusedBuffer(pin=self.pin) for _ in range(SLOTS)])
        reader = self._own.reader if self._shared else None
        return ThreadLane(Producer(self.job, slots.allocate, worker, reader), slots)
