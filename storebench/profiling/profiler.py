"""Profile the loop over any iterable of batches: `storebench.profile`."""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from storebench.profiling.guard import say
from storebench.profiling.loops import loops, name_of
from storebench.profiling.profile_report import ProfileReport
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

    Examples
    --------
    >>> import storebench, torch
    >>> loader = torch.utils.data.DataLoader(torch.zeros(256, 3, 8, 8), batch_size=16)
    >>> for images in storebench.profile(loader):
    ...     loss = images.sum()
    """

    def __init__(self, loader: Iterable[_Batch], *, show: bool = True) -> None:
        self._loader = loader
        self._shows = show
        self._recorder = Recorder(is_wrapped=True)

    def __iter__(self) -> Iterator[_Batch]:
        return _Steps(self._loader, self._recorder, self._show)

    def report(self) -> ProfileReport:
        """Return the verdict on everything that was seen so far, with its evidence; ``print`` shows it."""
        return loops.described(report_of(self._recorder), self._recorder)

    def _show(self) -> None:
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


class _Steps(Generic[_Batch]):
    """The iterator of one epoch, in which other loaders of torch are watched, too: the loop may wait for them."""

    def __init__(self, loader: Iterable[_Batch], recorder: Recorder, show: Callable[[], None]) -> None:
        self._recorder, self._show = recorder, show
        self._is_over = False
        loops.wrapped += 1
        try:
            recorder.attempt(partial(self._watch, loader))
            with recorder.beginning():
                self._take: Callable[[], _Batch] = partial(next, iter(loader))
        except BaseException:
            self._end()
            raise

    def _watch(self, loader: Iterable[_Batch]) -> None:
        self._recorder.name = self._recorder.name or name_of(type(loader))
        loops.add(self._recorder)
        torch_data = sys.modules.get("torch.utils.data")
        if torch_data is not None:
            from storebench.profiling import torch_loaders  # noqa: F401 - watches from its import on

            if isinstance(loader, torch_data.DataLoader):
                self._recorder.attach(loader)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            loops.wrapped -= 1

    def __iter__(self) -> Iterator[_Batch]:
        return self

    def __next__(self) -> _Batch:
        try:
            return self._recorder.next(self._take)
        except BaseException as error:
            self._end()
            # An error of the loader is the last that its user sees; an interrupt is not one.
            if isinstance(error, StopIteration) or not isinstance(error, Exception):
                self._show()
            raise

    def __del__(self) -> None:
        if not self._is_over and not sys.is_finalizing():  # the loop was left
            self._end()
            self._recorder.ended()
            self._show()
