"""The loaders of torch that are watched, and their logs; torch is not imported here, as a script may not have yet."""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from storebench.auditing.epochs import LoaderFacts, LoaderLog
from storebench.auditing.samples import Key
from storebench.profiling.loops import user_frames


class Watch:
    """The loaders of torch that this process iterates, with their logs."""

    def __init__(self) -> None:
        self.key: Key = None
        self.logs: list[LoaderLog] = []
        self.is_on = False
        self._continued: LoaderLog | None = None
        self.opening: LoaderLog | None = None  # of the loader whose `iter()` is being called
        self._seen: list[tuple[object, weakref.ref[Any], LoaderLog]] = []

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
        key = (os.getpid(), lines, type(loader.dataset), loader.batch_size, loader.num_workers)
        for before, reference, log in self._seen:
            last = reference()
            if last is loader or (before == key and (last is None or last.dataset is loader.dataset)):
                return log
        log, self._continued = self._continued or LoaderLog(facts()), None
        self.logs.append(log)
        self._seen.append((key, weakref.ref(loader), log))
        return log


# Those of this process.
watch = Watch()
