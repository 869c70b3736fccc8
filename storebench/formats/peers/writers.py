"""Writers that give samples to a library one at a time, in blocks, or end to end in one file."""

import contextlib
from abc import abstractmethod
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from storebench.codecs import Payload
from storebench.formats.base import Writer
from storebench.formats.common import save_array, sync_folder, write_errors
from storebench.formats.peers.rows import ERRORS, LABELS_FILE
from storebench.record.manifest import StoreSpec


class LibraryWriter(Writer):
    """Give each sample to a library, and report its errors as ours."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = ERRORS
    labels_beside: ClassVar[bool] = False  # Whether the labels are also written to `LABELS_FILE`.
    _writer: Any  # of the library

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self.labels: list[int] = []
        with self._failures():
            self._start()

    def append(self, payload: Payload, label: int) -> None:
        with self._failures():
            self._put(bytes(payload), label)
        self.labels.append(label)

    def close(self) -> None:
        try:
            with self._failures():
                self._finish()
                if self.labels_beside:
                    save_array(self.folder / LABELS_FILE, np.asarray(self.labels, np.int64))
        except BaseException:
            self.abort()
            raise
        sync_folder(self.folder)

    def abort(self) -> None:
        with contextlib.suppress(*self.library_errors):
            self._release()

    @abstractmethod
    def _start(self) -> None:
        """Open the library's writer."""

    @abstractmethod
    def _put(self, payload: bytes, label: int) -> None:
        """Write the sample ``len(self.labels)``."""

    def _finish(self) -> None:
        """Write what is left, and close the library's writer."""
        self._release()

    def _release(self) -> None:
        """Close the library's writer once: some keep their files open where closing fails."""
        writer = self.__dict__.pop("_writer", None)
        if writer is not None:
            writer.close()

    def _failures(self) -> contextlib.AbstractContextManager[None]:
        return write_errors(self.folder, *self.library_errors)


class BlocksWriter(LibraryWriter):
    """Collect samples into blocks, and give each block to the library in one call."""

    block_rows: ClassVar[int] = 1000

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        self.written = 0  # samples of finished blocks
        self._payloads: list[bytes] = []
        self._labels: list[int] = []
        self._bytes = 0
        super().__init__(folder, spec)

    @abstractmethod
    def _write(self, payloads: list[bytes], labels: list[int]) -> None:
        """Write the samples ``self.written`` and following."""

    def _put(self, payload: bytes, label: int) -> None:
        self._payloads.append(payload)
        self._labels.append(label)
        self._bytes += len(payload)
        if len(self._payloads) >= self.block_rows or self._bytes >= 16 << 20:
            self._flush()

    def _finish(self) -> None:
        self._flush()
        super()._finish()

    def _flush(self) -> None:
        if self._payloads:
            self._write(self._payloads, self._labels)
            self.written += len(self._payloads)
            self._payloads, self._labels, self._bytes = [], [], 0


class PackedWriter(LibraryWriter):
    """Write payloads end to end into one file."""

    file_name: ClassVar[str]

    def _start(self) -> None:
        raw = self.spec.codec == "raw"
        self.shape = (self.spec.dataset.count, *self.spec.dataset.image_shape) if raw else None
        self.offsets = [0]
        self.file: IO[bytes] = (self.folder / self.file_name).open("xb")

    def _put(self, payload: bytes, label: int) -> None:  # noqa: ARG002 - labels are collected
        self.file.write(payload)
        self.offsets.append(self.offsets[-1] + len(payload))

    def _release(self) -> None:
        self.file.close()
