"""What each batch is made of, noted where it is made: in a worker, or in the loop's own process."""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from storebench.auditing.samples import Key, generator_states, identify, labels_of, rows_of
from storebench.profiling.guard import Guard
from storebench.profiling.watch import Carried


class Made(NamedTuple):
    """The samples of one batch, as a worker tells them: int64 numbers and int32 labels."""

    worker: int
    numbers: bytes
    labels: bytes
    keys: tuple[str, ...] = ()
    dropped: tuple[int, ...] = ()  # numbers of samples that are None, which a collate function leaves out
    states: dict[str, int] | None = None  # of the generators after the first batch of an epoch
    used: tuple[str, ...] = ()  # generators that this batch took numbers of


def made_of(values: Sequence[Any], indices: Sequence[Any] | None, key: Key, worker: int = 0) -> Made:
    """Return the samples of a batch, which were made of `indices` if they have any; None stands for a dropped one."""
    dropped = tuple[int, ...]()
    if type(None) in {*map(type, values)}:
        kept = [place for place, value in enumerate(values) if value is not None]
        if indices is not None:
            lost = [index for index, value in zip(indices, values, strict=True) if value is None]
            dropped = tuple(identify(lost, lost, None)[0].tolist())
            indices = [indices[place] for place in kept]
        values = [values[place] for place in kept]
    numbers, keys = identify(values, indices, key)
    return Made(worker, numbers.tobytes(), labels_of(values).tobytes(), keys, dropped)


class NotingFetcher(Guard):
    """torch's fetcher of batches; `deliver` returns what `fetch` is to return, from a batch and its samples."""

    def __init__(self, fetcher: Any, *, key: Key, deliver: Callable[[Any, Made], Any]) -> None:
        from torch.utils.data import get_worker_info

        self._fetcher, self._key, self._deliver = fetcher, key, deliver
        worker = get_worker_info()
        self._worker = worker.id if worker else 0
        self._is_map = type(fetcher).__name__ == "_MapDatasetFetcher"
        self._batches = 0
        # A circle of references would keep the dataset longer than the script's own program does.
        collate, this = fetcher.collate_fn, weakref.ref(self)

        def noting_collate(samples: Any) -> Any:
            if (noting := this()) is not None:
                noting.attempt(functools.partial(noting.note_samples, samples))
            return collate(samples)

        fetcher.collate_fn = noting_collate

    def fetch(self, index: Any) -> Any:
        self._batches += 1
        # In batches 1, 2, 4, 8 and so on: a generator that is used at all is used in one of them.
        before = self._states() if self._batches.bit_count() == 1 else {}
        self._index, self._noted = index, list[Made]()
        batch = self._fetcher.fetch(index)
        if not self._noted:
            return batch
        after = self._states() if before else {}
        used = tuple(name for name in after if after[name] != before.get(name))
        return self._deliver(
            batch, self._noted[0]._replace(states=after if self._batches == 1 else None, used=used)
        )

    def _states(self) -> dict[str, int]:
        dataset = self._fetcher.dataset if self._is_map else None
        return self.attempt(functools.partial(generator_states, dataset)) or {}

    def note_samples(self, samples: Any) -> None:
        """Note the samples of a batch before they are collated."""
        indices: Any = self._index if self._is_map else None
        values = samples
        if not self._fetcher.auto_collation:
            if isinstance(indices, list | tuple):  # the dataset makes batches
                values = rows_of(samples) or [()] * len(indices)
            elif self._is_map or not _is_batch(values := rows_of(samples)):
                values, indices = [samples], [indices] if self._is_map else None
        self._noted = [made_of(values, indices, self._key, self._worker)]


def _is_batch(rows: list[Any]) -> bool:
    """Whether rows are samples, of several fields of which one is more than a number: tokens and labels are not."""
    if not rows or not isinstance(rows[0], dict | tuple) or len(rows[0]) < 2:
        return False
    fields = rows[0].values() if isinstance(rows[0], dict) else rows[0]
    return any(isinstance(field, str | bytes) or getattr(field, "ndim", 0) >= 1 for field in fields)


def note_batches(key: Key) -> Callable[[Any], NotingFetcher]:
    """Return what notes the batches of this worker."""
    return functools.partial(NotingFetcher, key=key, deliver=Carried)
