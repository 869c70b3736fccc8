"""Watch torch's DataLoaders from inside, without a change of the loader, its dataset or its batches."""

# ruff: noqa: SLF001 - torch has no public names for what is extended here

import os
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_dataloader

from storebench.profiling.making import Made, Maker, Stamped, TimedFetcher, WorkerInit
from storebench.profiling.recorder import Recorder

_PARTS = {
    "_BaseDataLoaderIter": "__next__",
    "_SingleProcessDataLoaderIter": "_next_data",
    "_MultiProcessingDataLoaderIter": "_process_data",
}
"""The parts of torch that are extended; without one of them, only waits are seen."""

_KINDS = (torch_dataloader._SingleProcessDataLoaderIter, torch_dataloader._MultiProcessingDataLoaderIter)

_recorders: "weakref.WeakKeyDictionary[DataLoader[Any], Recorder]" = weakref.WeakKeyDictionary()
_recorder_of_any: Callable[["DataLoader[Any]"], Recorder] | None = None
_installed_by = 0
_classes: dict[type, type] = {}


class _Watched:
    """What an iterator of torch does in addition while it is watched."""

    _storebench: Recorder

    def __next__(self) -> Any:
        recorder = self._storebench
        recorder.asked(self._ready)
        try:
            batch = super().__next__()  # type: ignore[misc]
        except BaseException:
            recorder.ended()
            raise
        recorder.given()
        return batch

    def _process_data(self, data: Any, *rest: Any) -> Any:
        if isinstance(data, Stamped):
            self._storebench.arrived(data)
            data = data.batch
        return super()._process_data(data, *rest)  # type: ignore[misc]

    def _ready(self) -> int:
        """Return the number of batches that are made and not yet taken."""
        if not hasattr(self, "_task_info"):
            return 0
        queued: int = self._data_queue.qsize()  # type: ignore[attr-defined]
        return queued + sum(len(task) == 2 for task in self._task_info.values())


def watch(loader: "DataLoader[Any]", recorder: Recorder) -> None:
    """Have the iterators of a loader report to a recorder from now on."""
    recorder.workers = loader.num_workers
    recorder.prefetched = loader.num_workers * (loader.prefetch_factor or 0)
    missing = [
        name for name, part in _PARTS.items() if not hasattr(getattr(torch_dataloader, name, None), part)
    ]
    if missing:
        recorder.opaque = f"this torch has no {missing[0]}"
        return
    if getattr(loader, "_iterator", None) is not None:
        recorder.opaque = "its workers had been started before"
    _install()
    _recorders[loader] = recorder


def watch_all(recorder_of: Callable[["DataLoader[Any]"], Recorder]) -> None:
    """Watch every loader that this process iterates."""
    global _recorder_of_any  # noqa: PLW0603 - one per process, like the class that is extended
    _recorder_of_any = recorder_of
    _install()


def _install() -> None:
    global _installed_by  # noqa: PLW0603
    if _installed_by:
        return
    _installed_by = os.getpid()
    make_iterator, iterate = DataLoader._get_iterator, DataLoader.__iter__

    def iterate_watched(loader: "DataLoader[Any]") -> Any:
        recorder = _recorder(loader)
        if recorder is None or recorder.is_inside:
            return iterate(loader)
        with recorder.beginning():
            return iterate(loader)

    def make_watched_iterator(loader: "DataLoader[Any]") -> Any:
        recorder = _recorder(loader)
        if recorder is None or recorder.failure:
            return make_iterator(loader)
        return _watched_iterator(loader, recorder, make_iterator)

    DataLoader.__iter__ = iterate_watched  # type: ignore[method-assign]
    DataLoader._get_iterator = make_watched_iterator  # type: ignore[method-assign, assignment]


def _recorder(loader: "DataLoader[Any]") -> Recorder | None:
    if os.getpid() != _installed_by:  # a worker that iterates a loader of its own
        return None
    recorder = _recorders.get(loader)
    if recorder is None and _recorder_of_any is not None:
        recorder = _recorder_of_any(loader)
        watch(loader, recorder)
    return recorder


def _watched_iterator(
    loader: "DataLoader[Any]", recorder: Recorder, make: Callable[["DataLoader[Any]"], Any]
) -> Any:
    init = loader.worker_init_fn
    if loader.num_workers:
        loader.worker_init_fn = WorkerInit(init)
    try:
        iterator: Any = make(loader)
    finally:
        loader.worker_init_fn = init
    kind = type(iterator)
    if not issubclass(kind, _KINDS):
        recorder.opaque = f"its iterator is a {kind.__name__}"
        return make(loader)  # without times, which nobody would take off the batches
    if kind not in _classes:
        _classes[kind] = type(kind.__name__, (_Watched, kind), {})
    iterator._storebench = recorder
    iterator.__class__ = _classes[kind]
    if not loader.num_workers:
        recorder.maker = Maker()
        iterator._dataset_fetcher = TimedFetcher(
            iterator._dataset_fetcher, recorder.maker, _deliver(recorder)
        )
    return iterator


def _deliver(recorder: Recorder) -> Callable[[Any, Made], Any]:
    def deliver(batch: Any, made: Made) -> Any:
        recorder.made(made)
        return batch

    return deliver
