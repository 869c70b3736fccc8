"""Watch torch's DataLoaders from inside, without a change of the loader, its dataset or its batches."""

# ruff: noqa: SLF001 - torch has no public names for what is extended here

import contextlib
import functools
from typing import Any

from torch.utils.data import DataLoader, get_worker_info

from storebench.profiling.guard import Guard
from storebench.profiling.loops import loops
from storebench.profiling.watch import Carried, Watch, asking, init_worker, watchers

_guard = Guard()


class _Watched:
    """What an iterator of torch does in addition while it is watched."""

    _storebench: Watch

    def __next__(self) -> Any:
        return self._storebench.next(super().__next__, self._ready)  # type: ignore[misc]

    def _process_data(self, data: Any, *rest: Any) -> Any:
        if isinstance(data, Carried):
            self._storebench.made(data.made)
            data = data.batch
        return super()._process_data(data, *rest)  # type: ignore[misc]

    def _ready(self) -> int:
        ready = 0
        if hasattr(self, "_task_info"):
            ready = sum(len(task) == 2 for task in self._task_info.values())
            with contextlib.suppress(NotImplementedError):  # macOS has no size of a queue
                ready += self._data_queue.qsize()  # type: ignore[attr-defined]
        return ready


@functools.cache
def _watched(kind: type) -> type:
    return type(kind.__name__, (_Watched, kind), {})


def _watch_of(loader: "DataLoader[Any]") -> Watch | None:
    if get_worker_info() is not None:  # a worker that iterates a loader of its own
        return None
    if asking.watches:
        around = asking.watches[-1]
        return around if around.serves(loader) and not around.has_failed else None
    return next(filter(None, (watch_of(loader) for watch_of in watchers)), None) or loops.recorder_of(loader)


def _iterate_watched(loader: "DataLoader[Any]") -> Any:
    watch = _guard.attempt(functools.partial(_watch_of, loader))
    if watch is None:
        return _iterate(loader)
    with watch.beginning():
        return _iterate(loader)


def _make_watched_iterator(loader: "DataLoader[Any]") -> Any:
    watch = _guard.attempt(functools.partial(_watch_of, loader)) if asking.watches else None
    if watch is None:
        return _make_iterator(loader)
    init = loader.worker_init_fn
    if loader.num_workers:
        loader.worker_init_fn = functools.partial(init_worker, watch.fetching, init)
    try:
        iterator: Any = _make_iterator(loader)
    finally:
        loader.worker_init_fn = init
    iterator._storebench = watch
    iterator.__class__ = _watched(iterator.__class__)
    if not loader.num_workers:
        iterator._dataset_fetcher = watch.around(iterator._dataset_fetcher)
    return iterator


# This module is imported when the first loader is to be watched.
_iterate, _make_iterator = DataLoader.__iter__, DataLoader._get_iterator
DataLoader.__iter__ = _iterate_watched  # type: ignore[method-assign]
DataLoader._get_iterator = _make_watched_iterator  # type: ignore[method-assign, assignment]
