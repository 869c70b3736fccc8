"""The DataLoader as training on a GPU uses it, for cells without a network: a thread receives batches ahead of the loop."""

import dataclasses
import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from storebench.loading.batch import LoadedBatch, LoadJob, ReaderReport
from storebench.loading.loader import ProcessLoader, ReusedBuffer, batch_shape

POLL_S = 0.1
"""The thread looks this often whether it is to end."""

JOIN_S = 5.0
"""A thread that waits for the rest of what a dead worker was sending never ends, and is left alone."""

TAKEN = 3
"""Batches whose memory is taken at the opening: one is with the loop, one is ready, one is being received."""

RECEIVED = {"received_by": "thread"}
"""Note of the readers whose batches a thread received."""


class ReceivingLoader(ProcessLoader):
    """`ProcessLoader` with a thread that receives and copies the batches of the worker processes."""

    def __init__(self, job: LoadJob, *, workers: int, pin: bool = False) -> None:
        super().__init__(job, workers=workers, pin=pin)
        self._receives = workers > 0 and not pin  # where it pins, torch has a thread of its own
        self._thread: _ReceivingThread | None = None

    def open(self) -> list[ReaderReport]:
        """Start the workers; each opens its reader."""
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
        self._free = [ReusedBuffer() for _ in range(TAKEN)]
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
        """Use the memory of a batch for another."""
        if buffer is not None:
            self._free.append(buffer)

    def stop(self) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join(JOIN_S)

    def _receive(self) -> None:
        while not self._ending.is_set():
            try:
                number, item = self._sent.get(timeout=POLL_S)
                if isinstance(item, LoadedBatch):
                    self._copy(item)
            except queue.Empty:
                continue
            except Exception as error:  # noqa: BLE001 - the loop raises it, and ends its epoch
                self._received.put(error)
                self._ending.wait(POLL_S)  # one that lasts would otherwise fill the queue
                continue
            self._received.put((number, item))
            del item  # or its memory would be held until the next one comes

    def _copy(self, batch: LoadedBatch) -> None:
        # More are taken where batches wait for a slow loop, or for those that it had when it left an epoch early.
        buffer = self._free.pop() if self._free else ReusedBuffer()
        pixels = buffer(tuple(batch.pixels.shape))
        np.copyto(pixels.numpy(), batch.pixels.numpy())
        self._lent[pixels.data_ptr()] = buffer
        batch.pixels = pixels


class _Received(queue.Queue[Any]):
    """A queue that raises the errors that are put into it."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)
        if isinstance(item, Exception):
            raise item
        return item
