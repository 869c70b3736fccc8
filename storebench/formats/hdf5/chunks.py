"""The places of the samples of any HDF5 data set in its file, and the cost of its chunking."""

import math
import shlex
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from storebench.formats.common import damaged
from storebench.formats.reads.direct_file import Offsets
from storebench.units import number_of


class NoPlaceError(Exception):
    """The samples have no place of their own in the file; the message gives the reason."""


def row_offsets(data: Any) -> Offsets:
    """Return the offset in the file of each element of an uncompressed data set's first axis, int64 [n]."""
    size = math.prod(data.shape[1:]) * data.dtype.itemsize
    rows = np.arange(data.shape[0], dtype=np.int64)
    addresses = chunk_addresses(data)
    if not len(addresses):
        return rows
    per_chunk = data.chunks[0] if data.chunks else max(1, data.shape[0])
    offsets: Offsets = addresses[rows // per_chunk] + rows % per_chunk * size
    return offsets


def chunk_addresses(data: Any) -> npt.NDArray[np.int64]:
    """Return the file offsets of a data set's chunks along its first axis, int64 [chunks]; one if it is contiguous."""
    if not data.size:
        return np.empty(0, np.int64)
    if data.chunks is None:
        offset = data.id.get_offset()
        if offset is None or data.external:
            raise NoPlaceError("its data lies in the header or in another file")
        return np.array([offset], np.int64)
    if data.id.get_create_plist().get_nfilters():
        raise NoPlaceError("it is compressed or filtered")
    if data.chunks[1:] != data.shape[1:]:
        raise NoPlaceError(f"its chunks {data.chunks} hold parts of samples")
    addresses = np.full(-(-data.shape[0] // data.chunks[0]), -1, np.int64)

    def note(info: Any) -> None:
        addresses[info.chunk_offset[0] // data.chunks[0]] = info.byte_offset

    data.id.chunk_iter(note)
    if (addresses < 0).any():
        raise damaged("a chunk was never written", Path(data.file.filename))
    return addresses


def diagnose_chunking(path: Path | str) -> str | None:
    """Return the cost of a random sample if a file's chunking makes it large, with the line that reduces it."""
    with h5py.File(path, "r", locking=False) as file:
        for name, data in file.items():
            image = isinstance(data, h5py.Dataset) and data.ndim > 1
            if image and (diagnosis := diagnose_dataset(Path(path), name, data)):
                return diagnosis
    return None


def chunks_of_sample(data: Any) -> int:
    """Return the number of chunks that hold parts of one sample of a chunked data set."""
    return math.prod(-(-n // c) for n, c in zip(data.shape[1:], data.chunks[1:], strict=True))


def diagnose_dataset(path: Path, name: str, data: Any, *, sample_bytes: int | None = None) -> str | None:
    """Return the diagnosis of one data set of an open file; None if it is not chunked, or chunked well. See above."""
    if not data.chunks or not data.size:
        return None
    item = data.dtype.itemsize
    sample = math.prod(data.shape[1:]) * item if sample_bytes is None else sample_bytes
    touched = chunks_of_sample(data)
    cost = touched * math.prod(data.chunks) * item
    if cost < 128 << 10 or cost < 4 * sample:
        return None
    layout = "CHUNK=" + "x".join(map(str, (1, *data.shape[1:]))) if data.compression else "CONTI"
    repacked = path.with_name(f"{path.stem}-repacked{path.suffix}")
    command = ["h5repack", "-l", f"{name}:{layout}", str(path), str(repacked)]
    size = f"{cost / 2**20:.1f} MiB" if cost >= 1 << 20 else f"{cost / 2**10:.0f} KiB"
    return (
        f"a random sample of {name!r} ({sample} bytes) costs {size}: it spans "
        f"{number_of(touched, 'chunk')} of {data.chunks}; fix it with: {shlex.join(command)}"
    )
