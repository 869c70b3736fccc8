"""The loaders of torch that are watched, and their logs; torch is not imported here, as a script may not have yet."""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from storebench.auditing.epochs import LoaderFacts, LoaderLog
from storebench.auditing.samples import Key
from storebench.profiling.loops import user_frames


@dataclass
class _Seen:
    """A loader that was iterated, and what another one that is made anew for the next epoch has in common with it."""

    key: object
    loader: weakref.ref[Any]
    parts: tuple[Callable[[], Any], ...]  # its dataset, and the indices that its sampler was given
    log: LoaderLog
    loaders: int = 1


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # as of a list: none is the same
        return lambda: _reference


class Watch:
    """The loaders of torch that this process iterates, with their logs."""

    def __init__(self) -> None:
        self.key: Key = None
        self.logs: list[LoaderLog] = []
        self.is_on = False
        self._continued: LoaderLog | None = None
        self.opening: LoaderLog | None = None  # of the loader whose `iter()` is being called
        self._seen: list[_Seen] = []

    @contextlib.contextmanager
    def watching(self, key: Key, log: LoaderLog | None = None) -> Iterator[list[LoaderLog]]:
        """Note the loaders that are iterated meanwhile, and yield their logs; the first one continues `log`."""
        before = self.key, self.logs, self.is_on, self._seen, self._continued
        self.key, self.logs, self.is_on, self._seen, self._continued = key, [], True, [], log
        try:
            yield self.logs
        finally:
            self.key, self.logs, self.is_on, self._seen, self._continued = before

    def here(self) -> list[LoaderLog]:
        """Return the logs of this process: the script may have forked it."""
        return [log for log in self.logs if log.pid == os.getpid() and log.seen]

    def log_of(self, loader: Any, facts: Callable[[], LoaderFacts]) -> LoaderLog:
        """Return the log of a loader; one that is made anew for each epoch continues the log of the one before."""
        lines = [(frame.f_code.co_filename, frame.f_lineno) for frame in user_frames()]
        kinds = (type(loader.dataset), type(loader.sampler), loader.batch_size, loader.num_workers)
        key = (os.getpid(), lines, kinds)
        parts = (loader.dataset, getattr(loader.sampler, "indices", loader.dataset))
        for seen in self._seen:
            if seen.loader() is loader:
                return seen.log
            # A loader of several epochs is not made anew for each: another one belongs to another run.
            is_alike = seen.key == key and all(
                ref() is part for ref, part in zip(seen.parts, parts, strict=True)
            )
            if is_alike and len(seen.log.epochs) == seen.loaders:
                seen.loader, seen.loaders = weakref.ref(loader), seen.loaders + 1
                return seen.log
        log, self._continued = self._continued or LoaderLog(facts()), None
        self.logs.append(log)
        self._seen.append(_Seen(key, weakref.ref(loader), tuple(map(_reference, parts)), log))
        return log


# Those of this process.
watch = Watch()
