"""The loader of a rank in a job with a data store: it makes batches from samples that all ranks hold in memory."""

import dataclasses
import time
from collections.abc import Iterator

from storebench.loading.batch import EpochPlan, LoadedBatch, ReaderReport
from storebench.loading.empty import with_empty_batches
from storebench.loading.loader import ReusedBuffer, batch_shape, requests_of
from storebench.loading.producer import Producer, lasting_memory, open_backend
from storebench.probes.batch_io import IoMeter
from storebench.ranks.data_store import DataStore
from storebench.ranks.sharing import SharedLoader
from storebench.results import DataStoreFacts


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
        if self._data is None:
            raise RuntimeError("the loader is not open")
        return self._served(self._data, plan)

    def _served(self, data: DataStore, plan: EpochPlan) -> Iterator[LoadedBatch]:
        full = dataclasses.replace(plan, batches=[indices for indices in plan.batches if len(indices)])
        made = map(self._producer.produce, requests_of(full, 1))
        shape = batch_shape(self.job)[1:]
        yield from data.serve(plan, with_empty_batches(made, plan.batches, shape))

    def close(self) -> list[ReaderReport]:
        """Close the reader and free the memory."""
        if self._data is None:
            return []
        data, self._data = self._data, None
        closed = self._producer.close()
        data.reader.close()
        return [closed]

    @property
    def filled(self) -> bool:
        """Whether every sample is in memory."""
        return self._data is not None and self._data.filled

    def close_epoch(self) -> DataStoreFacts | None:
        """Return the facts of the last epoch."""
        return None if self._data is None else self._data.close_epoch()
