"""How a file of another program keeps its samples, and other settings of its readers and writers to try."""

import copy
import itertools
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from storebench.datasets.containers.arrow import ArrowRows, ParquetRows
from storebench.datasets.containers.base import Container, NamedFields, Ranges
from storebench.datasets.containers.mds import MdsShards
from storebench.units import number_of, rounded_bytes

FEW_ROWS = 64  # rows of a row group that are advised
COPY_BYTES, COPY_ROWS = 32 << 20, 5_000  # most of a file that is copied, to try a setting of its writer

_PACK = (
    "a read follows a reference to the value; to spare it, store the bytes of all samples one after another in one "
    "data set of uint8, and where each begins in a data set of offsets"
)


class Layout(NamedTuple):
    words: str
    advice: str | None = None
    least_bytes: int = 0  # that a read needs as a whole, in memory


class Setting(NamedTuple):
    """A setting of a reader or writer: its value now, another one, and the samples as they are read with that."""

    name: str
    now: str
    tried: str
    container: Container
    batch: int = 1  # samples of one call


def estimated(container: Container) -> int:
    """Return about the number of samples of a container whose scan has ended early."""
    if isinstance(container, Ranges):
        count = len(container.spans)
        _, *last = container.spans.place(count - 1)
        return round(count * container.files[0].stat().st_size / sum(last))
    return int(container.handle.stat()["entries"])  # of LMDB


def layout_of(container: Container) -> Layout:
    """Return the layout of a container that was scanned; it is opened."""
    path = container.files[0]
    if isinstance(container, MdsShards):
        return Layout("offsets at the begin of each shard")
    if isinstance(container, Ranges):
        advice = "all of the file is scanned to find them; a kept index of their offsets spares that"
        return Layout("one after another, without an index", advice)
    if isinstance(container, ArrowRows):
        return Layout(f"record batches of {max(container.layout(path)[1]):,} rows, read through a mapping")
    if isinstance(container, ParquetRows):
        return _row_groups(path, container.image)
    if container.kind == "LMDB":
        return Layout(f"B+-tree of {container.handle.stat()['psize']:,}-byte pages")
    return _data_set(container)


def settings_of(container: Container, folder: Path) -> Iterator[Setting]:
    """Yield other settings; those of a writer are tried on a copy of the first samples in `folder`."""
    if container.kind == "LMDB":
        tried = copy.copy(container)
        vars(tried)["readahead"] = False
        yield Setting("readahead", "on", "off", tried)
    elif isinstance(container, ParquetRows):
        group = _largest_group(container.files[0])
        if group.num_rows > 2 * FEW_ROWS:
            copied = _copied_rows(container, group, folder / "rows.parquet")
            yield Setting("row_group_size of the writer", f"{group.num_rows:,}", f"{FEW_ROWS}", copied)
        yield Setting("samples per call", "1", "64", container, 64)
    elif container.kind == "HDF5":
        yield from _data_set_settings(container, folder)


def _largest_group(path: Path) -> Any:
    with pq.ParquetFile(path) as file:
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        return max(groups, key=lambda group: group.num_rows)


def _row_groups(path: Path, column: str) -> Layout:
    group = _largest_group(path)
    parts = map(group.column, range(group.num_columns))
    chunks = [part for part in parts if part.path_in_schema.partition(".")[0] == column]
    stored = sum(part.total_compressed_size for part in chunks)
    advice = None
    if group.num_rows > 2 * FEW_ROWS:
        few = rounded_bytes(stored * FEW_ROWS // group.num_rows)
        advice = (
            f"a random row needs its whole row group, {rounded_bytes(stored)}; with row_group_size={FEW_ROWS} of the "
            f"writer, that is about {few}"
        )
    words = f"{column}: row groups of {group.num_rows:,} rows, {chunks[0].compression.lower()}"
    return Layout(words, advice, sum(part.total_uncompressed_size for part in chunks))


def _copied_rows(container: ParquetRows, group: Any, path: Path) -> Container:
    """Write the first images into small row groups."""
    count = max(1, min(COPY_ROWS, COPY_BYTES * group.num_rows // group.total_byte_size))
    codec = group.column(0).compression
    with pq.ParquetFile(container.files[0], pre_buffer=False) as file:
        batches = file.iter_batches(FEW_ROWS, columns=[container.image], use_threads=False)
        table = pa.Table.from_batches(itertools.islice(batches, -(-count // FEW_ROWS)))
    codec = "none" if codec == "UNCOMPRESSED" else codec
    pq.write_table(table, path, FEW_ROWS, compression=codec, use_dictionary=False)
    return _scanned(container, path, container.image)


def _scanned(container: Container, path: Path, image: str) -> Container:
    copied = type(container)(container.kind, [path], NamedFields(image))
    copied.scan()
    return copy.copy(copied)  # not opened


def _data_set(container: Any) -> Layout:
    from storebench.datasets.containers.hdf5 import filters_of

    data = container.handle
    name, words, filters, chunk_bytes = data.name.lstrip("/"), "contiguous", filters_of(data), 0
    if data.chunks:
        chunk_bytes = math.prod(data.chunks) * data.dtype.itemsize
        named = data.compression or " and ".join(filter_name or str(code) for code, filter_name in filters)
        words = f"chunks of {_shape(data.chunks)}, {named or 'not compressed'}"
    if data.dtype.hasobject:
        words = f"values of varying length, each in HDF5's heap behind a reference; the references {words}"
        unpacked = (
            "HDF5 compresses the references only, not the values of varying length; " if filters else ""
        )
        return Layout(f"{name}: {words}", unpacked + _PACK, chunk_bytes)
    return Layout(f"{name}: {words}", _chunk_advice(container, name, chunk_bytes), chunk_bytes)


def _chunk_advice(container: Any, name: str, chunk_bytes: int) -> str | None:
    """Return the cost of a random sample if chunks make it large, with the line that reduces it."""
    path, data, single = container.files[0], container.handle, container.sample_shape
    sample_bytes = math.prod(single) * data.dtype.itemsize
    sides = zip(single, data.chunks, strict=True) if data.chunks else ()
    touched = math.prod(-(-side // chunk) for side, chunk in sides)
    cost = touched * chunk_bytes
    if cost < 128 << 10 or cost < 4 * sample_bytes:
        return None
    layout = "CONTI" if single[0] == 1 and not data.compression else f"CHUNK={_shape(single)}"
    repacked = path.with_name(f"{path.stem}-repacked{path.suffix}")
    command = shlex.join(["h5repack", "-l", f"{name}:{layout}", str(path), str(repacked)])
    return (
        f"a random sample of {sample_bytes:,} bytes costs {rounded_bytes(cost)}: it spans "
        f"{number_of(touched, 'chunk')} of {_shape(data.chunks)}; fix it with: {command}"
    )


def _data_set_settings(container: Any, folder: Path) -> Iterator[Setting]:
    import h5py

    opened = copy.copy(container)
    data, single = opened.handle, opened.sample_shape
    if data.dtype.hasobject or not data.chunks or single[0] != 1:
        return
    name, chunks = data.name.lstrip("/"), data.chunks
    rows = data[: max(1, min(COPY_ROWS, COPY_BYTES * len(data) // data.nbytes))]
    filters = {
        "compression": data.compression,
        "compression_opts": data.compression_opts,
        "shuffle": data.shuffle,
    }
    del data, opened

    def copied(path: Path, **options: Any) -> Container:
        with h5py.File(path, "w") as file:
            file.create_dataset(name, data=rows, **options)
        return _scanned(container, path, name)

    if chunks != single:
        tried = copied(folder / "chunks.h5", chunks=single, **filters)
        yield Setting("chunks of the writer", _shape(chunks), _shape(single), tried)
    if filters["compression"]:
        tried = copied(folder / "plain.h5")
        yield Setting("filter of the writer", filters["compression"], "none, contiguous", tried)


def _shape(sides: tuple[int, ...]) -> str:
    return "x".join(map(str, sides))
