"""Profile the loop over any iterable of batches: `storebench.profile`."""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from storebench.profiling.guard import say
from storebench.profiling.loops import loops
from storebench.profiling.profile_report import Report
from storebench.profiling.recorder import Recorder
from storebench.profiling.verdict import report_of

_Batch = TypeVar("_Batch")


class profile(Generic[_Batch]):  # noqa: N801 - it is used like a function
    """Profile a training loop: find out whether data loading limits it, and which part of it.

    Iterate it in place of the loader. The batches, and errors, are those of the loader; all its
    attributes and ``len()`` are there, too. When the first epoch ends, or the loop is left, the
    verdict is written to standard error. A torch ``DataLoader`` is also timed in its workers.

    Parameters
    ----------
    loader
        Any iterable of batches: a torch ``DataLoader``, a generator, a loader of another library.
    show
        Whether to write the verdict to standard error; `report` returns it in any case.
    ceiling
        Whether the first epoch gets 20 more steps, with its last batches from memory: how fast is the loop without loading?

    Examples
    --------
    >>> import storebench
    >>> for images, labels in storebench.profile(loader):  # doctest: +SKIP
    ...     train(images, labels)
    """

    def __init__(self, loader: Iterable[_Batch], *, show: bool = True, ceiling: bool = False) -> None:
        self._loader = loader
        self._shows = show
        self._recorder = Recorder(has_ceiling=ceiling)
        self._is_watched = False

    def __iter__(self) -> Iterator[_Batch]:
        if not self._is_watched:
            self._is_watched = True
            self._recorder.attempt(lambda: _watch(self._recorder, self._loader, self))
        with self._recorder.beginning():
            batches = iter(self._loader)
        return _Steps(batches, self._recorder, self._show)

    def report(self) -> Report:
        """Return the verdict on everything that was seen so far, with its evidence; ``print`` shows it."""
        return loops.described(report_of(self._recorder), self._recorder)

    def _show(self) -> None:
        """Write the verdict, once."""
        if self._shows and self._recorder.steps and (report := self._recorder.attempt(self.report)):
            self._shows = False
            say(str(report))

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not there yet, as when this is copied
            raise AttributeError(name)
        return getattr(self._loader, name)


def _watch(recorder: Recorder, loader: Iterable[Any], around: Any) -> None:
    recorder.makes = recorder.is_wrapped = True
    loops.add(recorder, loader, around)
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None:
        from storebench.profiling.torch_loaders import watch, watch_all

        watch_all(loops.recorder_of)  # the loop may wait for others, too
        if isinstance(loader, torch_data.DataLoader):
            watch(loader, recorder)


class _Steps(Generic[_Batch]):
    """The iterator of one epoch."""

    def __init__(self, batches: Iterator[_Batch], recorder: Recorder, show: Callable[[], None]) -> None:
        self._take: Callable[[], _Batch] = partial(next, batches)
        self._recorder, self._show = recorder, show
        self._is_over = False

    def __iter__(self) -> Iterator[_Batch]:
        return self

    def __next__(self) -> _Batch:
        try:
            return self._recorder.next(self._take)
        except BaseException as error:
            self._is_over = True
            # An error of the loader is the last that its user sees; an interrupt is not one.
            if isinstance(error, StopIteration) or not isinstance(error, Exception):
                self._show()
            raise

    def __del__(self) -> None:
        if not self._is_over and not sys.is_finalizing():  # the loop was left
            self._recorder.ended()
            self._show()
