"""Watch torch's DataLoaders from inside, without a change of the loader, its dataset or its batches; or sweep workers."""

# ruff: noqa: SLF001 - torch has no public names for what is extended here

import contextlib
import copy
import functools
import os
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, get_worker_info

from storebench.profiling.batch_times import Made, Maker, Stamped, TimedFetcher, init_worker
from storebench.profiling.guard import Guard
from storebench.profiling.recorder import Recorder, asking

_recorders: "dict[int, tuple[weakref.ref[DataLoader[Any]], Recorder]]" = {}  # by id: a loader may have an own __hash__
_guard = Guard()
_SWEPT_S = 2.0  # with each number of workers
_recorder_of_any: Callable[["DataLoader[Any]"], Recorder] | None = None


class _Watched:
    """What an iterator of torch does in addition while it is watched."""

    _storebench: Recorder

    def __next__(self) -> Any:
        return self._storebench.next(super().__next__, self._ready)  # type: ignore[misc]

    def _process_data(self, data: Any, *rest: Any) -> Any:
        if isinstance(data, Stamped):
            self._storebench.made(data.made)
            data = data.batch
        return super()._process_data(data, *rest)  # type: ignore[misc]

    def _ready(self) -> int:
        """Return the number of batches that are made and not yet taken."""
        ready = 0
        if hasattr(self, "_task_info"):
            ready = sum(len(task) == 2 for task in self._task_info.values())
            with contextlib.suppress(NotImplementedError):  # macOS has no size of a queue
                ready += self._data_queue.qsize()  # type: ignore[attr-defined]
        return ready


def watch(loader: "DataLoader[Any]", recorder: Recorder) -> None:
    """Have the iterators of a loader report to a recorder from now on."""
    recorder.workers, recorder.batch_size = loader.num_workers, loader.batch_size
    recorder.persists = loader.persistent_workers
    recorder.prefetched = loader.num_workers * (loader.prefetch_factor or 0)
    recorder.makes = False
    if recorder.maker is not None:
        recorder.maker.stop()
        recorder.maker = None
    _recorders[id(loader)] = weakref.ref(loader), recorder


def watch_all(recorder_of: Callable[["DataLoader[Any]"], Recorder] | None) -> None:
    """Watch every loader that this process iterates; with None, no other from now on."""
    global _recorder_of_any  # noqa: PLW0603 - one per process, like the class that is extended
    _recorder_of_any = recorder_of


def _recorder(loader: "DataLoader[Any]") -> Recorder | None:
    if get_worker_info() is not None:  # a worker that iterates a loader of its own
        return None
    reference, recorder = _recorders.get(id(loader), (None, Recorder()))
    if reference is not None and reference() is loader and recorder.pid == os.getpid():
        return recorder if asking.recorders or not recorder.is_wrapped else None
    if asking.recorders:
        around = asking.recorders[-1]
        if around.makes:  # an iterable around a loader of torch
            watch(loader, around)
            return around
    elif _recorder_of_any is not None:
        recorder = _recorder_of_any(loader)
        watch(loader, recorder)
        return recorder
    return None


def _iterate_watched(loader: "DataLoader[Any]") -> Any:
    recorder = _guard.attempt(functools.partial(_recorder, loader))
    if recorder is None:
        return _iterate(loader)
    with recorder.beginning():
        return _iterate(loader)


def _make_watched_iterator(loader: "DataLoader[Any]") -> Any:
    recorder = _guard.attempt(functools.partial(_recorder, loader))
    if recorder is None or recorder.has_failed:
        return _make_iterator(loader)
    init = loader.worker_init_fn
    if loader.num_workers:
        loader.worker_init_fn = functools.partial(init_worker, init)
    try:
        iterator: Any = _make_iterator(loader)
    finally:
        loader.worker_init_fn = init
    kind = type(iterator)
    iterator._storebench = recorder
    iterator.__class__ = type(kind.__name__, (_Watched, kind), {})
    if not loader.num_workers:

        def deliver(batch: Any, made: Made) -> Any:
            recorder.made(made)
            return batch

        recorder.maker = Maker()
        iterator._dataset_fetcher = TimedFetcher(iterator._dataset_fetcher, recorder.maker, deliver)
    return iterator


def sweep(loader: "DataLoader[Any]") -> dict[int, float]:
    """Return batches per second by the number of workers, each from a few seconds without a loop; none if batches are too few."""
    watch_all(None)
    cores = len(os.sched_getaffinity(0))
    counts = {0, cores, 2 * cores, loader.num_workers} | {1 << power for power in range(cores.bit_length())}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        rates = {count: _rate(_with_workers(loader, count)) for count in sorted(counts)}
    if not rates[loader.num_workers]:
        return {}
    return {count: rate for count, rate in rates.items() if rate}


def _with_workers(loader: "DataLoader[Any]", count: int) -> "DataLoader[Any]":
    other = copy.copy(loader)
    other._iterator = None  # workers that persist are those of the loader that was copied
    other.num_workers = count
    other.prefetch_factor = (loader.prefetch_factor or 2) if count else None
    return other


def _rate(loader: "DataLoader[Any]") -> float:
    """Return batches per second, from the first batch of the last worker on."""
    batches = iter(loader)
    with contextlib.suppress(StopIteration):
        for _ in range(max(1, loader.num_workers)):
            next(batches)
    began, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
        if time.perf_counter() - began >= _SWEPT_S:
            break
    return count / (time.perf_counter() - began)


# This module is imported when the first loader is to be watched.
_iterate, _make_iterator = DataLoader.__iter__, DataLoader._get_iterator
DataLoader.__iter__ = _iterate_watched  # type: ignore[method-assign]
DataLoader._get_iterator = _make_watched_iterator  # type: ignore[method-assign, assignment]
