"""The samples in tar, TFRecord, MDS, Parquet and Arrow files: the cost of a random one, and what would reduce it."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storebench.datasets.containers.arrow import ArrowRows, ParquetRows, record_batches
from storebench.datasets.containers.base import Spans
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

FEW_ROWS = 64
"""Rows of a row group in the copy with which a Parquet file is compared."""

MOST_COPIED_BYTES = 64 << 20
MOST_GROUP_BYTES = 256 << 20
_TIMED = 20  # reads of such a copy


def find_samples(path: Path, *, samples: int) -> FileContent:
    """Return the samples of a file of any kind but LMDB and HDF5."""
    pa.set_memory_pool(pa.system_memory_pool())  # it returns the memory of a large row group at once
    container = find_container(str(path), Split.TRAIN)
    started = time.perf_counter()
    container.scan()
    if not len(container.classes.labels):
        return FileContent(candidates=[])
    if isinstance(container, ParquetRows):
        return FileContent(candidates=[_row_groups(container, samples)])
    if isinstance(container, ArrowRows):
        return FileContent(candidates=[_batches(container, samples)])
    spans: Spans = container.spans  # type: ignore[attr-defined] # of every kind that is left
    advice = (
        f"to find them, all of the file was read once, in {time.perf_counter() - started:.2g} s; "
        f"a kept index of offsets and sizes ({format_bytes(16 * len(spans))}) spares that"
    )
    layout = "one after another, without an index"
    if isinstance(container, MdsShards):
        if container.compressed:
            raise UsageError(
                "compressed shards, of which a random sample needs a whole one",
                where=path,
                hint="Unpack them first.",
            )
        layout, advice = "offsets at the begin of each shard", ""
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
        advice=advice or None,
    )
    return FileContent(
        candidates=[_candidate(part, shard, partial(_range_reads, shard), drawn(items, samples))]
    )


def _candidate(
    part: SampleSet, path: Path, opener: Any, items: list[Any], *, maps: bool = False
) -> Candidate:
    source = Source(path=path, open=opener, items=items, maps=maps)
    return Candidate(part=part, source=source if items else None)


@contextmanager
def _range_reads(path: Path) -> Iterator[Prepare]:
    with path.open("rb") as file:
        yield lambda item: lambda: os.pread(file.fileno(), item[1], item[0])


def _row_groups(container: ParquetRows, samples: int) -> Candidate:
    [path], column = container.files, container.image
    with pq.ParquetFile(path, pre_buffer=False) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        places = [(number, row) for number, group in enumerate(groups) for row in range(group.num_rows)]
        parts = [groups[0].column(place) for place in range(groups[0].num_columns)]
        own = [part for part in parts if part.path_in_schema.partition(".")[0] == column]
        rows, nbytes = groups[0].num_rows, sum(part.total_uncompressed_size for part in own)
        few = max(1, min(rows, MOST_COPIED_BYTES * rows // max(1, nbytes)))
        some = next(file.iter_batches(few, [0], columns=[column], use_threads=False))
    unread = f"a row group has {nbytes / 1e6:,.0f} MB, and a read needs it as a whole"
    part = SampleSet(
        name=column,
        samples=len(places),
        layout=f"row groups of {rows:,} rows, {own[0].compression.lower()}",
        sample_bytes=spread(_lengths(some.column(0))),
        touched_bytes=sum(part.total_compressed_size for part in own),
        advice=_smaller_groups(some) if rows > 2 * FEW_ROWS and samples else None,
        unread=unread if nbytes > MOST_GROUP_BYTES else "",
    )
    items = [] if part.unread else drawn(places, samples)
    return _candidate(part, path, partial(_row_reads, path, column), items)


def _smaller_groups(rows: pa.RecordBatch) -> str:
    """Return advice on the row groups, with the time of a read from a copy with smaller ones."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([rows]), sink, row_group_size=FEW_ROWS)
    seconds = []
    with pq.ParquetFile(pa.BufferReader(sink.getvalue())) as copy:
        for row in drawn(range(len(rows)), _TIMED):
            started = time.perf_counter()
            _row(copy, rows.schema.names[0], divmod(row, FEW_ROWS))
            seconds.append(time.perf_counter() - started)
    return (
        f"a random row needs its whole row group; with row_group_size={FEW_ROWS} of the writer, a warm read takes "
        f"{1e3 * statistics.median(seconds):.2g} ms, measured on a copy of {len(rows):,} rows"
    )


def _lengths(column: Any) -> list[int]:
    values = pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column
    return [length or 0 for length in pc.binary_length(values).to_pylist()]


def _row(file: pq.ParquetFile, column: str, item: tuple[int, int]) -> bytes:
    group, row = item
    return _content(file.read_row_group(group, columns=[column], use_threads=False).column(0)[row])


@contextmanager
def _row_reads(path: Path, column: str) -> Iterator[Prepare]:
    with pq.ParquetFile(path, pre_buffer=False) as file:
        yield lambda item: lambda: _row(file, column, item)


def _batches(container: ArrowRows, samples: int) -> Candidate:
    [path], column = container.files, container.image
    batches = list(record_batches(path))
    places = [(number, row) for number, batch in enumerate(batches) for row in range(len(batch))]
    lengths = spread(_lengths(pa.chunked_array([batch.column(column) for batch in batches])))
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
    batches = list(record_batches(path))

    def prepare(item: tuple[int, int]) -> Callable[[], bytes]:
        number, row = item
        return lambda: _content(batches[number].column(column)[row])

    yield prepare


def _content(scalar: Any) -> bytes:
    value = scalar.as_py()
    content: bytes = value["bytes"] if isinstance(value, dict) else value
    return content
