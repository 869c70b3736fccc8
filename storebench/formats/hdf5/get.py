"""HDF5 through h5py: the layout of a store, its writer, and a reader of one hyperslab per sample."""

import array
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from storebench.arrays import Indices
from storebench.codecs import Payload
from storebench.errors import CorruptStoreError
from storebench.formats.base import Fetched, Reader, Writer
from storebench.formats.common import damaged, sync_folder, write_errors
from storebench.formats.options import Options
from storebench.formats.windows import Batch
from storebench.record.manifest import Manifest, StoreSpec

DATA_FILE = "data.h5"

# Bytes written at a time, and the chunk size of the growing blob of payloads.
BUFFER_BYTES = 4 << 20

# Errors that h5py raises for a file that is damaged, or that holds other content than it should.
H5_ERRORS = (
    *(OSError, RuntimeError, KeyError, ValueError, TypeError),
    *(AttributeError, OverflowError, MemoryError),
)


class Hdf5Writer(Writer):
    """Write ``data`` and ``label``, or ``payload``, ``offset`` and ``label``."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._path = folder / DATA_FILE
        self._labels, self._offsets = array.array("q"), array.array("q", [0])
        self._raw = spec.codec == "raw"
        self._pending: list[bytes] = []
        self._pending_bytes = self._flushed = 0
        self._reserve()
        self._file: Any = None
        self._data: Any = None
        try:
            with _destructors_silent(), write_errors(self._path, OSError, RuntimeError):
                self._file = h5py.File(self._path, "w", libver="v110")
                self._reserve()  # creating the file has truncated it
                self._file.attrs["codec"] = spec.codec
                self._file.attrs["class_names"] = list(spec.dataset.class_names)
                if self._raw:
                    shape = (spec.dataset.count, *spec.dataset.image_shape)
                    kind: dict[str, Any] = {"name": "data", "shape": shape}
                else:
                    kind = {"name": "payload", "shape": (0,), "maxshape": (None,), "chunks": (BUFFER_BYTES,)}
                # Every byte will be written, so HDF5 need not fill the array first.
                self._data = self._file.create_dataset(**kind, dtype=np.uint8, fill_time="never")
        except BaseException:
            self.abort()
            raise

    def append(self, payload: Payload, label: int) -> None:
        self._pending.append(bytes(payload))
        self._pending_bytes += len(payload)
        self._labels.append(label)
        self._offsets.append(self._offsets[-1] + len(payload))
        if self._pending_bytes >= BUFFER_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        with _destructors_silent(), write_errors(self._path, OSError, RuntimeError):
            self._file["label"] = np.asarray(self._labels, dtype=np.int64)
            if not self._raw:
                self._file["offset"] = np.asarray(self._offsets, dtype=np.int64)
            self._file.flush()
            size = self._file.id.get_filesize()
            self._file.close()
            if self._path.stat().st_size > size:
                os.truncate(self._path, size)  # give back the unused part of the reservation
        sync_folder(self.folder)

    def abort(self) -> None:
        with _destructors_silent():
            with contextlib.suppress(OSError, RuntimeError, AttributeError):
                self._file.close()
            self._file = self._data = None

    def _reserve(self) -> None:
        """Reserve disk space for the next write, and for closing."""
        info = self.spec.dataset
        chunks = -(-self._offsets[-1] // BUFFER_BYTES)
        data = info.count * info.image_bytes if self._raw else chunks * BUFFER_BYTES
        with write_errors(self._path, OSError), self._path.open("ab") as file:
            # 1 MiB is more than HDF5 needs for everything but the arrays.
            os.posix_fallocate(file.fileno(), 0, data + 16 * info.count + (1 << 20))

    def _flush(self) -> None:
        block = np.frombuffer(b"".join(self._pending), dtype=np.uint8)
        with _destructors_silent(), write_errors(self._path, OSError, RuntimeError):
            if self._raw:
                rows = block.reshape(-1, *self.spec.dataset.image_shape)
                self._data[self._flushed : self._flushed + len(rows)] = rows
                self._flushed += len(rows)
            else:
                self._reserve()
                self._data.resize((self._offsets[-1],))
                self._data[self._flushed :] = block
                self._flushed += len(block)
        self._pending.clear()
        self._pending_bytes = 0


@contextlib.contextmanager
def _destructors_silent() -> Iterator[None]:
    """Suppress h5py's tracebacks from destructors, which report a handle that HDF5 cannot close a second time."""
    printing, dropping = sys.excepthook, sys.unraisablehook
    sys.excepthook = lambda *_: None
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        sys.excepthook, sys.unraisablehook = printing, dropping


def read_whole(dataset: h5py.h5d.DatasetID, name: str, count: int, path: Path) -> npt.NDArray[np.int64]:
    """Return a whole data set of integers, int64 [count]."""
    # Check before allocating: the header of a data set of any shape takes only a few bytes of the file.
    if dataset.shape != (count,):
        raise damaged(f"the data set {name!r} is {dataset.shape}, not ({count},)", path)
    values = np.empty(count, dtype=np.int64)
    try:
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    except H5_ERRORS as error:
        raise damaged(f"the data set {name!r} cannot be read ({error})", path) from error
    return values


class Hdf5GetReader(Reader):
    """Read one hyperslab per sample straight into the batch, through h5py's low-level interface."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self._path = store / DATA_FILE
        if not self._path.is_file():
            raise damaged("the file is missing", self._path)
        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_sieve_buf_size(1)  # it would read 64 KiB around each small image, without a faster epoch
        # A store is never written again, and read-only disks have no locks.
        access.set_file_locking(False, True)
        try:
            self._file = h5py.h5f.open(bytes(self._path), h5py.h5f.ACC_RDONLY, access)
        except OSError as error:
            raise CorruptStoreError(f"HDF5 cannot open the file ({error})", where=self._path) from error
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
        self.labels = read_whole(self._dataset("label"), "label", count, self._path)
        shape: tuple[int, ...] = (count, *self.image_shape)
        if self.payload_codec != "raw":
            offsets = read_whole(self._dataset("offset"), "offset", count + 1, self._path)
            self._offsets = array.array("q", offsets.tobytes())
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
        # Without a cache, HDF5 reads only the part of a chunk that it needs, not the whole 4 MiB.
        access.set_chunk_cache(0, 0, 1.0)
        try:
            return h5py.h5d.open(self._file, name.encode(), access)
        except H5_ERRORS as error:
            raise damaged(f"the data set {name!r} is missing", self._path) from error

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
