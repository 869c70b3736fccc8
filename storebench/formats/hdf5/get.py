"""Read HDF5 through h5py's low-level interface, one hyperslab per sample."""

from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from storebench.arrays import Indices
from storebench.errors import CorruptStoreError
from storebench.formats.arrays import Batch
from storebench.formats.base import Fetched, Reader
from storebench.formats.common import checked_labels, damaged
from storebench.formats.hdf5.write import DATA_FILE, H5_ERRORS
from storebench.formats.options import Options
from storebench.manifest import Manifest

SIEVE_BYTES = 1
"""HDF5 would read 64 KiB around each small image: amplification without a faster epoch."""


class Hdf5GetReader(Reader):
    """Read one hyperslab per sample straight into the batch, through h5py's low-level interface."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self._path = store / DATA_FILE
        self._file = _open_file(self._path)
        try:
            self._open_datasets()
        except H5_ERRORS as error:
            self.close()
            raise damaged(f"HDF5 cannot read its data sets ({error})", self._path) from error
        except BaseException:
            self.close()
            raise

    def _fetch(self, indices: Indices) -> list[bytes]:
        if self.payload_codec == "raw":
            return self._raw_payloads(indices)
        return [self._payload(number) for number in self._checked(indices)]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        numbers = self._checked(indices)
        select, read = self._space.select_hyperslab, self._data.read
        memory, kind, shape = self._memory, self._kind, self._one
        try:
            for row, number in enumerate(numbers):
                select((number, 0, 0, 0), shape)
                read(memory, self._space, out[row], kind)
        except (OSError, RuntimeError) as error:
            raise damaged(f"HDF5 cannot read the images ({error})", self._path) from error
        return Fetched(out.nbytes)

    def _close(self) -> None:
        # Objects of the file are closed before it; some are missing if opening failed.
        for name in ("_data", "_space", "_memory", "_kind"):
            self.__dict__.pop(name, None)
        self._file.close()

    def _open_datasets(self) -> None:
        count = self.manifest.count
        self.labels = checked_labels(self._whole("label", count), count, self._path)
        shape: tuple[int, ...] = (count, *self.image_shape)
        if self.payload_codec != "raw":
            self._offsets: list[int] = self._whole("offset", count + 1).tolist()
            shape = (self._offsets[-1],)
        self._data = self._dataset("data" if self.payload_codec == "raw" else "payload")
        if self._data.shape != shape or self._data.dtype != np.uint8:
            raise damaged(
                f"an array {self._data.dtype}{self._data.shape} where uint8{shape} was expected", self._path
            )
        self._space = self._data.get_space()
        self._kind = h5py.h5t.NATIVE_UINT8
        self._one = (1, *self.image_shape)
        self._memory = h5py.h5s.create_simple(self._one)

    def _dataset(self, name: str) -> h5py.h5d.DatasetID:
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        access.set_chunk_cache(*self._chunk_cache(), 1.0)
        try:
            return h5py.h5d.open(self._file, name.encode(), access)
        except H5_ERRORS as error:
            raise damaged(f"the data set {name!r} is missing", self._path) from error

    def _chunk_cache(self) -> tuple[int, int]:
        """Return the slots and the bytes of the cache for chunks of each data set."""
        return 0, 0  # so that HDF5 reads only the part of a chunk that it needs, not the whole 4 MiB

    def _whole(self, name: str, count: int) -> npt.NDArray[np.int64]:
        dataset = self._dataset(name)
        # Check before allocating: the header of a data set of any shape takes only a few bytes of the file.
        if dataset.shape != (count,):
            raise damaged(f"the data set {name!r} is {dataset.shape}, not ({count},)", self._path)
        values = np.empty(count, dtype=np.int64)
        try:
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
        except H5_ERRORS as error:
            raise damaged(f"the data set {name!r} cannot be read ({error})", self._path) from error
        return values

    def _payload(self, number: int) -> bytes:
        start, end = self._offsets[number], self._offsets[number + 1]
        if not 0 <= start <= end <= self._offsets[-1]:
            raise damaged(f"the offsets of sample {number} are wrong", self._path)
        payload = np.empty(end - start, dtype=np.uint8)
        self._space.select_hyperslab((start,), (end - start,))
        try:
            self._data.read(h5py.h5s.create_simple((end - start,)), self._space, payload, self._kind)
        except (OSError, RuntimeError) as error:
            raise damaged(f"HDF5 cannot read sample {number} ({error})", self._path) from error
        return payload.tobytes()


def _open_file(path: Path) -> h5py.h5f.FileID:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_sieve_buf_size(SIEVE_BYTES)
    access.set_file_locking(False, True)  # a store is never written again, and read-only disks have no locks
    if not path.is_file():
        raise damaged("the file is missing", path)
    try:
        return h5py.h5f.open(bytes(path), h5py.h5f.ACC_RDONLY, access)
    except OSError as error:
        raise CorruptStoreError(f"HDF5 cannot open the file ({error})", where=path) from error
