"""The samples in tar, TFRecord, MDS, Parquet and Arrow files: the cost of a random one, and what would reduce it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storebench.datasets.containers.arrow import ArrowRows, ParquetRows, content_of, reading, record_batches
from storebench.datasets.containers.base import Ranges
from storebench.datasets.containers.find import find_container
from storebench.datasets.containers.mds import MdsShards
from storebench.errors import UsageError
from storebench.settings.words import Split
from storebench.stores.random_reads import (
    Candidate,
    FileContent,
    Prepare,
    SampleSet,
    Source,
    drawn,
    paged,
    spread,
)
from storebench.units import format_bytes

FEW_ROWS = 64  # rows of a row group that are advised
MOST_GROUP_BYTES = 256 << 20


def find_samples(path: Path, *, samples: int) -> FileContent:
    """Return the samples of a file of any kind but LMDB and HDF5."""
    pa.set_memory_pool(pa.system_memory_pool())  # it returns the memory of a large row group at once
    container = find_container(str(path), Split.TRAIN)
    started = time.perf_counter()
    container.scan()
    seconds = time.perf_counter() - started
    if not len(container.classes.labels):
        return FileContent(candidates=[])
    if isinstance(container, ParquetRows):
        candidate = _row_groups(container, samples)
    elif isinstance(container, ArrowRows):
        candidate = _batches(container, samples)
    else:
        assert isinstance(container, Ranges)
        candidate = _ranges(container, samples, seconds)
    return FileContent(candidates=[candidate])


def _candidate(
    part: SampleSet, path: Path, opener: Any, items: list[Any], *, maps: bool = False
) -> Candidate:
    source = Source(path=path, open=opener, items=items, maps=maps)
    return Candidate(part=part, source=source if items else None)


def _ranges(container: Ranges, samples: int, scan_s: float) -> Candidate:
    spans = container.spans
    layout = "one after another, without an index"
    advice: str | None = (
        f"to find them, all of the file was read once, in {scan_s:.2g} s; "
        f"a kept index of offsets and sizes ({format_bytes(16 * len(spans))}) spares that"
    )
    if isinstance(container, MdsShards):
        if container.not_in_place:
            raise UsageError(container.not_in_place, where=container.files[0])
        layout, advice = "offsets at the begin of each shard", None
    shard = spans.place(0)[0]
    places = [spans.place(index) for index in range(len(spans))]
    items = [(offset, size) for file, offset, size in places if file == shard]
    lengths = spread([size for _, size in items])
    part = SampleSet(
        name=shard.name,
        samples=len(items),
        layout=layout,
        sample_bytes=lengths,
        touched_bytes=paged(lengths[1]),
        advice=advice,
    )
    return _candidate(part, shard, partial(_range_reads, shard), drawn(items, samples))


@contextmanager
def _range_reads(path: Path) -> Iterator[Prepare]:
    with path.open("rb") as file:
        yield lambda item: lambda: os.pread(file.fileno(), item[1], item[0])


def _row_groups(container: ParquetRows, samples: int) -> Candidate:
    [path], column = container.files, container.image
    with reading(path), pq.ParquetFile(path, pre_buffer=False) as file:
        counts = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        places = [(number, row) for number, count in enumerate(counts) for row in range(count)]
        rows, largest = max(counts), counts.index(max(counts))
        group = file.metadata.row_group(largest)
        parts = [group.column(place) for place in range(group.num_columns)]
        own = [part for part in parts if part.path_in_schema.partition(".")[0] == column]
        some = next(container.batches(path, largest, column))
        lengths = _lengths(some.column(0))
    nbytes = sum(part.total_uncompressed_size for part in own)
    touched = sum(part.total_compressed_size for part in own)
    part = SampleSet(
        name=column,
        samples=len(places),
        layout=f"row groups of {rows:,} rows, {own[0].compression.lower()}",
        sample_bytes=spread(lengths),
        touched_bytes=touched,
        advice=f"a random row needs its whole row group; with row_group_size={FEW_ROWS} of the writer, that is "
        f"about {format_bytes(touched * FEW_ROWS // rows)}"
        if rows > 2 * FEW_ROWS
        else None,
        unread=f"a row group has {nbytes / 1e6:,.0f} MB, and a read needs it as a whole"
        if nbytes > MOST_GROUP_BYTES
        else "",
    )
    items = [] if part.unread else drawn(places, samples)
    return _candidate(part, path, partial(_row_reads, path, column), items)


def _lengths(column: Any) -> list[int]:
    values = pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column
    return [length or 0 for length in pc.binary_length(values).to_pylist()]


@contextmanager
def _row_reads(path: Path, column: str) -> Iterator[Prepare]:
    with reading(path), pq.ParquetFile(path, pre_buffer=False) as file:

        def prepare(item: tuple[int, int]) -> Callable[[], Any]:
            group, row = item
            return lambda: content_of(
                file.read_row_group(group, columns=[column], use_threads=False).column(0)[row]
            )

        yield prepare


def _batches(container: ArrowRows, samples: int) -> Candidate:
    [path], column = container.files, container.image
    with reading(path):
        batches = list(record_batches(path))
        lengths = spread(_lengths(pa.chunked_array([batch.column(column) for batch in batches])))
    places = [(number, row) for number, batch in enumerate(batches) for row in range(len(batch))]
    part = SampleSet(
        name=column,
        samples=len(places),
        layout=f"record batches of {len(batches[0]):,} rows, read through a mapping",
        sample_bytes=lengths,
        touched_bytes=paged(lengths[1]),
    )
    return _candidate(part, path, partial(_mapped_reads, path, column), drawn(places, samples), maps=True)


@contextmanager
def _mapped_reads(path: Path, column: str) -> Iterator[Prepare]:
    with reading(path):
        batches = list(record_batches(path))

        def prepare(item: tuple[int, int]) -> Callable[[], Any]:
            number, row = item
            return lambda: content_of(batches[number].column(column)[row])

        yield prepare
