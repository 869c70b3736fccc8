"""Who a sample is, its label, and the random numbers it is made with; all of it is read, and nothing is called."""

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

# The digest of a longer array is that of the sums of this many parts.
_SUMS = 512
# Values of each array of a batch that are looked at again after the next batch has come.
_LOOKED_AT = 1024

_KEY_FIELD, _SHARD_FIELD = "__key__", "__url__"
_LABEL_FIELDS = ("label", "labels", "target", "cls", "y", "fine_label", "coarse_label")
NO_LABEL = -(2**31)

# So many objects below a dataset are looked at for generators, and so many items of each list.
_MOST_OBJECTS, _MOST_ITEMS = 2_000, 20

Key = str | int | Callable[[Any], Any] | None


class Identified(NamedTuple):
    """Who the samples of a batch are: numbers that stand for them, int64 [n], their labels, int32 [n], and keys."""

    numbers: Integers
    labels: npt.NDArray[np.int32]
    keys: tuple[str, ...] = ()  # as text, if they have any


def identify(values: Sequence[Any], indices: Sequence[Any] | None, key: Key) -> Identified:
    """Return who samples are: by `key`, by their indices, by their ``__key__``, or by digests of their content."""
    labels = labels_of(values)
    if (
        key is None
        and indices is not None
        and (numbers := np.array(indices)).dtype.kind in "iu"
        and numbers.ndim == 1
    ):
        return Identified(numbers.astype(np.int64), labels)
    names = [_name(value, key) for value in values] if indices is None or key is not None else indices
    keys = tuple("" if isinstance(name, int) else str(name) for name in names)
    numbers = np.array(
        [
            name if isinstance(name, int) else _digest(text.encode())
            for name, text in zip(names, keys, strict=True)
        ],
        np.int64,
    )
    return Identified(numbers, labels, keys if any(keys) else ())


def _name(value: Any, key: Key) -> Any:
    if key is not None:
        name = key(value) if callable(key) else value[key]
    else:
        name = value.get(_KEY_FIELD) if isinstance(value, Mapping) else None
        if isinstance(name, str) and (shard := value.get(_SHARD_FIELD)) is not None:
            name = f"{shard}:{name}"  # keys may begin anew in each shard
    if name is None:
        return content_digest(without_label(value))
    if hasattr(type(name), "item"):
        return name.item()
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def labels_of(values: Sequence[Any]) -> npt.NDArray[np.int32]:
    """Return labels as people write them, `(image, label)` or in a dictionary; `NO_LABEL` if there is none."""
    is_pairs = set(map(type, values)) == {tuple} and set(map(len, values)) == {2}
    labels = [value[1] for value in values] if is_pairs else []
    if set(map(type, labels)) != {int}:  # the way for all others takes longer
        labels = [_label_of(value) for value in values]
    whole = np.array(labels, np.int64)
    return np.where(abs(whole) < -NO_LABEL, whole, NO_LABEL).astype(np.int32)


def _label_of(value: Any) -> int:
    label: Any = None
    if isinstance(value, Mapping):
        label = next((value[name] for name in _LABEL_FIELDS if name in value), None)
    elif isinstance(value, tuple | list) and len(value) == 2:
        label = value[1]
    if hasattr(type(label), "item") and getattr(label, "ndim", 1) == 0:
        label = label.item()
    return label if isinstance(label, int) and not isinstance(label, bool) else NO_LABEL


def without_label(value: Any) -> Any:
    if _label_of(value) == NO_LABEL:
        return value
    if isinstance(value, Mapping):
        return {name: item for name, item in value.items() if name not in _LABEL_FIELDS}
    return value[0]


def by_content(value: Any) -> int:
    """Return a number of a sample's content without its label: a key of loaders that share no indices."""
    return content_digest(without_label(value))


def arrays_digest(batch: Any) -> int | None:
    """Return a number of some values of each of a batch's arrays in the CPU's memory; None if it has none."""
    arrays = list(_arrays(batch))
    return content_digest(arrays) if arrays else None


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _arrays(item)
    elif (array := as_array(value)) is not None and array.dtype != object:
        yield array.reshape(-1)[:: 1 + array.size // _LOOKED_AT]


def content_digest(value: Any) -> int:
    """Return a number of 64 bits of a sample's content: arrays, tensors, images, bytes, and containers of them."""
    digest = hashlib.blake2b(digest_size=8)
    for part in _parts(value):
        digest.update(part)
    return int.from_bytes(digest.digest(), "little", signed=True)


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        for name in sorted(value, key=str):
            yield str(name).encode()
            yield from _parts(value[name])
    elif isinstance(value, tuple | list):
        plain = len(value) > 1 and all(type(item) in (int, float) for item in value)
        for item in (np.asarray(value),) if plain else value:
            yield from _parts(item)
    elif isinstance(value, bytes | bytearray | str):
        yield from _blocks(np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8))
    elif (array := as_array(value)) is not None:
        yield f"{array.dtype}{array.shape}".encode()
        yield from _blocks(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    elif isinstance(value, int | float | complex | np.generic | None):
        yield repr(value).encode()
    elif isinstance(attributes := getattr(value, "__dict__", None), dict) and attributes:
        yield from _parts(attributes)
    else:  # like no other: who it is cannot be told
        yield os.urandom(8)


def _blocks(data: "np.ndarray[Any, np.dtype[np.uint8]]") -> Iterator[bytes]:
    yield len(data).to_bytes(8, "little")
    whole = len(data) // 8 * 8
    if whole > 8 * _SUMS:
        words = data[:whole].view(np.uint64)
        yield np.add.reduceat(words, np.arange(_SUMS) * len(words) // _SUMS).tobytes()
        data = data[whole:]
    yield data.tobytes()


def as_array(value: Any) -> "np.ndarray[Any, Any] | None":
    """Return the array of an array, of a tensor in the CPU's memory, or of a Pillow image; None of anything else."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value
    kind = type(value)
    is_tensor = hasattr(kind, "detach") and hasattr(kind, "numpy")
    if is_tensor and value.device.type == "cpu" and not value.is_sparse:
        plain = value.detach()
        return (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()  # type: ignore[no-any-return]
    if kind.__module__.startswith("PIL."):
        return np.asarray(value)
    return None


def rows_of(batch: Any) -> list[Any]:
    """Return the samples of a batch that was made elsewhere: rows of its tensors and lists, which are of one length."""
    fields = _fields(batch)
    if fields is None:
        return []
    count = len(next(iter(fields.values())))
    if isinstance(batch, Mapping):
        return [{name: values[row] for name, values in fields.items()} for row in range(count)]
    rows = list(zip(*fields.values(), strict=True))
    return [row[0] for row in rows] if len(fields) == 1 else rows


def _fields(batch: Any) -> dict[Any, Any] | None:
    """Return the fields of a batch by name or place; None if they are not rows of one number of samples."""
    if isinstance(batch, Mapping) and all(map(_is_rows, batch.values())):
        fields = dict(batch)
    elif isinstance(batch, tuple | list) and all(map(_is_rows, batch)):
        fields = dict(enumerate(batch))
    elif _is_rows(batch):
        fields = {0: batch}
    else:
        return None
    return fields if fields and len({len(value) for value in fields.values()}) == 1 else None


def _is_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) >= 1


def generator_states(dataset: Any) -> dict[str, int]:
    """Return digests of the states of the random number generators that samples may be made with, by name.

    Those of a stream's own object are left out (`dataset` is None): its workers may have to share them.
    """
    states = {"random": hash(random.getstate())}
    if numpy := sys.modules.get("numpy"):
        states["numpy.random"] = content_digest(numpy.random.get_state(legacy=False))
    if torch := sys.modules.get("torch"):
        states["torch"] = _digest(torch.get_rng_state().numpy().tobytes())
    return states | {name: _state_digest(generator) for name, generator in _own_generators(dataset)}


def _own_generators(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield the generators in a dataset's attributes and in theirs, the nearest first, each object once."""
    waiting, seen = collections.deque([("dataset", dataset)]), set[int]()
    while waiting and len(seen) < _MOST_OBJECTS:
        name, value = waiting.popleft()
        if id(value) in seen or isinstance(value, type):
            continue
        seen.add(id(value))
        if isinstance(value, random.Random | np.random.Generator | np.random.RandomState) or (
            type(value).__name__ == "Generator" and type(value).__module__.startswith("torch")
        ):
            yield name, value
        elif isinstance(value, list | tuple):
            waiting.extend((f"{name}[{place}]", item) for place, item in enumerate(value[:_MOST_ITEMS]))
        elif isinstance(attributes := getattr(value, "__dict__", None), dict):
            waiting.extend((f"{name}.{attribute}", item) for attribute, item in attributes.items())


def _state_digest(generator: Any) -> int:
    if isinstance(generator, random.Random):
        return hash(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return content_digest(generator.get_state(legacy=False))
    if isinstance(generator, np.random.Generator):
        return content_digest(generator.bit_generator.state)
    return _digest(generator.get_state().numpy().tobytes())
