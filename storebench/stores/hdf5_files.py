"""The samples in HDF5 files of other programs: rows, values of variable length, byte ranges, a data set for each."""

import math
import posixpath
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from storebench.datasets.containers.base import Container, listed
from storebench.datasets.containers.hdf5 import (
    arrays_in,
    checked_array,
    filters_of,
    layout_of,
    open_hdf5,
    reading,
)
from storebench.formats.hdf5.chunks import chunks_of_sample, diagnose_dataset
from storebench.stores.random_reads import (
    FileSamples,
    Prepare,
    SampleSet,
    Source,
    TriedSetting,
    drawn,
    paged,
    spread,
)
from storebench.stores.trials import BATCH, COPY_BYTES, COPY_ROWS, in_batches

MANY = 16  # this many alike data sets are samples, one per data set; fewer are looked at one by one
LEAST_ITEM_BYTES = 17  # shorter elements of a data set with one axis are numbers, such as labels and offsets
MOST_SAMPLE_BYTES = 64 << 20
MOST_CHUNK_BYTES = 256 << 20
_VALUE_BYTES = 1 << 16  # assumed size of a value whose size is not known before it is read
_REFERENCE_BYTES, _HEADER_BYTES = 16, 512

_PACK = (
    "store the bytes of all samples one after another in one data set of uint8, and where each begins in "
    "a data set of offsets; then a sample is one read"
)


def hdf5_samples(container: Container, samples: int) -> FileSamples | None:
    """Return the samples with the most bytes in a file, and a note on the other data sets."""
    path = container.files[0]
    with reading(path), open_hdf5(path) as file:
        arrays = arrays_in(file)
        if asked := container.asked.image:
            arrays = {container.image_field(arrays, path): arrays[asked]}
        alike: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
        elsewhere = {name: data for name, data in arrays.items() if isinstance(data, str)}
        for name, data in arrays.items():
            if name not in elsewhere and data.size:
                alike[name.count("/"), data.ndim, data.dtype].append(name)
        groups: list[list[str]] = []
        for names in alike.values():
            groups += [names] if len(names) >= MANY else [[name] for name in names]
        groups = sorted(groups, key=lambda names: sum(_weight(arrays[name]) for name in names), reverse=True)
        main = next((names for names in groups if _holds_samples(arrays, names)), None)
        others = [f"{_pattern(names)} ({_words(arrays[names[0]])})" for names in groups if names is not main]
        others += [f"{name} ({what})" for name, what in elsewhere.items()]
        notes = {"other data sets": listed(others)} if others else {}
        if main is None:
            for name in elsewhere:
                checked_array(name, arrays, path)  # its error names it
            return None
        data = checked_array(main[0], arrays, path)
        if len(main) > 1:
            file_samples = _collection(path, main, arrays, samples)
        elif (offsets := _offsets(main[0], arrays)) is not None:
            file_samples = _ranges(path, data, offsets, samples)
        else:
            file_samples = _rows(path, data, samples)
        return replace(file_samples, notes=notes)


def _varies(data: Any) -> bool:
    return bool(data.dtype.hasobject)


def _weight(data: Any) -> int:
    return int(data.size * (_VALUE_BYTES if _varies(data) else data.dtype.itemsize))


def _row_bytes(data: Any) -> int:
    return int(math.prod(data.shape[1:]) * data.dtype.itemsize)


def _words(data: Any) -> str:
    return f"{_shape(data.shape)} {'values of varying length' if _varies(data) else data.dtype}"


def _shape(sides: Sequence[int]) -> str:
    return "x".join(map(str, sides))


def _pattern(names: Sequence[str]) -> str:
    """Return the common pattern of names, with a star for each component that differs."""
    columns = zip(*(name.split("/") for name in names), strict=True)
    return "/".join(parts[0] if len(set(parts)) == 1 else "*" for parts in columns)


def _holds_samples(arrays: dict[str, Any], names: Sequence[str]) -> bool:
    """Whether data sets hold samples, and not numbers or the columns of a table."""
    first = arrays[names[0]]
    if _varies(first) or _offsets(names[0], arrays) is not None:
        return True
    if len(names) == 1:
        return _row_bytes(first) >= LEAST_ITEM_BYTES
    are_columns = (
        first.ndim == 1 and first.dtype.itemsize > 1 and len({arrays[name].shape for name in names}) == 1
    )
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


def _collection(path: Path, names: Sequence[str], arrays: dict[str, Any], samples: int) -> FileSamples:
    """Return many alike data sets, each a sample."""
    some = drawn(names, max(MANY, samples))
    first = arrays[some[0]]
    stored = float(np.mean([arrays[name].id.get_storage_size() for name in some[:MANY]]))
    sides = _shape(first.shape) if len({arrays[name].shape for name in names}) == 1 else "of several shapes"
    part = SampleSet(
        name=_pattern(names),
        samples=len(names),
        layout=f"one data set per sample, {_layout(first)}",
        content=f"{first.dtype} {sides}" if first.ndim > 1 else "",
        sample_bytes=None if _varies(first) else spread([arrays[name].nbytes for name in names]),
        touched_bytes=_REFERENCE_BYTES if _varies(first) else paged(stored) + paged(_HEADER_BYTES),
        advice=f"each read opens a data set, which takes reads of its own when it is cold; {_PACK}",
    )
    return _candidate(path, part, first, [(name, ()) for name in some[:samples]])


def _ranges(path: Path, data: Any, offsets: Any, samples: int) -> FileSamples:
    """Return the samples into which offsets divide a data set of bytes."""
    pairs = [offsets[row : row + 2].tolist() for row in drawn(range(len(offsets) - 1), max(1, samples))]
    lengths = spread([stop - start for start, stop in pairs])
    name = data.name.lstrip("/")
    part = SampleSet(
        name=name,
        samples=len(offsets) - 1,
        layout=f"one sample after another, divided by {offsets.name.lstrip('/')}; {_layout(data)}",
        sample_bytes=lengths,
        touched_bytes=_touched(data, lengths[1]),
        advice=_chunk_advice(path, name, data, lengths[1]),
    )
    return _candidate(path, part, data, [(name, slice(*pair)) for pair in pairs[:samples]])


def _rows(path: Path, data: Any, samples: int) -> FileSamples:
    """Return a data set whose first axis counts samples."""
    name, row_bytes, layout = data.name.lstrip("/"), _row_bytes(data), _layout(data)
    part = SampleSet(name=name, samples=len(data), layout=layout, touched_bytes=_touched(data, row_bytes))
    if _varies(data):
        advice = f"a read follows a reference to the value; to spare it, {_PACK}"
        if filters_of(data):
            advice = f"HDF5 compresses the references only, not the values of varying length; {advice}"
        layout = f"values of varying length, each in HDF5's heap behind a reference; the references {layout}"
        part = replace(part, layout=layout, advice=advice)
    else:
        part = replace(
            part,
            content=f"{data.dtype} {_shape(data.shape[1:])}" if data.ndim > 2 else "",
            sample_bytes=(row_bytes,) * 3,
            advice=_chunk_advice(path, name, data, row_bytes),
        )
    file_samples = _candidate(path, part, data, [(name, row) for row in drawn(range(len(data)), samples)])
    part = replace(file_samples.part, is_dataset=layout_of(data) is not None)
    return replace(file_samples, part=part, settings=_settings)


def _candidate(path: Path, part: SampleSet, data: Any, items: Sequence[tuple[str, Any]]) -> FileSamples:
    chunk = math.prod(data.chunks or ()) * data.dtype.itemsize
    why = (
        f"a chunk has {chunk / 1e6:,.0f} MB, and a read needs it as a whole"
        if chunk > MOST_CHUNK_BYTES
        else ""
    )
    if part.sample_bytes and part.sample_bytes[1] > MOST_SAMPLE_BYTES:
        size = part.sample_bytes[1] / 1e6
        why = f"a sample has {size:,.0f} MB; samples of up to {MOST_SAMPLE_BYTES >> 20} MiB are read"
    source = Source(path=path, open=partial(_reads, path), items=items, maps=False)
    part = replace(part, unread=why, is_dataset=False)
    return FileSamples(part=part, source=source if items and not why else None)


def _settings(source: Source, folder: Path) -> Iterator[TriedSetting]:
    """Yield the settings of a data set whose rows are samples; its first rows are copied to try those of a writer."""
    name = source.items[0][0]
    with reading(source.path), open_hdf5(source.path) as file:
        data = file[name]
        varying = _varies(data)
        row_bytes = max(1, data.id.get_storage_size() // len(data) if varying else data[:1].nbytes)
        rows = data[: max(1, min(len(data), COPY_ROWS, COPY_BYTES // row_bytes))]
        chunks, single, compression = data.chunks, (1, *data.shape[1:]), data.compression
        filters = {"compression": compression, "compression_opts": data.compression_opts}
        filters["shuffle"] = data.shuffle or None
    now = replace(source, value=_shape(chunks or ()))
    if varying and rows.ndim == 1:
        values = [row if isinstance(row, bytes) else np.asarray(row).tobytes() for row in rows]
        ends = np.cumsum([0, *map(len, values)]).tolist()
        content, keys = np.frombuffer(b"".join(values), np.uint8), list(map(slice, ends, ends[1:]))
        packed = _copied(content, source, folder / "packed.h5", "bytes, and offsets", keys)
        yield TriedSetting(
            name="values of the writer", now=replace(now, value="varying length"), tried=packed
        )
    elif chunks and chunks != single:
        chunked = _copied(rows, source, folder / "chunks.h5", _shape(single), chunks=single, **filters)
        yield TriedSetting(name="chunks of the writer", now=now, tried=chunked)
        now = chunked
    if compression and not varying:
        plain = _copied(rows, source, folder / "plain.h5", "none", chunks=single)
        yield TriedSetting(name="filter of the writer", now=replace(now, value=compression), tried=plain)
    yield from in_batches(source, BATCH)


def _copied(
    rows: Any, source: Source, copy: Path, value: str, keys: Sequence[Any] = (), **options: Any
) -> Source:
    """Write a data set, and return the source of its rows, or of the samples at some `keys` of it."""
    with h5py.File(copy, "w") as file:
        file.create_dataset("rows", data=rows, **options)
    samples = keys or range(len(rows))
    items = [("rows", key) for key in drawn(samples, len(samples))]
    return replace(source, value=value, path=copy, open=partial(_reads, copy), items=items)


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


def _layout(data: Any) -> str:
    if not data.chunks:
        return "contiguous"
    filters = " and ".join(name or str(code) for code, name in filters_of(data)) or "not compressed"
    return f"chunks of {_shape(data.chunks)}, {data.compression or filters}"


def _touched(data: Any, sample: int) -> float:
    if not data.chunks:
        return paged(sample)
    pieces = chunks_of_sample(data)
    if _is_read_in_parts(data):
        return pieces * paged(sample / pieces)
    # The average stored size of some chunks: HDF5 itself would have to walk all of them.
    chunk = data.chunks[0]
    starts = {row // chunk * chunk for row in drawn(range(len(data)), 32)}
    rest = (0,) * (data.ndim - 1)
    sizes = [data.id.get_chunk_info_by_coord((start, *rest)).size for start in starts]
    written = [size for size in sizes if size]
    return pieces * paged(float(np.mean(written)) if written else 0.0)


def _is_read_in_parts(data: Any) -> bool:
    """Whether HDF5 reads parts of chunks: those that are not filtered, and too large for its cache."""
    _, cache_bytes, _ = data.id.get_access_plist().get_chunk_cache()
    return math.prod(data.chunks) * data.dtype.itemsize > cache_bytes and not filters_of(data)


def _chunk_advice(path: Path, name: str, data: Any, sample: int) -> str | None:
    if not data.chunks or _is_read_in_parts(data):
        return None
    return diagnose_dataset(path, name, data, sample_bytes=sample)
