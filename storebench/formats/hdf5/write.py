"""Names and layout of an HDF5 store, and its writer: a contiguous array of pixels, or a blob of payloads."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from storebench.codecs import Payload
from storebench.formats.base import Writer
from storebench.formats.common import sync_folder, write_errors
from storebench.manifest import StoreSpec

DATA_FILE = "data.h5"

BUFFER_BYTES = 4 << 20
"""Bytes written at a time, and the chunk size of the growing blob of payloads."""

METADATA_BYTES = 1 << 20
"""Bytes reserved for everything but the arrays; HDF5 needs less."""

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
"""Errors that h5py raises for a file that is damaged, or that holds other content than it should."""


class Hdf5Writer(Writer):
    """Write ``data`` and ``label``, or ``payload``, ``offset`` and ``label``."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._path = folder / DATA_FILE
        self._labels: list[int] = []
        self._offsets = [0]
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
                self._data = self._create_data()
        except BaseException:
            self.abort()
            raise

    def append(self, payload: Payload, label: int) -> None:
        """Buffer one payload; write some 4 MiB at a time."""
        self._pending.append(bytes(payload))
        self._pending_bytes += len(payload)
        self._labels.append(label)
        self._offsets.append(self._offsets[-1] + len(payload))
        if self._pending_bytes >= BUFFER_BYTES:
            self._flush()

    def close(self) -> None:
        """Write buffered payloads, the labels and the offsets, and sync."""
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
        """Close the file, ignoring errors of HDF5."""
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
            os.posix_fallocate(file.fileno(), 0, data + 16 * info.count + METADATA_BYTES)

    def _create_data(self) -> Any:
        if self._raw:
            shape = (self.spec.dataset.count, *self.spec.dataset.image_shape)
            # Every byte will be written, so HDF5 need not fill the array first.
            return self._file.create_dataset("data", shape, np.uint8, fill_time="never")
        return self._file.create_dataset(
            "payload", (0,), np.uint8, maxshape=(None,), chunks=(BUFFER_BYTES,), fill_time="never"
        )

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
