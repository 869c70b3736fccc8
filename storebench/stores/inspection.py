"""Estimate the cost of a random read from any LMDB or HDF5 file: bytes to read, and advice for a better layout."""

import math
import mmap
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.formats.lmdb.index import data_file, open_index
from storebench.formats.lmdb.pages import is_lmdb
from storebench.formats.registry import get_format
from storebench.probes.page_cache import resident


@dataclass(frozen=True, kw_only=True)
class Part:
    """One database or dataset.

    Attributes
    ----------
    name
        Empty for LMDB's unnamed database.
    samples
        Number of records, or the length of the first axis.
    layout
        Layout in the file, in words.
    sample_bytes
        Shortest, median and longest size.
    touched_bytes
        Bytes that a read of one uncached sample needs, on average and at least: whole pages and whole
        chunks.
    advice
        How to improve a costly layout; None if there is nothing to improve.
    """

    name: str
    samples: int
    layout: str
    sample_bytes: tuple[int, int, int]
    touched_bytes: float
    advice: str | None = None

    @property
    def amplification(self) -> float:
        """Touched bytes over the median sample size."""
        return self.touched_bytes / max(1, self.sample_bytes[1])


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Findings about one file.

    Attributes
    ----------
    kind
        "LMDB" or "HDF5".
    resident_frac
        Share of the file in the page cache; None if it cannot be counted.
    """

    path: Path
    kind: str
    file_bytes: int
    resident_frac: float | None
    parts: tuple[Part, ...]
    notes: dict[str, str] = field(default_factory=dict)


def inspect(path: Path, *, database: str | None = None) -> Inspection:
    """Return the cost of a random sample of a file. Nothing is written, and no sample is read.

    Parameters
    ----------
    path
        An HDF5 file, an LMDB data file, or a folder that holds one (``data.mdb``, ``data.h5``).
    database
        A named database of LMDB.

    Raises
    ------
    DataNotFoundError
        There is no such file.
    CorruptDataError
        It is neither an LMDB database nor an HDF5 file.
    CorruptStoreError
        It is one of them, but damaged.
    UsageError
        The database is of an unsupported kind, or `database` must be given.
    MissingDependencyError
        HDF5's library is not installed.
    """
    file = _file_of(path)
    kind = _kind_of(file)
    frac = resident([file]).frac
    parts, notes = _lmdb(file, database) if kind == "LMDB" else _hdf5(file)
    return Inspection(
        path=file,
        kind=kind,
        file_bytes=file.stat().st_size,
        resident_frac=frac,
        parts=parts,
        notes=notes,
    )


def _file_of(path: Path) -> Path:
    file = data_file(path)
    if path.is_dir() and not file.exists():
        file = path / "data.h5"
    if not file.is_file():
        raise DataNotFoundError(
            "no file to inspect", where=path, hint="Name an LMDB or HDF5 file, or the folder that holds it."
        )
    return file


def _kind_of(path: Path) -> str:
    if is_lmdb(path):
        return "LMDB"
    get_format("hdf5")  # its error says how to install a missing library
    import h5py

    if h5py.is_hdf5(path):
        return "HDF5"
    raise CorruptDataError("neither an LMDB database nor an HDF5 file", where=path)


def _lmdb(path: Path, database: str | None) -> tuple[tuple[Part, ...], dict[str, str]]:
    start = time.perf_counter()
    index = open_index(path, database=database, cache=False)
    built_s = time.perf_counter() - start
    lengths, page = index.lengths.astype(np.int64), index.page_bytes
    pages = -(-(index.offsets + lengths) // page) - index.offsets // page
    part = Part(
        name=database or "",
        samples=len(index),
        layout=f"B+-tree of {page:,}-byte pages",
        sample_bytes=_spread(lengths),
        touched_bytes=float(pages.mean()) * page if len(index) else 0.0,
    )
    notes = {
        "page index": f"built in {built_s:.2f} s, {index.nbytes / 1e6:.1f} MB",
        "keys": f"the first {index.numbered:,} of {len(index):,} are their own positions in eight digits",
    }
    return (part,), notes


def _hdf5(path: Path) -> tuple[tuple[Part, ...], dict[str, str]]:
    import h5py

    from storebench.formats.hdf5.chunks import chunks_of_sample, diagnose_dataset
    from storebench.formats.hdf5.write import H5_ERRORS

    parts: list[Part] = []

    def look(name: str, data: Any) -> None:
        if isinstance(data, h5py.Dataset) and data.ndim and data.size:
            sample = math.prod(data.shape[1:]) * data.dtype.itemsize
            parts.append(
                Part(
                    name=name,
                    samples=data.shape[0],
                    layout=_layout(data),
                    sample_bytes=(sample, sample, sample),
                    touched_bytes=chunks_of_sample(data) * _paged(_chunk_bytes(data))
                    if data.chunks
                    else _paged(sample),
                    advice=diagnose_dataset(path, name, data),
                )
            )

    try:
        with h5py.File(path, "r", locking=False) as file:
            file.visititems(look)
    except H5_ERRORS as error:
        raise CorruptDataError(f"HDF5 cannot open it ({error})", where=path) from error
    return tuple(parts), {}


def _layout(data: Any) -> str:
    if not data.chunks:
        return (
            "contiguous" if data.id.get_offset() is not None else "in the header, in other files or virtual"
        )
    filters = data.compression or (
        "filtered" if data.id.get_create_plist().get_nfilters() else "not compressed"
    )
    return f"chunks of {'x'.join(map(str, data.chunks))}, {filters}"


def _chunk_bytes(data: Any) -> float:
    """Return the average stored size of a chunk, in bytes."""
    return float(data.id.get_storage_size() / max(1, data.id.get_num_chunks()))


def _paged(nbytes: float) -> float:
    """Return the bytes of the pages that a range of this size touches, averaged over its possible offsets."""
    pages = (nbytes - 1) / mmap.PAGESIZE + 1
    return pages * mmap.PAGESIZE


def _spread(lengths: Any) -> tuple[int, int, int]:
    if not len(lengths):
        return 0, 0, 0
    return int(lengths.min()), int(np.median(lengths)), int(lengths.max())
