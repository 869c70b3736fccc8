"""HDF5: one file; a contiguous array of pixels, or a blob of payloads with their offsets."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from storebench.codecs import Payload
from storebench.errors import CorruptStoreError
from storebench.formats.base import (
    Batch,
    Format,
    FormatInfo,
    Indices,
    Reader,
    ReaderInfo,
    Traits,
    Usage,
    Writer,
)
from storebench.formats.support import (
    batch_bytes,
    checked,
    checked_labels,
    damaged,
    sync_folder,
    write_errors,
)
from storebench.manifest import Manifest, StoreSpec

DATA_FILE = "data.h5"
BUFFER_BYTES = 4 << 20
"""Written at a time, and the chunk of the growing blob of payloads."""

METADATA_BYTES = 1 << 20
"""More than HDF5 needs for everything but the arrays."""

H5_ERRORS = (
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
)
"""What h5py raises for a file that is damaged, or that holds something else than it should."""

SIEVE_BYTES = 1
"""HDF5 would read 64 KiB around each small image: amplification without a faster epoch."""


class Hdf5Writer(Writer):
    """Write ``data`` and ``label``, or ``payload``, ``offset`` and ``label``.

    HDF5 never meets a full disk: its room is reserved before it writes. A
    write or close that fails inside HDF5 leaves handles that cannot be closed,
    and crash the process in the end.
    """

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._path = folder / DATA_FILE
        self._labels: list[int] = []
        self._offsets = [0]
        self._raw = spec.codec == "raw"
        self._pending: list[bytes] = []
        self._pending_bytes = self._flushed = 0
        self._reserve()
        with write_errors(self._path, OSError):
            self._file = h5py.File(self._path, "w", libver="v110")
            self._reserve()  # creating the file emptied it
            self._file.attrs["codec"] = spec.codec
            self._file.attrs["class_names"] = list(spec.dataset.class_names)
            self._data = self._create_data()

    def append(self, payload: Payload, label: int) -> None:
        """Buffer one payload; write some 4 MiB at a time."""
        self._pending.append(bytes(payload))
        self._pending_bytes += len(payload)
        self._labels.append(label)
        self._offsets.append(self._offsets[-1] + len(payload))
        if self._pending_bytes >= BUFFER_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is pending, the labels and the offsets; sync."""
        self._flush()
        with write_errors(self._path, OSError, RuntimeError):
            self._file["label"] = np.asarray(self._labels, dtype=np.int64)
            if not self._raw:
                self._file["offset"] = np.asarray(self._offsets, dtype=np.int64)
            self._file.flush()
            size = self._file.id.get_filesize()
            self._file.close()
            if self._path.stat().st_size > size:
                os.truncate(self._path, size)  # what was reserved and not needed
        sync_folder(self.folder)

    def abort(self) -> None:
        """Close the file, whatever HDF5 says to it."""
        with contextlib.suppress(OSError, RuntimeError):
            self._file.close()

    def _reserve(self) -> None:
        """Take the room for what is written next, and for closing."""
        info = self.spec.dataset
        chunks = -(-self._offsets[-1] // BUFFER_BYTES)
        data = info.count * info.image_bytes if self._raw else chunks * BUFFER_BYTES
        with write_errors(self._path, OSError), self._path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, data + 16 * info.count + METADATA_BYTES)

    def _create_data(self) -> Any:
        if self._raw:
            shape = (self.spec.dataset.count, *self.spec.dataset.image_shape)
            # Every byte is written, so none is filled first.
            return self._file.create_dataset("data", shape, np.uint8, fill_time="never")
        return self._file.create_dataset(
            "payload", (0,), np.uint8, maxshape=(None,), chunks=(BUFFER_BYTES,), fill_time="never"
        )

    def _flush(self) -> None:
        block = np.frombuffer(b"".join(self._pending), dtype=np.uint8)
        with write_errors(self._path, OSError, RuntimeError):
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


class Hdf5GetReader(Reader):
    """Read one hyperslab a sample straight into the batch, through h5py's low-level interface.

    ``Dataset.read_direct`` and fancy indexing spend most of their time building
    selections in Python; here both dataspaces are made once, and only the
    hyperslab's start changes.
    """

    def __init__(self, store: Path, manifest: Manifest, options: Mapping[str, str]) -> None:
        super().__init__(store, manifest, options)
        self._path = store / DATA_FILE
        self._file: h5py.h5f.FileID | None = _open_file(self._path)
        try:
            self._open_datasets()
        except H5_ERRORS as error:
            self.close()
            raise damaged(f"HDF5 does not read its data sets ({error})", self._path) from error
        except BaseException:
            self.close()
            raise

    def fetch(self, indices: Indices) -> list[bytes]:
        """Return the payloads of `indices`."""
        numbers = checked(indices, self.manifest.count)
        if self.payload_codec == "raw":
            batch = np.empty((len(numbers), *self.image_shape), dtype=np.uint8)
            self.fetch_into(indices, batch)
            return [image.tobytes() for image in batch]
        return [self._payload(number) for number in numbers]

    def fetch_into(self, indices: Indices, out: Batch) -> int:
        """Read each image into its place of the batch."""
        numbers = checked(indices, self.manifest.count)
        size = len(batch_bytes(out, len(numbers)))
        self._check_open()
        select, read = self._space.select_hyperslab, self._data.read
        memory, kind, one = self._memory, self._kind, self._one
        try:
            for row, number in enumerate(numbers):
                select((number, 0, 0, 0), one)
                read(memory, self._space, out[row], kind)
        except (OSError, RuntimeError) as error:
            raise damaged(f"HDF5 does not read the images ({error})", self._path) from error
        return size

    def close(self) -> None:
        """Close the file and all that hangs on it."""
        if self._file is not None:
            for name in ("_data", "_space", "_memory", "_kind"):
                self.__dict__.pop(name, None)
            self._file.close()
            self._file = None

    def _check_open(self) -> None:
        if self._file is None:
            raise RuntimeError("the reader is closed")

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
        # Without a cache HDF5 reads a part of a chunk where it lies, not the whole 4 MiB.
        access.set_chunk_cache(0, 0, 1.0)
        try:
            return h5py.h5d.open(self._file, name.encode(), access)
        except H5_ERRORS as error:
            raise damaged(f"the data set {name!r} is missing", self._path) from error

    def _whole(self, name: str, count: int) -> npt.NDArray[np.int64]:
        dataset = self._dataset(name)
        # Before it is allocated: a data set of any shape takes a few bytes of the file.
        if dataset.shape != (count,):
            raise damaged(f"the data set {name!r} is {dataset.shape}, not ({count},)", self._path)
        values = np.empty(count, dtype=np.int64)
        try:
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
        except H5_ERRORS as error:
            raise damaged(f"the data set {name!r} does not read ({error})", self._path) from error
        return values

    def _payload(self, number: int) -> bytes:
        self._check_open()
        start, end = self._offsets[number], self._offsets[number + 1]
        if not 0 <= start <= end <= self._offsets[-1]:
            raise damaged(f"the offsets of sample {number} are wrong", self._path)
        payload = np.empty(end - start, dtype=np.uint8)
        self._space.select_hyperslab((start,), (end - start,))
        try:
            self._data.read(h5py.h5s.create_simple((end - start,)), self._space, payload, self._kind)
        except (OSError, RuntimeError) as error:
            raise damaged(f"HDF5 does not read sample {number} ({error})", self._path) from error
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
        raise CorruptStoreError(f"HDF5 does not open the file ({error})", where=path) from error


class Hdf5Format(Format):
    """One file that explains itself."""

    info = FormatInfo(
        name="hdf5",
        summary="one file: data [N,H,W,C] and label; or payload, offset and label",
        default_codec="raw",
        default_reader="get",
        traits=Traits(note="h5py lets one thread of a process in at a time"),
        usage=Usage.EXPERT,
        expert_would="An expert would change nothing: raw pixels are contiguous, without chunks and filters.",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        """Return the library's way in, and the way past it."""
        from storebench.formats.hdf5_direct import Hdf5DirectReader

        direct = Traits(releases_gil=True, note="compressed data still goes through the library")
        return {
            "get": ReaderInfo(
                reader=Hdf5GetReader,
                summary="one hyperslab a sample (h5py, low level)",
                usage=Usage.EXPERT,
                expert_would="An expert would change nothing; a newcomer would index an h5py Dataset, with new "
                "dataspaces for each read, the default sieve buffer and the default chunk cache.",
            ),
            "direct": ReaderInfo(
                reader=Hdf5DirectReader,
                summary="explicit planned reads at the data's offset",
                traits=direct,
                usage=Usage.EXPERT,
                expert_would="An expert would change nothing: the library is left out of the reading of raw pixels.",
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        """Return the writer of ``data.h5``."""
        return Hdf5Writer(folder, spec)
