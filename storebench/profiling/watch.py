"""What watches the loop over one loader: the recorder of the profiler, or the log of the audit."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from storebench.profiling.guard import Guard

_Batch = TypeVar("_Batch")


class _Asking(threading.local):
    """The loaders of which this thread requests a batch, outermost first, and the time of all its requests."""

    def __init__(self) -> None:
        self.watches: list[Watch] = []
        self.ns = self.cpu_ns = 0


asking = _Asking()


class Watch(Guard):
    """Watches the epochs of a loader, and changes nothing: its methods that note something raise no error."""

    is_wrapped = False  # whether it asks an iterator around the loader's

    fetching: Callable[[], Callable[[Any], Any]]
    """Called in each worker process; what it returns is put around that worker's fetchers of batches."""

    def serves(self, loader: Any) -> bool:
        """Whether the batches of a loader of torch are those of this loop, maybe inside of another iterable."""
        raise NotImplementedError

    def around(self, fetcher: Any) -> Any:
        """Return what is put around the fetcher of batches of this process; it calls `made`."""
        raise NotImplementedError

    def made(self, made: Any) -> None:
        """Note what the batch that is about to be given came with."""
        raise NotImplementedError

    def deliver(self, batch: Any, made: Any) -> Any:
        """Note what a batch came with that this process has made, and return it."""
        self.made(made)
        return batch

    def note_start(self) -> None:
        """Note that an epoch begins, before the loader's `iter()`."""

    def note_started(self) -> None:
        """Note that the loader's `iter()` has ended."""

    def note_inner(self, ready: Callable[[], int] | None) -> None:
        """Note a request inside of another."""

    def note_request(self, ready: Callable[[], int] | None) -> None:
        """Note that a batch is requested; `ready` counts those that are made and not taken."""

    def note_batch(self, batch: Any) -> None:
        """Note the batch that is given."""

    def note_end(self, *, is_whole: bool) -> None:
        """Note that the loader has no more batches, or has failed."""

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Note that an epoch begins with a call of `iter()`, unless that is part of another call or of a request."""
        if asking.watches:
            yield
            return
        self.note_start()
        asking.watches.append(self)
        try:
            yield
        finally:
            asking.watches.pop()
            self.note_started()

    def next(self, take: Callable[[], _Batch], ready: Callable[[], int] | None = None) -> _Batch:
        """Return the next batch that `take` gives."""
        if asking.watches or (self.is_wrapped and ready is not None):  # inside another iterator
            self.note_inner(ready)
            return take()
        self.note_request(ready)
        asking.watches.append(self)
        try:
            batch = take()
            self.note_batch(batch)
        except BaseException as error:
            self.note_end(is_whole=isinstance(error, StopIteration))
            raise
        finally:
            asking.watches.pop()
        return batch

    def batches(self, batches: Iterator[_Batch]) -> Iterator[_Batch]:
        """Yield the batches of an epoch that has begun."""
        with contextlib.suppress(StopIteration):
            while True:
                yield self.next(functools.partial(next, batches))


# Asked in turn for the watch of a loader that an epoch begins of, before the profiler is.
watchers: list[Callable[[Any], Watch | None]] = []


class BatchNotes(Guard):
    """Notes what each batch that this process makes comes with."""

    def note_fetch(self, indices: Any) -> None:
        """Note that a batch is fetched, by the indices of its samples if they have any."""

    def note_samples(self, samples: Any) -> None:
        """Note the samples of a batch before they are collated."""

    def end(self, indices: Any) -> Any:
        """Return what the batch comes with; None if that is not known."""
        raise NotImplementedError


class WatchedFetcher:
    """torch's fetcher of batches; `deliver` returns what `fetch` is to return, of a batch and what it comes with."""

    def __init__(self, fetcher: Any, notes: BatchNotes, deliver: Callable[[Any, Any], Any]) -> None:
        self._fetcher, self._notes, self._deliver = fetcher, notes, deliver
        collate = fetcher.collate_fn

        # A reference to this object would keep the dataset longer than the script's own program does.
        def watched_collate(samples: Any) -> Any:
            notes.note_samples(samples)
            return collate(samples)

        fetcher.collate_fn = watched_collate

    def fetch(self, indices: Any) -> Any:
        self._notes.note_fetch(indices)
        try:
            batch = self._fetcher.fetch(indices)
        finally:
            made = self._notes.end(indices)
        return batch if made is None else self._deliver(batch, made)


class Carried:
    """A batch on its way from a worker, with what it came with."""

    def __init__(self, batch: Any, made: Any) -> None:
        self.batch, self.made = batch, made

    def pin_memory(self) -> "Carried":
        """Pin the batch; torch calls this in its thread."""
        from torch.utils.data._utils.pin_memory import pin_memory

        self.batch = pin_memory(self.batch)  # type: ignore[no-untyped-call]
        return self


def init_worker(
    fetching: Callable[[], Callable[[Any], Any]], before: Callable[[int], None] | None, worker: int
) -> None:
    """Call the user's own `worker_init_fn`, then have this worker's batches watched."""
    if before is not None:
        before(worker)
    Guard().attempt(functools.partial(_watch_batches, fetching))


def _watch_batches(fetching: Callable[[], Callable[[Any], Any]]) -> None:
    """Have torch create watched fetchers, in this worker process only."""
    from torch.utils.data import _DatasetKind, get_worker_info

    create: Callable[..., Any] = _DatasetKind.create_fetcher
    around = fetching()

    def create_watched(kind: Any, dataset: Any, *rest: Any) -> Any:
        fetcher, info = create(kind, dataset, *rest), get_worker_info()
        # A dataset may use a loader of its own in here, whose batches go to the dataset.
        return around(fetcher) if info and info.dataset is dataset else fetcher

    _DatasetKind.create_fetcher = staticmethod(create_watched)  # type: ignore[method-assign]
