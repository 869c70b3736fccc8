"""The samples in tar, TFRecord, MDS, Parquet and Arrow files: the cost of a random one, and what would reduce it."""

import copy
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storebench.datasets.containers.arrow import ArrowRows, ParquetRows, Rows, reading, record_batches
from storebench.datasets.containers.base import Container, NamedFields, Ranges
from storebench.datasets.containers.mds import MdsShards
from storebench.formats.peers.stream import randomness
from storebench.formats.peers.tfrecord import TfRecordReader
from storebench.stores.random_reads import (
    FileSamples,
    Prepare,
    SampleSet,
    Source,
    Trial,
    TriedSetting,
    drawn,
    paged,
    spread,
)
from storebench.stores.trials import (
    BATCH,
    COPY_BYTES,
    COPY_ROWS,
    in_batches,
    in_sequence,
)
from storebench.units import format_bytes

FEW_ROWS = 64  # rows of a row group that are advised
MOST_GROUP_BYTES = 256 << 20
SCAN_S = 5.0  # a longer scan ends early, and the number of samples is estimated
BUFFERS = (1_000, 10_000)  # samples of a usual shuffle buffer, and of a large one

Settings = Callable[[Source, Path], Iterator[TriedSetting | Trial]]


def container_samples(container: Container, samples: int) -> FileSamples | None:
    """Return the samples of a file of any kind but LMDB and HDF5."""
    pa.set_memory_pool(pa.system_memory_pool())  # it returns the memory of a large row group at once
    started = time.perf_counter()
    opened = copy.deepcopy(container)
    opened.deadline = started + SCAN_S
    opened.scan()
    seconds = time.perf_counter() - started
    container = copy.deepcopy(opened)  # nothing of it is open: mapped pages could not be evicted
    del opened
    if not len(container.classes.labels):
        return None
    if isinstance(container, ParquetRows):
        return _row_groups(container, samples)
    if isinstance(container, ArrowRows):
        return _batches(container, samples)
    assert isinstance(container, Ranges)
    return _ranges(container, samples, seconds)


def _candidate(
    part: SampleSet, path: Path, opener: Any, items: list[Any], settings: Settings, *, maps: bool = False
) -> FileSamples:
    source = Source(path=path, open=opener, items=items, maps=maps)
    return FileSamples(part=part, source=source if items else None, settings=settings)


def _ranges(container: Ranges, samples: int, scan_s: float) -> FileSamples:
    spans = container.spans
    shard, *last = spans.place(len(spans) - 1)
    frac = 1.0
    if time.perf_counter() > container.deadline:  # the scan has ended early
        frac = sum(last) / shard.stat().st_size
    is_stream = not isinstance(container, MdsShards)
    advice = (
        f"to find them, all of the file has to be read once, in {scan_s / frac:.2g} s; "
        f"a kept index of offsets and sizes ({format_bytes(round(16 * len(spans) / frac))}) spares that"
    )
    shard = spans.place(0)[0]
    places = [spans.place(index) for index in range(len(spans))]
    items = [(offset, size) for file, offset, size in places if file == shard]
    lengths = spread([size for _, size in items])
    part = SampleSet(
        name=shard.name,
        samples=round(len(items) / frac),
        exact=frac == 1,
        layout="one after another, without an index" if is_stream else "offsets at the begin of each shard",
        sample_bytes=lengths,
        touched_bytes=paged(lengths[1]),
        advice=advice if is_stream else None,
    )

    def settings(source: Source, folder: Path) -> Iterator[TriedSetting | Trial]:  # noqa: ARG001 - nothing is copied
        yield from in_sequence(source, items)
        if is_stream and len(items) > BUFFERS[0]:
            # How far each moves the samples of one shard, over a uniform shuffle.
            orders = (TfRecordReader.shuffled(iter(range(len(items))), buffer, (0,)) for buffer in BUFFERS)
            low, high = (randomness(np.fromiter(order, np.int64))[0] for order in orders)
            yield Trial(
                setting="shuffle buffer of a stream",
                now=f"{BUFFERS[0]:,} ({low:.2f} of a uniform shuffle)",
                tried=f"{BUFFERS[1]:,} ({high:.2f})",
                factor=high / low,
                gain="as random",
            )

    return _candidate(part, shard, partial(_range_reads, shard), drawn(items, samples), settings)


@contextmanager
def _range_reads(path: Path) -> Iterator[Prepare]:
    with path.open("rb") as file:
        yield lambda item: lambda: os.pread(file.fileno(), item[1], item[0])


def _row_groups(container: ParquetRows, samples: int) -> FileSamples:
    [path], column, count = container.files, container.image, len(container.classes.labels)
    with reading(path), pq.ParquetFile(path, pre_buffer=False) as file:
        counts = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        rows, largest = max(counts), counts.index(max(counts))
        group = file.metadata.row_group(largest)
        parts = [group.column(place) for place in range(group.num_columns)]
        chunks = [part for part in parts if part.path_in_schema.partition(".")[0] == column]
        some = next(container.batches(path, largest, column))
        lengths = _lengths(some.column(0))
    nbytes = sum(part.total_uncompressed_size for part in chunks)
    touched = sum(part.total_compressed_size for part in chunks)
    part = SampleSet(
        name=column,
        samples=count,
        layout=f"row groups of {rows:,} rows, {chunks[0].compression.lower()}",
        sample_bytes=spread(lengths),
        exact=len(lengths) == count,
        touched_bytes=touched,
        advice=f"a random row needs its whole row group; with row_group_size={FEW_ROWS} of the writer, that is "
        f"about {format_bytes(touched * FEW_ROWS // rows)}"
        if rows > 2 * FEW_ROWS
        else None,
        unread=f"a row group has {nbytes / 1e6:,.0f} MB, and a read needs it as a whole"
        if nbytes > MOST_GROUP_BYTES
        else "",
    )
    items = [] if part.unread else drawn(range(count), samples)

    def settings(source: Source, folder: Path) -> Iterator[TriedSetting | Trial]:
        if rows > 2 * FEW_ROWS:
            copied = _copied_rows(container, chunks[0].compression, folder / "rows.parquet")
            copies = range(len(copied.classes.labels))
            opener = partial(_row_reads, copied)
            few = Source(
                path=copied.files[0],
                open=opener,
                items=drawn(copies, len(copies)),
                maps=False,
                value=f"{FEW_ROWS}",
            )
            now = replace(source, value=f"{rows:,}")
            yield TriedSetting(name="row_group_size of the writer", now=now, tried=few)
        yield from in_batches(source, BATCH)

    return _candidate(part, path, partial(_row_reads, container), items, settings)


@contextmanager
def _row_reads(container: Rows) -> Iterator[Prepare]:
    """Read rows as a dataset does, with files opened anew: by a number, or several by their numbers."""
    reader = copy.deepcopy(container)
    yield lambda item: lambda: reader.contents(item) if isinstance(item, list) else reader.contents([item])[0]


def _copied_rows(container: ParquetRows, compression: str, path: Path) -> ParquetRows:
    """Write the first images into small row groups."""
    count, nbytes, column = 0, 0, container.image
    with pq.ParquetFile(container.files[0], pre_buffer=False) as file:
        schema = pa.schema([file.schema_arrow.field(column)])
        codec = compression if compression != "UNCOMPRESSED" else "none"
        with pq.ParquetWriter(path, schema, compression=codec, use_dictionary=False) as writer:
            for batch in file.iter_batches(FEW_ROWS, columns=[column], use_threads=False):
                writer.write_batch(batch)
                count, nbytes = count + len(batch), nbytes + batch.nbytes
                if nbytes > COPY_BYTES or count >= COPY_ROWS:
                    break
    copied = ParquetRows(container.kind, [path], NamedFields(column))
    copied.scan()
    return copied


def _lengths(column: Any) -> list[int]:
    values = pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column
    return [length or 0 for length in pc.binary_length(values).to_pylist()]


def _batches(container: ArrowRows, samples: int) -> FileSamples:
    [path], column, count = container.files, container.image, len(container.classes.labels)
    with reading(path):
        batches = list(record_batches(path))
        lengths = spread(_lengths(pa.chunked_array([batch.column(column) for batch in batches])))
    part = SampleSet(
        name=column,
        samples=count,
        layout=f"record batches of {len(batches[0]):,} rows, read through a mapping",
        sample_bytes=lengths,
        touched_bytes=paged(lengths[1]),
    )

    def settings(source: Source, folder: Path) -> Iterator[TriedSetting | Trial]:  # noqa: ARG001 - nothing is copied
        yield from in_sequence(source, range(count))

    items = drawn(range(count), samples)
    return _candidate(part, path, partial(_row_reads, container), items, settings, maps=True)
