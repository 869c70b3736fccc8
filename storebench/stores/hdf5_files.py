"""The samples in HDF5 files of other programs: rows, values of variable length, byte ranges, a data set for each."""

import math
import posixpath
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from storebench.datasets.containers.base import Container, listed
from storebench.datasets.containers.hdf5 import arrays_in, checked_array, filters_of, open_hdf5, reading
from storebench.formats.hdf5.chunks import diagnose_dataset
from storebench.stores.inspection import (
    COPY_BYTES,
    COPY_ROWS,
    Found,
    Prepare,
    SampleSet,
    Setting,
    Source,
    drawn,
    in_batches,
    too_large,
)

MANY = 16  # this many alike data sets are samples, one per data set; fewer are looked at one by one
LEAST_ITEM_BYTES = 17  # shorter elements of a data set with one axis are numbers, such as labels and offsets
_VALUE_BYTES = 1 << 16  # assumed size of a value whose size is not known before it is read

_PACK = (
    "store the bytes of all samples one after another in one data set of uint8, and where each begins in "
    "a data set of offsets; then a sample is one read"
)


def hdf5_samples(container: Container, samples: int, folder: Path) -> Found | None:
    """Return the samples with the most bytes in a file; copies of them are made in `folder`."""
    path = container.files[0]
    with reading(path), open_hdf5(path) as file:
        arrays = arrays_in(file)
        if asked := container.asked.image:
            arrays = {container.image_field(arrays, path): arrays[asked]}
        elsewhere = {name: data for name, data in arrays.items() if isinstance(data, str)}
        alike = defaultdict[tuple[object, ...], list[str]](list)
        for name, data in arrays.items():
            if name not in elsewhere and data.size:
                alike[name.count("/"), data.ndim, data.dtype].append(name)
        groups: list[list[str]] = []
        for names in alike.values():
            groups += [names] if len(names) >= MANY else [[name] for name in names]
        groups.sort(key=lambda names: sum(_weight(arrays[name]) for name in names), reverse=True)
        main = next((names for names in groups if _holds_samples(arrays, names)), None)
        if main is None:
            for name in elsewhere:
                checked_array(name, arrays, path)  # its error names it
            return None
        others = [f"{_pattern(names)} ({_words(arrays[names[0]])})" for names in groups if names is not main]
        others += [f"{name} ({what})" for name, what in elsewhere.items()]
        return _found(path, main, arrays, samples, folder, listed(others) if others else "")


def _found(
    path: Path, names: list[str], arrays: dict[str, Any], samples: int, folder: Path, others: str
) -> Found:
    """Return one data set whose rows or ranges are samples, or many alike ones, each a sample."""
    name, data = names[0], checked_array(names[0], arrays, path)
    layout, offsets = _layout(data), _offsets(name, arrays)
    count, row_bytes = len(data), int(math.prod(data.shape[1:]) * data.dtype.itemsize)
    are_rows = len(names) == 1 and offsets is None
    items: list[tuple[str, Any]]
    if len(names) > 1:
        count, row_bytes, layout = len(names), data.nbytes, f"one data set per sample, {layout}"
        advice: str | None = (
            f"each read opens a data set, which takes reads of its own when it is cold; {_PACK}"
        )
        items = [(name, ()) for name in drawn(names, samples)]
    elif offsets is not None:
        count, row_bytes = len(offsets) - 1, len(data) // (len(offsets) - 1)
        layout = f"one sample after another, divided by {offsets.name.lstrip('/')}; {layout}"
        advice = _chunk_advice(path, name, data, row_bytes)
        items = [(name, slice(*offsets[row : row + 2].tolist())) for row in drawn(range(count), samples)]
    else:
        advice = _chunk_advice(path, name, data, row_bytes)
        items = [(name, row) for row in drawn(range(count), samples)]
    if data.dtype.hasobject and are_rows:
        layout = f"values of varying length, each in HDF5's heap behind a reference; the references {layout}"
        advice = f"a read follows a reference to the value; to spare it, {_PACK}"
        if filters_of(data):
            advice = f"HDF5 compresses the references only, not the values of varying length; {advice}"
    part = SampleSet(
        name=_pattern(names),
        samples=count,
        layout=layout,
        others=others,
        advice=advice,
        unread=too_large("a chunk", math.prod(data.chunks or (0,)) * data.dtype.itemsize)
        or too_large("a sample", row_bytes),
    )
    source = Source(path=path, open=partial(_reads, path), items=items)
    return Found(part, source, _settings(source, name, folder) if are_rows else ())


def _weight(data: Any) -> int:
    return int(data.size * (_VALUE_BYTES if data.dtype.hasobject else data.dtype.itemsize))


def _words(data: Any) -> str:
    return f"{_shape(data.shape)} {'values of varying length' if data.dtype.hasobject else data.dtype}"


def _shape(sides: Sequence[int]) -> str:
    return "x".join(map(str, sides))


def _pattern(names: Sequence[str]) -> str:
    """Return the common pattern of names, with a star for each component that differs."""
    columns = zip(*(name.split("/") for name in names), strict=True)
    return "/".join(parts[0] if len(set(parts)) == 1 else "*" for parts in columns)


def _holds_samples(arrays: dict[str, Any], names: Sequence[str]) -> bool:
    """Whether data sets hold samples, and not numbers or the columns of a table."""
    first = arrays[names[0]]
    if first.dtype.hasobject or _offsets(names[0], arrays) is not None:
        return True
    if len(names) == 1:
        return bool(first.nbytes >= LEAST_ITEM_BYTES * len(first))
    shapes = {arrays[name].shape for name in names}
    are_columns = first.ndim == 1 and first.dtype.itemsize > 1 and len(shapes) == 1
    return not are_columns and first.nbytes >= LEAST_ITEM_BYTES


def _offsets(name: str, arrays: dict[str, Any]) -> Any:
    """Return the data set that divides one of bytes into samples, from 0 to their number; None without one."""
    data = arrays[name]
    if data.ndim != 1 or data.dtype.itemsize != 1:
        return None
    for other, offsets in arrays.items():
        is_beside = posixpath.dirname(other) == posixpath.dirname(name) and not isinstance(offsets, str)
        if is_beside and offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 1:
            values = offsets[:]
            if values[0] == 0 and values[-1] == len(data) and (values[1:] >= values[:-1]).all():
                return offsets
    return None


def _layout(data: Any) -> str:
    if not data.chunks:
        return "contiguous"
    filters = " and ".join(name or str(code) for code, name in filters_of(data)) or "not compressed"
    return f"chunks of {_shape(data.chunks)}, {data.compression or filters}"


def _chunk_advice(path: Path, name: str, data: Any, sample_bytes: int) -> str | None:
    """Return what mends costly chunks; HDF5 reads parts of those that have no filter and pass its cache."""
    cache_bytes = data.id.get_access_plist().get_chunk_cache()[1]
    if not filters_of(data) and math.prod(data.chunks or ()) * data.dtype.itemsize > cache_bytes:
        return None
    return diagnose_dataset(path, name, data, sample_bytes=sample_bytes)


def _settings(source: Source, name: str, folder: Path) -> Iterator[Setting]:
    """Yield the settings of a data set whose rows are samples; its first rows are copied to try those of a writer."""
    with reading(source.path), open_hdf5(source.path) as file:
        data = file[name]
        row_bytes = max(1, data.id.get_storage_size() // len(data), data.nbytes // len(data))
        rows = data[: max(1, min(COPY_ROWS, COPY_BYTES // row_bytes))]
        chunks, single = data.chunks, (1, *data.shape[1:])
        compression, opts, shuffle = data.compression, data.compression_opts, data.shuffle
    if rows.dtype.hasobject and rows.ndim == 1:
        values = [row if isinstance(row, bytes) else np.asarray(row).tobytes() for row in rows]
        ends = np.cumsum([0, *map(len, values)]).tolist()
        content, keys = np.frombuffer(b"".join(values), np.uint8), list(map(slice, ends, ends[1:]))
        packed = _copied(folder / "packed.h5", content, keys)
        yield Setting("values of the writer", "varying length", "bytes, and offsets", packed)
    elif chunks and chunks != single:
        filters = {"compression": compression, "compression_opts": opts, "shuffle": shuffle or None}
        copied = _copied(folder / "chunks.h5", rows, range(len(rows)), chunks=single, **filters)
        yield Setting("chunks of the writer", _shape(chunks), _shape(single), copied)
    if compression and not rows.dtype.hasobject:
        plain = _copied(folder / "plain.h5", rows, range(len(rows)))
        yield Setting("filter of the writer", compression, "none, contiguous", plain)
    yield from in_batches(source)


def _copied(path: Path, rows: Any, keys: Sequence[Any], **options: Any) -> Source:
    """Write a data set, and return the source of the samples at some `keys` of it."""
    with h5py.File(path, "w") as file:
        file.create_dataset("rows", data=rows, **options)
    return Source(
        path=path, open=partial(_reads, path), items=[("rows", key) for key in drawn(keys, len(keys))]
    )


@contextmanager
def _reads(path: Path) -> Iterator[Prepare]:
    """Open a file and yield the function that prepares the read of (data set, key); () is a whole one."""
    with reading(path), open_hdf5(path) as file:

        def prepare(item: tuple[str, Any] | list[tuple[str, int]]) -> Callable[[], Any]:
            if isinstance(item, list):  # rows of one data set, in one call
                data, rows = file[item[0][0]], sorted(row for _, row in item)
                return lambda: data[rows]
            name, key = item
            if key == ():
                return lambda: file[name][()]  # opening it is part of the read
            # Opened anew for each read: closing it empties the library's cache of chunks, in which a random read of a
            # large data set finds nothing.
            data = file[name]
            data[:0]
            return lambda: data[key]

        yield prepare
