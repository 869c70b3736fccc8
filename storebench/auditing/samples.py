"""What each batch is made of: who its samples are, their labels, and the random numbers that they are made with.

It is noted where a batch is made, in a worker or in the loop's own process; all of it is read, and nothing is called.
"""

import collections
import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from storebench.arrays import Integers
from storebench.profiling.guard import guarded
from storebench.profiling.watch import BatchNotes, Carried, WatchedFetcher

# The digest of a longer array is that of the sums of at most this many parts.
_SUMS = 512
# Values of each array of a batch that tell whether it has changed.
_LOOKED_AT = 64

_LABEL_FIELDS = ("label", "labels", "target", "cls", "y", "fine_label", "coarse_label")
# Labels of samples without one, and of those that are None, which a collate function leaves out.
NO_LABEL, DROPPED = -(2**31), 1 - 2**31

# So many objects below a dataset are looked at for generators, and so many items of each list.
_MOST_OBJECTS, _MOST_ITEMS = 2_000, 20

Key = str | int | Callable[[Any], Any] | None


class Made(NamedTuple):
    """The samples of one batch, as a worker tells them: int64 numbers and int32 labels."""

    worker: int
    numbers: bytes
    labels: bytes
    keys: tuple[str, ...] = ()
    number: int = 0  # of the worker's batches
    drawn: tuple[tuple[str, int], ...] = ()  # generators that it took numbers of, and their states before


def made_of(values: Sequence[Any], indices: Sequence[Any] | None, key: Key, worker: int = 0) -> Made:
    """Return the samples of a batch, which were made of `indices` if they have any; None stands for a dropped one."""
    numbers, keys = _identify(values, indices, key)
    return Made(worker, numbers.tobytes(), _labels_of(values).tobytes(), keys)


class SampleNotes(BatchNotes):
    """Note the samples of each batch that this process makes."""

    def __init__(self, fetcher: Any, key: Key) -> None:
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        self._worker = worker.id if worker else 0
        self._key, self._collates = key, fetcher.auto_collation
        self._is_map = type(fetcher).__name__ == "_MapDatasetFetcher"
        self._dataset = fetcher.dataset if self._is_map else None
        self._batches = 0
        self._made: Made | None = None

    @guarded
    def note_fetch(self, indices: Any) -> None:
        self._indices, self._made = indices, None
        self._batches += 1
        # In batches 1, 2, 4, 8 and so on: a generator that is used at all is used in one of them.
        self._states = generator_states(self._dataset) if self._batches.bit_count() == 1 else {}

    @guarded
    def note_samples(self, samples: Any) -> None:
        indices: Any = self._indices if self._is_map else None
        values = samples
        if not self._collates:
            if isinstance(indices, list | tuple):  # the dataset makes batches
                values = rows_of(samples) or [()] * len(indices)
            elif self._is_map or not _is_batch(values := rows_of(samples)):
                values, indices = [samples], [indices] if self._is_map else None
        self._made = made_of(values, indices, self._key, self._worker)

    @guarded
    def end(self, indices: Any) -> Made | None:  # noqa: ARG002
        if self._made is None or not self._states:
            return self._made
        drawn = self._states.items() - generator_states(self._dataset).items()
        return self._made._replace(number=self._batches, drawn=tuple(drawn))


def _is_batch(rows: list[Any]) -> bool:
    """Whether rows are samples, of several fields of which one is more than a number: tokens and labels are not."""
    if not rows or not isinstance(rows[0], dict | tuple) or len(rows[0]) < 2:
        return False
    fields = rows[0].values() if isinstance(rows[0], dict) else rows[0]
    return any(isinstance(field, str | bytes) or getattr(field, "ndim", 0) >= 1 for field in fields)


def note_batches(key: Key, deliver: Callable[[Any, Made], Any] = Carried) -> Callable[[Any], WatchedFetcher]:
    """Return what notes the batches of this process."""
    return lambda fetcher: WatchedFetcher(fetcher, SampleNotes(fetcher, key), deliver)


def _identify(
    values: Sequence[Any], indices: Sequence[Any] | None, key: Key
) -> tuple[Integers, tuple[str, ...]]:
    """Return numbers of samples, int64 [n], and their keys as text, if they have any.

    Samples are known by `key`, by their indices, by their ``__key__``, or by digests of their content.
    """
    names = [_name(value, key) for value in values] if indices is None or key is not None else indices
    numbers = np.array(names)
    if numbers.dtype.kind in "iu" and numbers.ndim == 1:
        return numbers.astype(np.int64), ()
    digests = [name if isinstance(name, int) else content_digest(name) for name in names]
    return np.array(digests, np.int64), tuple(map(str, names))


def _name(value: Any, key: Key) -> Any:
    if value is None:
        return None
    if key is not None:
        return _plain(key(value) if callable(key) else value[key])
    name = value.get("__key__") if isinstance(value, Mapping) else None
    if isinstance(name, str) and (shard := value.get("__url__")) is not None:
        name = f"{shard}:{name}"  # keys may begin anew in each shard
    return content_digest(value) if name is None else _plain(name)


def _plain(value: Any) -> Any:
    """Return the number of an array or a tensor of one."""
    return value.item() if hasattr(type(value), "item") and getattr(value, "ndim", 1) == 0 else value


def _labels_of(values: Sequence[Any]) -> npt.NDArray[np.int32]:
    """Return labels as people write them, `(image, label)` or in a dictionary; `NO_LABEL` if there is none."""
    kinds, labels = {*map(type, values)}, list[Any]()
    if type(None) in kinds:
        return np.array([DROPPED if value is None else _labels_of([value])[0] for value in values], np.int32)
    if all(issubclass(kind, tuple | list) for kind in kinds) and {*map(len, values)} == {2}:
        labels = [value[1] for value in values]
    elif all(issubclass(kind, Mapping) for kind in kinds):
        names = [name for name in _LABEL_FIELDS if all(name in value for value in values)]
        labels = [value[name] for name in names[:1] for value in values]
    if {*map(type, labels)} != {int}:
        plain = [label if type(label) is int else NO_LABEL for label in map(_plain, labels)]
        labels = plain or [NO_LABEL] * len(values)
    whole = np.array(labels, np.int64)
    return np.where(abs(whole) < -DROPPED, whole, NO_LABEL).astype(np.int32)


def glance(batch: Any) -> bytes:
    """Return some values of each of a batch's arrays in the CPU's memory."""
    if isinstance(batch, Mapping | list | tuple):
        return b"".join(map(glance, batch.values() if isinstance(batch, Mapping) else batch[:_MOST_ITEMS]))
    array = _as_array(batch)
    return b"" if array is None else array.flat[:: 1 + array.size // _LOOKED_AT].tobytes()


def content_digest(value: Any) -> int:
    """Return a number of 64 bits of a sample's content: arrays, tensors, images, bytes, and containers of them."""
    digest = hashlib.blake2b(digest_size=8)
    for part in _parts(value):
        digest.update(part)
    return int.from_bytes(digest.digest(), "little", signed=True)


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        for name in sorted(value, key=str):
            yield str(name).encode()
            yield from _parts(value[name])
    elif isinstance(value, int | float | complex | np.generic | None):
        yield repr(value).encode()
    elif (array := _as_array(value)) is not None:
        yield f"{array.dtype}{array.shape}".encode()
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        words = data[: len(data) // 8 * 8].view(np.uint64)
        if len(words):
            yield np.add.reduceat(words, np.arange(0, len(words), 1 + len(words) // _SUMS)).tobytes()
        yield data[8 * len(words) :].tobytes()
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _parts(item)
    else:  # like no other: who it is cannot be told
        yield os.urandom(8)


def _as_array(value: Any) -> "np.ndarray[Any, Any] | None":
    """Return the array of an array, of text, of numbers, of a tensor in the CPU's memory, or of a Pillow image."""
    kind = type(value)
    if isinstance(value, np.ndarray):
        return value if value.dtype != object else None
    if isinstance(value, bytes | str):
        return np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8)
    if isinstance(value, list | tuple):
        return np.asarray(value) if value and {*map(type, value)} <= {int, float} else None
    if hasattr(kind, "detach") and hasattr(kind, "numpy"):
        if str(value.device) != "cpu" or value.is_sparse:
            return None
        plain = value.detach()
        return (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()  # type: ignore[no-any-return]
    return np.asarray(value) if kind.__module__.startswith("PIL.") else None


def rows_of(batch: Any) -> list[Any]:
    """Return the samples of a batch that was made elsewhere: rows of its tensors and lists, which are of one length."""
    is_named = isinstance(batch, Mapping)
    columns = list(batch.values()) if is_named else batch if isinstance(batch, tuple | list) else [batch]
    if not columns or not all(map(_is_rows, columns)):
        columns = [batch]
    if not _is_rows(columns[0]) or len(set(map(len, columns))) > 1:
        return []
    rows = list(zip(*columns, strict=True))
    if is_named:
        return [dict(zip(batch, row, strict=True)) for row in rows]
    return [row[0] for row in rows] if len(columns) == 1 else rows


def _is_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) >= 1


def objects_below(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects that a dataset is made of with their names, the nearest first, each once."""
    waiting, seen = collections.deque([("dataset", value)]), set[int]()
    while waiting and len(seen) < _MOST_OBJECTS:
        name, value = waiting.popleft()
        if id(value) in seen or isinstance(value, type):
            continue
        seen.add(id(value))
        yield name, value
        if isinstance(value, list | tuple):
            waiting.extend((f"{name}[{place}]", item) for place, item in enumerate(value[:_MOST_ITEMS]))
        elif isinstance(attributes := getattr(value, "__dict__", None), dict):
            waiting.extend((f"{name}.{attribute}", item) for attribute, item in attributes.items())


def generator_states(dataset: Any) -> dict[str, int]:
    """Return digests of the states of the random number generators that samples may be made with, by name.

    Those of a stream's own object are left out (`dataset` is None): its workers may have to share them.
    """
    states = {"random": hash(random.getstate())}
    states["numpy.random"] = content_digest(np.random.get_state(legacy=False))  # noqa: NPY002 - as people use it
    if torch := sys.modules.get("torch"):
        states["torch"] = content_digest(torch.get_rng_state())
    for name, value in objects_below(dataset):
        if isinstance(value, np.random.Generator):
            states[name] = content_digest(value.bit_generator.state)
        elif isinstance(value, random.Random):
            states[name] = hash(value.getstate())
        elif isinstance(value, np.random.RandomState) or (torch and isinstance(value, torch.Generator)):
            states[name] = content_digest(value.get_state())
    return states
