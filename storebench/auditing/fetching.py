"""What each batch is made of, noted where it is made: in a worker, or in the loop's own process."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from storebench.auditing.samples import Key, generator_states, identify, rows_of
from storebench.profiling.guard import Guard


class Made(NamedTuple):
    """The samples of one batch, as a worker tells them: int64 numbers and int32 labels."""

    worker: int
    numbers: bytes
    labels: bytes
    keys: tuple[str, ...] = ()
    dropped: tuple[int, ...] = ()  # numbers of samples that are None, which a collate function leaves out
    states: dict[str, int] | None = None  # of the generators after the first batch of an epoch
    used: tuple[str, ...] = ()  # generators that this batch took numbers of


class Carried:
    """A batch on its way from a worker, with its samples."""

    def __init__(self, batch: Any, made: Made) -> None:
        self.batch, self.made = batch, made

    def __reduce__(self) -> tuple[Any, ...]:
        return _carried, (self.batch, tuple(self.made))

    def pin_memory(self) -> "Carried":
        """Pin the batch; torch calls this in its thread."""
        from torch.utils.data._utils.pin_memory import pin_memory

        self.batch = pin_memory(self.batch)  # type: ignore[no-untyped-call]
        return self


def _carried(batch: Any, made: tuple[Any, ...]) -> Carried:
    return Carried(batch, Made(*made))


def made_of(values: Sequence[Any], indices: Sequence[Any] | None, key: Key, worker: int = 0) -> Made:
    """Return the samples of a batch, which were made of `indices` if they have any; None stands for a dropped one."""
    dropped = tuple[int, ...]()
    if type(None) in set(map(type, values)):
        places = [place for place, value in enumerate(values) if value is not None]
        if indices is not None:
            lost = [index for index, value in zip(indices, values, strict=True) if value is None]
            dropped = tuple(identify([()] * len(lost), lost, None).numbers.tolist())
            indices = [indices[place] for place in places]
        values = [values[place] for place in places]
    numbers, labels, keys = identify(values, indices, key)
    return Made(worker=worker, numbers=numbers.tobytes(), labels=labels.tobytes(), keys=keys, dropped=dropped)


class NotingFetcher(Guard):
    """torch's fetcher of batches; `deliver` returns what `fetch` is to return, from a batch and its samples."""

    def __init__(self, fetcher: Any, worker: int, key: Key, deliver: Callable[[Any, Made], Any]) -> None:
        self._fetcher, self._worker, self._key, self._deliver = fetcher, worker, key, deliver
        self._is_map = type(fetcher).__name__ == "_MapDatasetFetcher"
        self._batches = 0
        collate = fetcher.collate_fn

        def noting_collate(samples: Any) -> Any:
            self.attempt(functools.partial(self._note, samples))
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
        made = self._noted[0]._replace(states=after if self._batches == 1 else None, used=used)
        return self._deliver(batch, made)

    def _states(self) -> dict[str, int]:
        dataset = self._fetcher.dataset if self._is_map else None
        return self.attempt(functools.partial(generator_states, dataset)) or {}

    def _note(self, samples: Any) -> None:
        """Note the samples of a batch before they are collated."""
        indices: Any = self._index if self._is_map else None
        if self._fetcher.auto_collation:
            values = samples
        elif isinstance(indices, list | tuple):  # the dataset makes batches
            values = rows_of(samples) or [()] * len(indices)
        elif not self._is_map and _is_batch(rows := rows_of(samples)):
            values = rows
        else:
            values, indices = [samples], [indices] if self._is_map else None
        self._noted = [made_of(values, indices, self._key, self._worker)]


def _is_batch(rows: list[Any]) -> bool:
    """Whether rows are samples, of several fields of which one is more than a number: tokens and labels are not."""
    if not rows or not isinstance(rows[0], dict | tuple) or len(rows[0]) < 2:
        return False
    fields = rows[0].values() if isinstance(rows[0], dict) else rows[0]
    return any(isinstance(field, str | bytes) or getattr(field, "ndim", 0) >= 1 for field in fields)


def init_worker(key: Key, before: Callable[[int], None] | None, worker: int) -> None:
    """Call the user's own `worker_init_fn`, then have the samples of this worker's batches noted."""
    if before is not None:
        before(worker)
    Guard().attempt(functools.partial(_note_batches, key))


def _note_batches(key: Key) -> None:
    """Have torch create noting fetchers, in this worker process only."""
    from torch.utils.data import _DatasetKind, get_worker_info

    create: Callable[..., Any] = _DatasetKind.create_fetcher

    def create_noting(kind: Any, dataset: Any, *rest: Any) -> Any:
        fetcher, info = create(kind, dataset, *rest), get_worker_info()
        # A dataset may use a loader of its own in here, whose batches go to the dataset.
        return NotingFetcher(fetcher, info.id, key, Carried) if info and info.dataset is dataset else fetcher

    _DatasetKind.create_fetcher = staticmethod(create_noting)  # type: ignore[method-assign]
