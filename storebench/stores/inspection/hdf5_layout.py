"""The layout of one HDF5 data set, the bytes that a sample of it needs, and how to improve it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from storebench.formats.hdf5.chunks import chunks_of_sample, diagnose_dataset
from storebench.stores.inspection.candidate import drawn, paged, spread
from storebench.stores.inspection.findings import SampleSet
from storebench.stores.inspection.hdf5_reads import SampleLocation
from storebench.stores.inspection.hdf5_walk import DataSet

MOST_CHUNK_BYTES = 256 << 20
"""Samples in larger chunks are not read."""

_REFERENCE_BYTES = 16
_HEADER_BYTES = 512
_SOME_CHUNKS = 32

_PACK = (
    "store the bytes of all samples one after another in one data set of uint8, and where each begins in "
    "a data set of offsets; then a sample is one read"
)


@dataclass(frozen=True, kw_only=True)
class ByteRanges:
    """Random samples of a data set of bytes, by its offsets.

    Attributes
    ----------
    items
        Begin and end of each sample.
    sizes
        Their sizes, in bytes.
    """

    items: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]


def describe_rows(path: Path, data: DataSet, opened: Any) -> SampleSet:
    """Return the part of a data set whose first axis counts samples."""
    if data.item_bytes is None:
        return _describe_references(data, opened)
    sample = math.prod(data.shape[1:]) * data.item_bytes
    return SampleSet(
        name=data.name,
        samples=data.shape[0],
        layout=layout_of(opened),
        content=f"{data.kind} {'x'.join(map(str, data.shape[1:]))}" if len(data.shape) > 2 else "",
        sample_bytes=(sample, sample, sample),
        touched_bytes=_touched(opened, sample),
        advice=_chunk_advice(path, data.name, opened, sample),
    )


def _describe_references(data: DataSet, opened: Any) -> SampleSet:
    advice = f"a read follows a reference to the value; to spare it, {_PACK}"
    if _filters(opened):
        advice = f"HDF5 compresses the references only, not the values of varying length; {advice}"
    return SampleSet(
        name=data.name,
        samples=data.shape[0],
        layout=f"{data.kind}, each in HDF5's heap behind a reference; the references {layout_of(opened)}",
        sample_bytes=None,
        touched_bytes=None,
        advice=advice,
    )


def reference_bytes(opened: Any) -> float:
    """Return the bytes that the read of a value of varying length needs beside the value."""
    return _touched(opened, math.prod(opened.shape[1:]) * opened.id.get_type().get_size())


def describe_blob(
    path: Path, data: DataSet, offsets: DataSet, opened: Any, sizes: Sequence[int]
) -> SampleSet:
    """Return the part of a data set of bytes that offsets divide into samples."""
    lengths = spread(sizes)
    return SampleSet(
        name=data.name,
        samples=offsets.shape[0] - 1,
        layout=f"one sample after another, divided by {offsets.name}; {layout_of(opened)}",
        sample_bytes=lengths,
        touched_bytes=_touched(opened, lengths[1]),
        advice=_chunk_advice(path, data.name, opened, lengths[1]),
    )


def describe_collection(name: str, members: Sequence[tuple[DataSet, Any]], *, rows: bool) -> SampleSet:
    """Return the part of many alike data sets; `members` are some of them.

    Parameters
    ----------
    rows
        Whether the rows of each are the samples; otherwise each data set is one.
    """
    skipped = 1 if rows else 0
    sizes = [math.prod(data.shape[skipped:]) * (data.item_bytes or _REFERENCE_BYTES) for data, _ in members]
    first, opened = members[0]
    touched = [
        _touched(handle, size) * (1 if rows else _runs(handle))
        for (_, handle), size in zip(members, sizes, strict=True)
    ]
    shapes = {data.shape[skipped:] for data, _ in members}
    sides = "x".join(map(str, shapes.pop())) if len(shapes) == 1 else "of several shapes"
    varying = first.item_bytes is None
    return SampleSet(
        name=name,
        samples=0,
        layout=f"{'samples in many data sets' if rows else 'one data set per sample'}, {layout_of(opened)}",
        content=f"{first.kind} {sides}" if len(first.shape) > 1 else "",
        sample_bytes=None if varying else spread(sizes),
        touched_bytes=None if varying else float(np.mean(touched)) + paged(_HEADER_BYTES),
        advice=None
        if rows
        else f"each read opens a data set, which takes reads of its own when it is cold; {_PACK}",
    )


def blob_spans(data: Any, offsets: Any, count: int) -> ByteRanges | None:
    """Return random samples of a data set of bytes; None if the other data set does not hold its offsets.

    Offsets begin with 0, end with the number of bytes, and are one more than there are samples.
    """
    if offsets.shape[0] < 2 or unreadable(offsets):
        return None
    if int(offsets[0]) != 0 or int(offsets[-1]) != data.shape[0]:
        return None
    pairs = [offsets[row : row + 2].tolist() for row in drawn(range(offsets.shape[0] - 1), max(1, count))]
    if any(not 0 <= start <= stop <= data.shape[0] for start, stop in pairs):
        return None
    return ByteRanges(
        items=tuple((start, stop) for start, stop in pairs),
        sizes=tuple(stop - start for start, stop in pairs),
    )


def unreadable(opened: Any) -> str:
    """Return the reason why a data set is not read, or ""."""
    if opened.external or opened.is_virtual:
        return "its data is in other files"
    chunk = math.prod(opened.chunks or ()) * opened.dtype.itemsize
    if chunk > MOST_CHUNK_BYTES:
        return f"a chunk has {chunk / 1e6:,.0f} MB, and a read needs it as a whole"
    for code, name in _filters(opened):
        if not h5py.h5z.filter_avail(code):
            return (
                f"its filter {name or code} is not available here; "
                "set HDF5_PLUGIN_PATH to the folder of the filter's plugin"
            )
    return ""


def layout_of(opened: Any) -> str:
    """Return the layout of a data set in words."""
    if not opened.chunks:
        if opened.external or opened.is_virtual:
            return "in other files"
        return "contiguous" if opened.id.get_offset() is not None else "in the header, or not written yet"
    filters = opened.compression or ""
    if filters in ("", "unknown"):
        filters = " and ".join(name or str(code) for code, name in _filters(opened)) or "not compressed"
    return f"chunks of {'x'.join(map(str, opened.chunks))}, {filters}"


def _filters(opened: Any) -> list[tuple[int, str]]:
    """Return number and name of the filters of a data set."""
    created = opened.id.get_create_plist()
    filters = [created.get_filter(place) for place in range(created.get_nfilters())]
    return [(code, name.decode(errors="replace")) for code, _, _, name in filters]


def _touched(opened: Any, sample: int) -> float:
    if not opened.chunks:
        return paged(sample)
    pieces = chunks_of_sample(opened)
    return pieces * paged(sample / pieces if _is_read_in_parts(opened) else _chunk_bytes(opened))


def _is_read_in_parts(opened: Any) -> bool:
    """Return whether HDF5 reads parts of chunks: those that are not filtered, and too large for its cache."""
    _, cache_bytes, _ = opened.id.get_access_plist().get_chunk_cache()
    return math.prod(opened.chunks) * opened.dtype.itemsize > cache_bytes and not _filters(opened)


def _chunk_advice(path: Path, name: str, opened: Any, sample: int) -> str | None:
    if not opened.chunks or _is_read_in_parts(opened):
        return None
    return diagnose_dataset(path, name, opened, sample_bytes=sample)


def _runs(opened: Any) -> int:
    """Return the number of chunks along the first axis; 1 for a data set that is not chunked."""
    return -(-opened.shape[0] // opened.chunks[0]) if opened.chunks else 1


def _chunk_bytes(opened: Any) -> float:
    """Return the average stored size of some chunks, in bytes. HDF5 itself would have to walk all of them."""
    rows = drawn(range(opened.shape[0]), _SOME_CHUNKS)
    offsets = {place for row in rows for place in SampleLocation(name="", start=row).chunks(opened)[:1]}
    sizes = [opened.id.get_chunk_info_by_coord(place).size for place in offsets]
    written = [size for size in sizes if size]
    return float(np.mean(written)) if written else 0.0
