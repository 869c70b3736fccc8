"""Who a sample is, its label, and the random numbers it is made with; all of it is read, and nothing is called."""

import collections
import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.arrays import Integers

# The digest of a longer array is that of the sums of this many parts.
_SUMS = 512
# Values of each array of a batch that tell whether it has changed.
_LOOKED_AT = 64

_LABEL_FIELDS = ("label", "labels", "target", "cls", "y", "fine_label", "coarse_label")
NO_LABEL = -(2**31)

# So many objects below a dataset are looked at for generators, and so many items of each list.
_MOST_OBJECTS, _MOST_ITEMS = 2_000, 20

Key = str | int | Callable[[Any], Any] | None


def identify(
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
    if key is not None:
        name = key(value) if callable(key) else value[key]
    else:
        name = value.get("__key__") if isinstance(value, Mapping) else None
        if isinstance(name, str) and (shard := value.get("__url__")) is not None:
            name = f"{shard}:{name}"  # keys may begin anew in each shard
    if name is None:
        return content_digest(value)
    if hasattr(type(name), "item"):
        return name.item()
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def labels_of(values: Sequence[Any]) -> npt.NDArray[np.int32]:
    """Return labels as people write them, `(image, label)` or in a dictionary; `NO_LABEL` if there is none."""
    is_plain = {*map(type, values)} == {tuple} and {*map(len, values)} == {2}
    labels = [value[1] for value in values] if is_plain else []
    if {*map(type, labels)} != {int}:  # the way for all others takes longer
        labels = [_label_of(value) for value in values]
    whole = np.array(labels, np.int64)
    return np.where(abs(whole) < -NO_LABEL, whole, NO_LABEL).astype(np.int32)


def _label_of(value: Any) -> int:
    label: Any = None
    if isinstance(value, tuple | list):
        label = value[1] if len(value) == 2 else None
    elif isinstance(value, Mapping):
        label = next((value[name] for name in _LABEL_FIELDS if name in value), None)
    if hasattr(type(label), "item") and getattr(label, "ndim", 1) == 0:
        label = label.item()
    return label if type(label) is int else NO_LABEL


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
    array = _as_array(value)
    if isinstance(value, bytes | str):
        array = np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8)
    if isinstance(value, Mapping):
        for name in sorted(value, key=str):
            yield str(name).encode()
            yield from _parts(value[name])
    elif isinstance(value, tuple | list):
        are_numbers = len(value) > 1 and all(type(item) in (int, float) for item in value)
        for item in (np.asarray(value),) if are_numbers else value:
            yield from _parts(item)
    elif array is not None:
        yield f"{array.dtype}{array.shape}".encode()
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        whole = len(data) // 8 * 8
        if whole > 8 * _SUMS:
            words = data[:whole].view(np.uint64)
            yield np.add.reduceat(words, np.arange(_SUMS) * len(words) // _SUMS).tobytes()
            data = data[whole:]
        yield data.tobytes()
    elif isinstance(value, int | float | complex | np.generic | None):
        yield repr(value).encode()
    else:  # like no other: who it is cannot be told
        yield os.urandom(8)


def _as_array(value: Any) -> "np.ndarray[Any, Any] | None":
    """Return the array of an array, of a tensor in the CPU's memory, or of a Pillow image; None of anything else."""
    kind = type(value)
    if isinstance(value, np.ndarray):
        return value if value.dtype != object else None
    if (
        hasattr(kind, "detach")
        and hasattr(kind, "numpy")
        and str(value.device) == "cpu"
        and not value.is_sparse
    ):
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


def generator_states(dataset: Any) -> dict[str, int]:
    """Return digests of the states of the random number generators that samples may be made with, by name.

    Those of a stream's own object are left out (`dataset` is None): its workers may have to share them.
    """
    states = {"random": hash(random.getstate())}
    states["numpy.random"] = content_digest(np.random.get_state(legacy=False))  # noqa: NPY002 - as people use it
    if torch := sys.modules.get("torch"):
        states["torch"] = content_digest(torch.get_rng_state())
    # The nearest first, each object once.
    waiting, seen = collections.deque([("dataset", dataset)]), set[int]()
    while waiting and len(seen) < _MOST_OBJECTS:
        name, value = waiting.popleft()
        if id(value) in seen or isinstance(value, type):
            continue
        seen.add(id(value))
        if isinstance(value, np.random.Generator):
            states[name] = content_digest(value.bit_generator.state)
        elif isinstance(value, random.Random):
            states[name] = hash(value.getstate())
        elif isinstance(value, np.random.RandomState) or (torch and isinstance(value, torch.Generator)):
            states[name] = content_digest(value.get_state())
        elif isinstance(value, list | tuple):
            waiting.extend((f"{name}[{place}]", item) for place, item in enumerate(value[:_MOST_ITEMS]))
        elif isinstance(attributes := getattr(value, "__dict__", None), dict):
            waiting.extend((f"{name}.{attribute}", item) for attribute, item in attributes.items())
    return states
