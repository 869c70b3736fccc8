"""The samples in tar, TFRecord, MDS, Parquet and Arrow files: the cost of a random one, and what would reduce it."""

import copy
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from storebench.datasets.containers.arrow import ParquetRows, Rows, reading
from storebench.datasets.containers.base import Container, NamedFields, Ranges
from storebench.datasets.containers.mds import MdsShards
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
from storebench.units import format_bytes

FEW_ROWS = 64  # rows of a row group that are advised
SCAN_S = 5.0  # a longer scan ends early, and the number of samples is estimated


def container_samples(container: Container, samples: int, folder: Path) -> Found | None:
    """Return the samples of a file of any kind but LMDB and HDF5."""
    pa.set_memory_pool(pa.system_memory_pool())  # it returns the memory of a large row group at once
    scanned = copy.deepcopy(container)
    scanned.deadline = time.perf_counter() + SCAN_S
    scanned.scan()
    path, count = scanned.files[0], len(scanned.classes.labels)
    if not count:
        return None
    container = copy.deepcopy(scanned)  # nothing of it is open: mapped pages could not be evicted
    if isinstance(container, Ranges):
        return _ranges(container, samples)
    assert isinstance(container, Rows)
    assert isinstance(scanned, Rows)
    with reading(path):
        rows = max(scanned.layout(path)[1])
    source = Source(path=path, open=partial(_row_reads, container), items=drawn(range(count), samples))
    if isinstance(container, ParquetRows):
        return _row_groups(container, count, rows, source, folder)
    layout = f"record batches of {rows:,} rows, read through a mapping"
    return Found(SampleSet(name=container.image, samples=count, layout=layout), replace(source, maps=True))


def _ranges(container: Ranges, samples: int) -> Found:
    spans = container.spans
    shard, *last = spans.place(len(spans) - 1)
    frac = 1.0
    if time.perf_counter() > container.deadline:  # the scan has ended early
        frac = sum(last) / shard.stat().st_size
    shard = spans.place(0)[0]
    places = (spans.place(index) for index in range(len(spans)))
    items = [(offset, size) for file, offset, size in places if file == shard]
    layout, advice = "offsets at the begin of each shard", None
    if not isinstance(container, MdsShards):
        layout = "one after another, without an index"
        index_bytes = format_bytes(round(16 * len(items) / frac))
        advice = (
            f"all of the file is scanned to find them; a kept index of offsets ({index_bytes}) spares that"
        )
    part = SampleSet(
        name=shard.name, samples=round(len(items) / frac), exact=frac == 1, layout=layout, advice=advice
    )
    return Found(part, Source(path=shard, open=partial(_range_reads, shard), items=drawn(items, samples)))


@contextmanager
def _range_reads(path: Path) -> Iterator[Prepare]:
    with path.open("rb") as file:
        yield lambda item: lambda: os.pread(file.fileno(), item[1], item[0])


def _row_groups(container: ParquetRows, count: int, rows: int, source: Source, folder: Path) -> Found:
    column = container.image
    with reading(source.path), pq.ParquetFile(source.path, pre_buffer=False) as file:
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        group = next(group for group in groups if group.num_rows == rows)
        parts = [group.column(place) for place in range(group.num_columns)]
    chunks = [part for part in parts if part.path_in_schema.partition(".")[0] == column]
    stored, nbytes = (
        sum(getattr(part, f"total_{state}_size") for part in chunks)
        for state in ("compressed", "uncompressed")
    )
    few = format_bytes(stored * FEW_ROWS // rows)
    advice = (
        f"a random row needs its whole row group, {format_bytes(stored)}; with row_group_size={FEW_ROWS} of the "
        f"writer, that is about {few}"
    )
    part = SampleSet(
        name=column,
        samples=count,
        layout=f"row groups of {rows:,} rows, {chunks[0].compression.lower()}",
        advice=advice if rows > 2 * FEW_ROWS else None,
        unread=too_large("a row group", nbytes),
    )

    def settings() -> Iterator[Setting]:
        if rows > 2 * FEW_ROWS:
            first = max(1, min(COPY_ROWS, COPY_BYTES * rows // nbytes))
            copied = _copied_rows(container, first, chunks[0].compression, folder / "rows.parquet")
            items = range(len(copied.classes.labels))
            tried = Source(
                path=copied.files[0], open=partial(_row_reads, copied), items=drawn(items, len(items))
            )
            yield Setting("row_group_size of the writer", f"{rows:,}", f"{FEW_ROWS}", tried)
        yield from in_batches(source)

    return Found(part, source, settings())


@contextmanager
def _row_reads(container: Rows) -> Iterator[Prepare]:
    """Read rows as a dataset does, with files opened anew: by a number, or several by their numbers."""
    reader = copy.deepcopy(container)
    yield lambda item: lambda: reader.contents(item) if isinstance(item, list) else reader.contents([item])[0]


def _copied_rows(container: ParquetRows, count: int, compression: str, path: Path) -> ParquetRows:
    """Write about `count` first images into small row groups."""
    column, codec = container.image, compression if compression != "UNCOMPRESSED" else "none"
    with pq.ParquetFile(container.files[0], pre_buffer=False) as file:
        batches = file.iter_batches(FEW_ROWS, columns=[column], use_threads=False)
        table = pa.Table.from_batches(itertools.islice(batches, -(-count // FEW_ROWS)))
    pq.write_table(table, path, FEW_ROWS, compression=codec, use_dictionary=False)
    copied = ParquetRows(container.kind, [path], NamedFields(column))
    copied.scan()
    return copied
