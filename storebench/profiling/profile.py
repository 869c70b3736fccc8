"""Profile the loop over any iterable of batches: `storebench.profile`."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from storebench.profiling.evidence import Report
from storebench.profiling.recorder import Recorder, say
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
    >>> import storebench
    >>> for images, labels in storebench.profile(loader):  # doctest: +SKIP
    ...     train(images, labels)
    """

    def __init__(self, loader: Iterable[_Batch], *, show: bool = True) -> None:
        self._loader = loader
        self._shows = show
        self._recorder = Recorder()
        self._is_watched = False

    def __iter__(self) -> Iterator[_Batch]:
        recorder = self._recorder
        if not self._is_watched:
            self._is_watched = True
            _attach(recorder, self._loader)
        with recorder.beginning():
            batches = iter(self._loader)
        return _Steps(batches, self)

    def report(self) -> Report:
        """Return the verdict on everything that was seen so far, with its evidence; ``print`` shows it."""
        return report_of(self._recorder)

    def _end(self, *, shows: bool = True) -> None:
        """Show the verdict, once."""
        self._recorder.ended()
        if shows and self._shows and self._recorder.step_count and not self._recorder.failure:
            self._shows = False
            try:
                say(str(self.report()))
            except Exception as error:  # noqa: BLE001 - the user's program goes on
                say(f"storebench profile: no verdict: {type(error).__name__}: {error}")

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not there yet, as when this is copied
            raise AttributeError(name)
        return getattr(self._loader, name)


def _attach(recorder: Recorder, loader: Iterable[Any]) -> None:
    """Have torch's loaders report from inside; nothing else does."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(loader, torch_data.DataLoader):
        return
    try:
        from storebench.profiling.torch_loaders import watch

        watch(loader, recorder)
    except Exception as error:  # noqa: BLE001 - only waits are seen
        recorder.opaque = f"{type(error).__name__}: {error}"


class _Steps(Generic[_Batch]):
    """The iterator of one epoch."""

    def __init__(self, batches: Iterator[_Batch], owner: profile[_Batch]) -> None:
        self._batches, self._owner, self._recorder = batches, owner, owner._recorder  # noqa: SLF001
        self._is_over = False

    def __iter__(self) -> Iterator[_Batch]:
        return self

    def __next__(self) -> _Batch:
        self._recorder.asked()
        try:
            batch = next(self._batches)
        except BaseException as error:
            self._is_over = True
            # An error of the loader is the last that its user sees; an interrupt is not one.
            self._owner._end(shows=isinstance(error, StopIteration) or not isinstance(error, Exception))  # noqa: SLF001
            raise
        self._recorder.given()
        return batch

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __del__(self) -> None:
        if not self._is_over and not sys.is_finalizing():  # the loop was left
            self._owner._end()  # noqa: SLF001
