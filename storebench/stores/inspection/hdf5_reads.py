"""Random reads of HDF5 data sets through h5py, and the time to decompress the chunks of a sample."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError
from storebench.formats.hdf5.write import H5_ERRORS
from storebench.stores.inspection.hdf5_walk import open_hdf5
from storebench.stores.inspection.measure import Prepare

_MOST_CHUNKS = 64
_MOST_DECOMPRESSED = 32
_DECOMPRESS_S = 0.5


@dataclass(frozen=True, kw_only=True)
class SampleLocation:
    """One sample: a data set, a row of one, or a range of one.

    Attributes
    ----------
    name
        The data set.
    start
        The row, or the beginning of the range; None for the whole data set.
    stop
        The end of the range; None for a row.
    """

    name: str
    start: int | None = None
    stop: int | None = None

    @property
    def key(self) -> Any:
        """The key by which h5py reads it."""
        if self.start is None:
            return ()
        return self.start if self.stop is None else slice(self.start, self.stop)

    def chunks(self, data: Any) -> list[tuple[int, ...]]:
        """Return the offsets of the chunks that hold it, at most some of them."""
        spans = [(0, length) for length in data.shape]
        if self.start is not None:
            spans[0] = (self.start, self.start + 1 if self.stop is None else self.stop)
        ranges = (
            range(start // side * side, stop, side)
            for (start, stop), side in zip(spans, data.chunks, strict=True)
        )
        return list(itertools.islice(itertools.product(*ranges), _MOST_CHUNKS))


@contextmanager
def h5_errors(path: Path) -> Iterator[None]:
    """Turn the errors of h5py into the one line for a damaged file."""
    try:
        yield
    except H5_ERRORS as error:
        raise CorruptDataError(f"HDF5 cannot read it ({error})", where=path) from error


@contextmanager
def open_reads(path: Path) -> Iterator[Prepare]:
    """Open a file and yield the function that prepares the read of a `SampleLocation`."""
    with h5_errors(path), open_hdf5(path) as file:
        yield _Reads(file).prepare


class _Reads:
    """Reads of one open file; at most one data set is open at a time."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._data: Any = None
        self._name = ""

    def prepare(self, item: SampleLocation) -> Callable[[], Any]:
        """Return the function that reads an item; of a whole data set, opening it is part of the read."""
        if item.start is None:
            self._data = None
            return lambda: self._file[item.name][()]
        if self._data is None or self._name != item.name or self._data.chunks:
            # Chunked data is opened anew for each read: closing it empties the library's cache of chunks, in which a
            # random read of a large data set finds nothing.
            self._data = None
            self._data, self._name = self._file[item.name], item.name
            self._data[:0]
        key = item.key
        # Not bound to the data set, which would then stay open with the function.
        return lambda: self._data[key]


def decompress_seconds(path: Path, items: Sequence[SampleLocation]) -> float | None:
    """Return the median time to decompress the chunks of one sample, in seconds; None if nothing is compressed.

    It is the time of a warm read less that of reading the same chunks as they are stored.
    """
    deadline = time.perf_counter() + _DECOMPRESS_S
    seconds: list[float] = []
    with h5_errors(path), open_hdf5(path) as file:
        for item in items[:_MOST_DECOMPRESSED]:
            data = file[item.name]
            if not data.chunks or not data.id.get_create_plist().get_nfilters():
                return None
            data[:0]
            stored = [place for place in item.chunks(data) if data.id.get_chunk_info_by_coord(place).size]
            for offsets in stored:
                data.id.read_direct_chunk(offsets)  # now the index of chunks is in memory for both
            start = time.perf_counter()
            for offsets in stored:
                data.id.read_direct_chunk(offsets)
            middle = time.perf_counter()
            data[item.key]
            end = time.perf_counter()
            seconds.append(max(0.0, end - middle - (middle - start)))
            del data  # see `_Reads.prepare`
            if end > deadline:
                break
    return statistics.median(seconds) if seconds else None
