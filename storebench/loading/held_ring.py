"""The loader of worker processes for training scripts: regions of shared memory go back and forth, and batches may be kept."""

import io
import math
import multiprocessing
import pickle
from collections import deque
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import torch

from storebench.loading.batch import BatchRequest, EpochPlan, LoadedBatch, LoadJob
from storebench.loading.held import HeldMemory, Regions, mapped
from storebench.loading.lanes import SLOTS, Ask, Lane, LaneLoader, Slots
from storebench.loading.loader import requests_of
from storebench.loading.producer import Producer
from storebench.loading.ring import ProcessLane, WorkerEnd, become_worker, serve_process
from storebench.manifest import Manifest

_ALIGNED = 64


class _Placing(pickle.Pickler):
    """Pickle a batch, but copy its tensors into a region as far as they fit."""

    def __init__(self, out: io.BytesIO, region: torch.Tensor) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self._region = region
        self.used = 0

    def persistent_id(self, item: Any) -> Any:
        if type(item) is not torch.Tensor or item.layout is not torch.strided or not item.is_cpu:
            return None
        begin = -(-self.used // _ALIGNED) * _ALIGNED
        self.used = begin + item.numel() * item.element_size()
        if self.used > len(self._region):
            return None
        place = (
            begin,
            self.used,
            item.dtype,
            tuple(item.shape),
            torch.empty_like(item, device="meta").stride(),
        )
        target = _at(self._region, *place)
        if target.data_ptr() != item.data_ptr():  # or it was made there
            target.copy_(item.detach())
        return place


def _at(
    region: torch.Tensor,
    begin: int,
    end: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    return region[begin:end].view(dtype).as_strided(shape, stride)


class _Placed(pickle.Unpickler):
    """Unpickle a batch whose tensors are in a region."""

    def __init__(self, message: bytes, region: torch.Tensor) -> None:
        super().__init__(io.BytesIO(message))
        self._region = region

    def persistent_load(self, place: Any) -> torch.Tensor:
        return _at(self._region, *place)


class _HeldEnd(WorkerEnd):
    """The end of a worker that writes into the regions that it was lent."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._file = reduction.recv_handle(connection)
        self._maps: dict[int, torch.Tensor] = {}
        self._lent: deque[tuple[int, int]] = deque()

    def allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the beginning of the next region."""
        return self._region()[: math.prod(shape)].view(shape)

    def send(self, message: Any) -> None:
        try:
            super().send(message)
        except (ConnectionError, EOFError):
            raise
        except Exception as error:  # noqa: BLE001 - what a script makes of a batch may refuse to be pickled
            super().send(error)

    def _request(self, message: Any) -> Any:
        if isinstance(message, Ask):
            return message
        share, regions = message
        self._lent.extend(regions)
        return Ask.RELEASE if share is None else requests_of(share, 1)

    def _row(self, batch: LoadedBatch) -> tuple[Any, ...]:
        out = io.BytesIO()
        placing = _Placing(out, self._region())
        placing.dump(batch)
        return (*self._lent.popleft(), placing.used, out.getvalue())

    def _region(self) -> torch.Tensor:
        offset, size = self._lent[0]
        if offset not in self._maps:
            memory = np.frombuffer(mapped(self._file, offset, size), np.uint8)
            self._maps[offset] = torch.from_numpy(memory)
        return self._maps[offset]


def _work(job: LoadJob, worker: int, connection: Connection, parents: Connection) -> None:
    """Run in the worker process until the loop sends `Ask.STOP`, or its process ends."""
    become_worker(parents)
    assert job.prepare is not None
    end = _HeldEnd(connection)
    job.prepare.enter(worker)
    allocate = end.allocate if job.prepare.is_view else HeldMemory()
    producer = Producer(job, allocate, worker, own_process=True)
    # The slots only count batches, as many as are lent regions.
    serve_process(end, producer, Slots([allocate] * SLOTS))


class HeldRingLane(ProcessLane):
    """A producer in a process, and the regions that it is lent."""

    def __init__(self, job: LoadJob, worker: int, shape: tuple[int, int, int], context: BaseContext) -> None:
        self._sample_bytes = math.prod(shape)
        self._regions = Regions()
        self._lent = 0
        super().__init__(context, _work, job, worker)
        self.channel.send_file(self._regions.file)

    def begin(self, requests: list[BatchRequest]) -> None:
        largest = max((len(request.indices) for request in requests), default=0)
        self._regions.fit(largest * self._sample_bytes)
        super().begin(requests)

    def release(self) -> None:
        """Ask for one batch more, in a region that nothing refers to."""
        self.channel.send((None, self._lend(1)))

    def stop(self) -> None:
        """End the process, and release the memory."""
        super().stop()
        self._regions.close()

    def _message(self, requests: list[BatchRequest]) -> Any:
        plan = EpochPlan(epoch=requests[0].epoch, batches=[request.indices for request in requests])
        return plan, self._lend(SLOTS - self._lent)

    def _lend(self, count: int) -> list[tuple[int, int]]:
        regions = [self._regions.lend() for _ in range(count)]
        self._lent += len(regions)
        return regions

    def _batch(self, item: Any) -> LoadedBatch:
        offset, size, used, message = item
        self._lent -= 1
        self._regions.fit(used)
        batch = _Placed(message, self._regions.returned(offset, size)).load()
        assert isinstance(batch, LoadedBatch)
        return batch


class HeldRingLoader(LaneLoader):
    """N worker processes fill regions of shared memory, each batch in one that no tensor refers to."""

    context: BaseContext | None = None
    """How workers are started; None for the default, which is not asked for earlier because that would fix it."""

    def _start_lane(self, worker: int) -> Lane:
        shape = self.job.augment.output_shape(Manifest.read(self.job.store).dataset.image_shape)
        return HeldRingLane(self.job, worker, shape, self.context or multiprocessing.get_context())
