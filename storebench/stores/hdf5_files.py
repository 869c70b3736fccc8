"""The samples in HDF5 files of other programs: rows, values of variable length, byte ranges, a data set for each."""

import math
import posixpath
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from storebench.datasets.containers.base import listed
from storebench.datasets.containers.hdf5 import elsewhere, filters_of, layout_of, open_hdf5, reading
from storebench.formats.hdf5.chunks import chunks_of_sample, diagnose_dataset
from storebench.stores.random_reads import (
    Candidate,
    FileContent,
    Prepare,
    SampleSet,
    Setting,
    Source,
    drawn,
    paged,
    spread,
)
from storebench.stores.trials import BATCH, COPY_BYTES, COPY_ROWS, in_batches

MOST_OBJECTS = 20_000  # groups and data sets to visit, for at most `WALK_S`
WALK_S = 3.0
MANY = 16  # so many alike data sets are samples, one per data set; fewer are looked at one by one
LEAST_ITEM_BYTES = 17  # shorter elements of a data set with one axis are numbers, such as labels and offsets
MOST_SAMPLE_BYTES = 64 << 20
MOST_CHUNK_BYTES = 256 << 20

_REFERENCE_BYTES = 16
_HEADER_BYTES = 512

_PACK = (
    "store the bytes of all samples one after another in one data set of uint8, and where each begins in "
    "a data set of offsets; then a sample is one read"
)


@dataclass(frozen=True, kw_only=True)
class _DataSet:
    """One data set: its path, shape, type in words, and the bytes of an element, None if its length varies."""

    name: str
    shape: tuple[int, ...]
    kind: str
    item_bytes: int | None

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * (self.item_bytes or 0)

    @property
    def whole_bytes(self) -> int:
        return math.prod(self.shape) * (self.item_bytes or 0)


def find_hdf5(path: Path, *, samples: int) -> FileContent:
    """Return the data sets of a file that hold samples, and a note on the others."""
    candidates: list[Candidate] = []
    others: list[_DataSet] = []
    notes: dict[str, str] = {}
    with reading(path), open_hdf5(path) as file:
        data_sets = _walk(file, notes)
        for alike in _alike(data_sets):
            if len(alike) >= MANY:
                found = _collection(path, file, alike, samples)
                candidates += [found] if found else []
                others += [] if found else [replace(alike[0], name=_pattern(alike))]
                continue
            for data in alike:
                found = _rows_or_ranges(path, file, data, data_sets, samples)
                candidates += [found] if found else []
                others += [] if found else [data]
    if others:
        words = [f"{data.name} ({'x'.join(map(str, data.shape)) or 'one'} {data.kind})" for data in others]
        notes["other data sets"] = listed(words)
    return candidates, notes


def _walk(file: Any, notes: dict[str, str]) -> list[_DataSet]:
    """Visit what hard links name, for about `WALK_S`, and return the data sets."""
    found: list[_DataSet] = []
    visited = 0
    deadline = time.perf_counter() + WALK_S

    def visit(name: str, item: Any) -> str | None:
        nonlocal visited
        visited += 1
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            with suppress(TypeError):  # a type that numpy does not know
                kind, item_bytes = _type_of(item.dtype)
                found.append(_DataSet(name=name, shape=item.shape, kind=kind, item_bytes=item_bytes))
        late = visited >= MOST_OBJECTS or (found and time.perf_counter() > deadline)
        return name if late else None

    if file.visititems(visit) is not None:
        notes["data sets"] = f"only the first {len(found):,} were looked at"
    return found


def _type_of(dtype: Any) -> tuple[str, int | None]:
    """Return a type in words, and the bytes of an element; None if its length varies."""
    base = h5py.check_vlen_dtype(dtype)
    text = h5py.check_string_dtype(dtype)
    if base is not None:
        return f"variable-length {'text' if base is str else np.dtype(base)}", None
    if text is not None:
        return ("variable-length text", None) if text.length is None else ("fixed-length text", text.length)
    if h5py.check_ref_dtype(dtype) is not None:
        return "references", 8
    if dtype.fields is not None:
        records = f"records ({', '.join(dtype.names)})"
        return (f"variable-length {records}", None) if dtype.hasobject else (records, dtype.itemsize)
    return "opaque" if dtype.kind == "V" else str(np.dtype(dtype)), dtype.itemsize


def _alike(data_sets: Sequence[_DataSet]) -> Iterator[list[_DataSet]]:
    """Yield groups of data sets that differ in name only: of one depth, number of axes and type."""
    groups: defaultdict[object, list[_DataSet]] = defaultdict(list)
    for data in data_sets:
        groups[data.name.count("/"), len(data.shape), data.kind].append(data)
    for members in groups.values():
        leaves = Counter(posixpath.basename(data.name) for data in members)
        # Few names, many times each: a group per sample, such as 0001/image and 0001/mask. Many names are images, which
        # may have the same names in each class.
        if 1 < len(leaves) <= 8 and len(leaves) * MANY <= len(members):
            for leaf in leaves:
                yield [data for data in members if posixpath.basename(data.name) == leaf]
        else:
            yield members


def _collection(path: Path, file: Any, alike: Sequence[_DataSet], samples: int) -> Candidate | None:
    """Return many alike data sets as one part, each a sample; None if they are numbers, or columns of a table."""
    known = [data for data in alike if 0 not in data.shape]
    first = alike[0]
    if not known:
        return None
    if first.item_bytes is not None:
        lengths = {data.shape for data in alike}
        column = len(first.shape) == 1 and 1 < first.item_bytes < LEAST_ITEM_BYTES and len(lengths) == 1
        if column or max(data.whole_bytes for data in alike) < LEAST_ITEM_BYTES:
            return None
    some = drawn(known, max(MANY, samples))
    opened = file[some[0].name]
    stored = np.mean([file[data.name].id.get_storage_size() for data in some[:MANY]])
    shapes = {data.shape for data in known}
    sides = "x".join(map(str, first.shape)) if len(shapes) == 1 else "of several shapes"
    varying = first.item_bytes is None
    part = SampleSet(
        name=_pattern(alike),
        samples=len(alike),
        layout=f"one data set per sample, {_layout(opened)}",
        content=f"{first.kind} {sides}" if len(first.shape) > 1 else "",
        sample_bytes=None if varying else spread([data.whole_bytes for data in known]),
        touched_bytes=None if varying else paged(float(stored)) + paged(_HEADER_BYTES),
        advice=f"each read opens a data set, which takes reads of its own when it is cold; {_PACK}",
    )
    items = [(data.name, ()) for data in some[:samples] if data.whole_bytes <= MOST_SAMPLE_BYTES]
    return _candidate(path, part, opened, items, beside_bytes=_REFERENCE_BYTES)


def _pattern(alike: Sequence[_DataSet]) -> str:
    """Return the common pattern of names, with a star for each component that differs."""
    columns = zip(*(data.name.split("/") for data in alike), strict=True)
    return "/".join(parts[0] if len(set(parts)) == 1 else "*" for parts in columns)


def _rows_or_ranges(
    path: Path, file: Any, data: _DataSet, data_sets: Sequence[_DataSet], samples: int
) -> Candidate | None:
    """Return a data set whose first axis counts samples, or that another one divides; None if it holds numbers."""
    if not data.shape or 0 in data.shape:
        return None
    opened = file[data.name]
    if data.item_bytes is not None and data.row_bytes < LEAST_ITEM_BYTES:
        return _ranges(path, file, data, data_sets, samples)
    items = [(data.name, row) for row in drawn(range(data.shape[0]), samples)]
    part = SampleSet(name=data.name, samples=data.shape[0], layout=_layout(opened))
    if data.item_bytes is None:
        advice = f"a read follows a reference to the value; to spare it, {_PACK}"
        if filters_of(opened):
            advice = f"HDF5 compresses the references only, not the values of varying length; {advice}"
        layout = f"{data.kind}, each in HDF5's heap behind a reference; the references {part.layout}"
        part = replace(part, layout=layout, advice=advice)
        references = math.prod(opened.shape[1:]) * opened.id.get_type().get_size()
        return _candidate(path, part, opened, items, beside_bytes=_touched(opened, references))
    part = replace(
        part,
        content=f"{data.kind} {'x'.join(map(str, data.shape[1:]))}" if len(data.shape) > 2 else "",
        sample_bytes=(data.row_bytes,) * 3,
        touched_bytes=_touched(opened, data.row_bytes),
        advice=_chunk_advice(path, data.name, opened, data.row_bytes),
    )
    return _candidate(path, part, opened, items)


def _ranges(
    path: Path, file: Any, data: _DataSet, data_sets: Sequence[_DataSet], samples: int
) -> Candidate | None:
    """Return a data set of bytes that offsets beside it divide into samples: from 0 to the number of bytes."""
    if data.item_bytes != 1 or len(data.shape) != 1:
        return None
    for other in data_sets:
        beside = posixpath.dirname(other.name) == posixpath.dirname(data.name)
        if not beside or other.kind not in ("int32", "int64", "uint32", "uint64"):
            continue
        if len(other.shape) != 1 or other.shape[0] < 2 or _unreadable(file[other.name]):
            continue
        offsets = file[other.name]
        if int(offsets[0]) != 0 or int(offsets[-1]) != data.shape[0]:
            continue
        pairs = [
            offsets[row : row + 2].tolist() for row in drawn(range(offsets.shape[0] - 1), max(1, samples))
        ]
        if any(not 0 <= start <= stop <= data.shape[0] for start, stop in pairs):
            continue
        opened = file[data.name]
        lengths = spread([stop - start for start, stop in pairs])
        part = SampleSet(
            name=data.name,
            samples=other.shape[0] - 1,
            layout=f"one sample after another, divided by {other.name}; {_layout(opened)}",
            sample_bytes=lengths,
            touched_bytes=_touched(opened, lengths[1]),
            advice=_chunk_advice(path, data.name, opened, lengths[1]),
        )
        items = [(data.name, slice(start, stop)) for start, stop in pairs[:samples]]
        return _candidate(path, part, opened, items)
    return None


def _candidate(
    path: Path, part: SampleSet, opened: Any, items: Sequence[tuple[str, Any]], beside_bytes: float = 0.0
) -> Candidate:
    why = _unreadable(opened)
    if not why and part.sample_bytes and part.sample_bytes[1] > MOST_SAMPLE_BYTES:
        size = part.sample_bytes[1] / 1e6
        why = f"a sample has {size:,.0f} MB; samples of up to {MOST_SAMPLE_BYTES >> 20} MiB are read"
    source = None
    if items and not why:
        source = Source(path=path, open=partial(_reads, path), items=items, maps=False)
    is_rows = bool(items) and isinstance(items[0][1], int)
    return Candidate(
        part=replace(part, unread=why, is_dataset=is_rows and layout_of(opened) is not None),
        source=source,
        settings=_settings if is_rows else None,
        beside_bytes=beside_bytes,
    )


def _settings(source: Source, folder: Path) -> Iterator[Setting]:
    """Yield the settings of a data set whose rows are samples; its first rows are copied to try those of a writer."""
    name = source.items[0][0]
    with reading(source.path), open_hdf5(source.path) as file:
        data = file[name]
        varying = _type_of(data.dtype)[1] is None
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
        yield Setting(name="values of the writer", now=replace(now, value="varying length"), tried=packed)
    elif chunks and chunks != single:
        chunked = _copied(rows, source, folder / "chunks.h5", _shape(single), chunks=single, **filters)
        yield Setting(name="chunks of the writer", now=now, tried=chunked)
        now = chunked
    if compression and not varying:
        plain = _copied(rows, source, folder / "plain.h5", "none", chunks=single)
        yield Setting(name="filter of the writer", now=replace(now, value=compression), tried=plain)
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


def _shape(sides: Sequence[int]) -> str:
    return "x".join(map(str, sides))


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


def _unreadable(opened: Any) -> str:
    """Return the reason why a data set is not read, or ""."""
    if elsewhere(opened):
        return "its data is in other files"
    chunk = math.prod(opened.chunks or ()) * opened.dtype.itemsize
    if chunk > MOST_CHUNK_BYTES:
        return f"a chunk has {chunk / 1e6:,.0f} MB, and a read needs it as a whole"
    for code, name in filters_of(opened):
        if not h5py.h5z.filter_avail(code):
            return (
                f"its filter {name or code} is not available here; "
                "set HDF5_PLUGIN_PATH to the folder of the filter's plugin"
            )
    return ""


def _layout(opened: Any) -> str:
    if not opened.chunks:
        if opened.external or opened.is_virtual:
            return "in other files" if elsewhere(opened) else "a virtual data set"
        return "contiguous" if opened.id.get_offset() is not None else "in the header, or not written yet"
    filters = opened.compression or ""
    if filters in ("", "unknown"):
        filters = " and ".join(name or str(code) for code, name in filters_of(opened)) or "not compressed"
    return f"chunks of {'x'.join(map(str, opened.chunks))}, {filters}"


def _touched(opened: Any, sample: int) -> float:
    if not opened.chunks:
        return paged(sample)
    pieces = chunks_of_sample(opened)
    if _is_read_in_parts(opened):
        return pieces * paged(sample / pieces)
    # The average stored size of some chunks: HDF5 itself would have to walk all of them.
    chunk = opened.chunks[0]
    starts = {row // chunk * chunk for row in drawn(range(opened.shape[0]), 32)}
    rest = (0,) * (len(opened.shape) - 1)
    sizes = [opened.id.get_chunk_info_by_coord((start, *rest)).size for start in starts]
    written = [size for size in sizes if size]
    return pieces * paged(float(np.mean(written)) if written else 0.0)


def _is_read_in_parts(opened: Any) -> bool:
    """Return whether HDF5 reads parts of chunks: those that are not filtered, and too large for its cache."""
    _, cache_bytes, _ = opened.id.get_access_plist().get_chunk_cache()
    return math.prod(opened.chunks) * opened.dtype.itemsize > cache_bytes and not filters_of(opened)


def _chunk_advice(path: Path, name: str, opened: Any, sample: int) -> str | None:
    if not opened.chunks or _is_read_in_parts(opened):
        return None
    return diagnose_dataset(path, name, opened, sample_bytes=sample)
