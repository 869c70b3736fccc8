"""What these formats share: a reader by a library's batch call, a writer in blocks, and their errors."""

import contextlib
import ctypes
from abc import abstractmethod
from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from storebench.arrays import Indices
from storebench.codecs import Payload
from storebench.errors import StorebenchError
from storebench.formats.base import Fetched, Reader, Writer
from storebench.formats.common import damaged, sync_folder, write_errors, wrong_length
from storebench.formats.options import Options
from storebench.formats.windows import Batch
from storebench.manifest import Manifest, StoreSpec

IMAGE, LABEL = "image", "label"
"""Names of the columns, as Hugging Face's image folders have them."""

BLOCK_BYTES = 16 << 20

ERRORS: tuple[type[Exception], ...] = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(MemoryError, OSError, RuntimeError, TypeError, ValueError),
)
"""Errors that libraries raise for a file that is damaged."""

_MADV_DONTNEED = 4  # linux/mman-common.h; a file's pages are read again when they are touched

Row = bytes | memoryview


class RowsReader(Reader):
    """Read each batch through the library's own call for several samples."""

    library: ClassVar[str]
    library_errors: ClassVar[tuple[type[Exception], ...]] = ERRORS

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self.opened = contextlib.ExitStack()
        self._slices: list[slice] = []
        if not store.is_dir():
            raise damaged("the store is missing", store)
        try:
            with self._damage("cannot open it"):
                self.labels = np.asarray(self._open(), np.int64)
                self._require_all(self.labels, range(manifest.count))
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _open(self) -> npt.ArrayLike:
        """Open the store and return its labels; what has to be released is pushed on `opened`."""

    @abstractmethod
    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        """Return the payloads of samples, in that order; views may end with the next call."""

    def _fetch(self, indices: Indices) -> list[bytes]:
        numbers = self._checked(indices)
        with self._damage("cannot read samples"):
            rows = self._rows(numbers)
            self._require_all(rows, numbers)
            return list(map(bytes, rows))

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        numbers, size = self._checked(indices), self.manifest.dataset.image_bytes
        while len(self._slices) < len(numbers):
            at = len(self._slices) * size
            self._slices.append(slice(at, at + size))
        batch = out.reshape(-1).data
        with self._damage("cannot read samples"):
            rows = self._rows(numbers)
            self._require_all(rows, numbers)
            for number, place, row in zip(numbers, self._slices, rows, strict=False):
                if len(row) != size:
                    raise wrong_length(number, len(row), size, self.store)
                batch[place] = row
        return Fetched(out.nbytes)

    def _require_all(self, rows: Sized, numbers: Sized) -> None:
        if len(rows) != len(numbers):
            raise damaged(f"{len(rows)} samples where {len(numbers)} were expected", self.store)

    @contextlib.contextmanager
    def _damage(self, what: str) -> Iterator[None]:
        try:
            yield
        except StorebenchError:
            raise
        except self.library_errors as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise damaged(f"{self.library} {what} ({reason})", self.store) from error

    def _close(self) -> None:
        self.opened.close()

    def hold(self, name: str) -> None:
        """Drop the attribute `name` on closing: mapped memory is released with the last reference."""
        self.opened.callback(self.__dict__.pop, name, None)


class BlocksWriter(Writer):
    """Collect samples into blocks, and give each block to the library in one call."""

    block_rows: ClassVar[int] = 1000
    library_errors: ClassVar[tuple[type[Exception], ...]] = ERRORS

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self.written = 0  # samples of finished blocks
        self._payloads: list[bytes] = []
        self._labels: list[int] = []
        self._bytes = 0
        with self._failures():
            self._start()

    def append(self, payload: Payload, label: int) -> None:
        self._payloads.append(bytes(payload))
        self._labels.append(label)
        self._bytes += len(payload)
        if len(self._labels) >= self.block_rows or self._bytes >= BLOCK_BYTES:
            self._flush()

    def close(self) -> None:
        try:
            self._flush()
            with self._failures():
                self._finish()
        except BaseException:
            self.abort()
            raise
        sync_folder(self.folder)

    def abort(self) -> None:
        with contextlib.suppress(*self.library_errors):
            self._finish()

    @abstractmethod
    def _start(self) -> None:
        """Open the library's writer."""

    @abstractmethod
    def _write(self, payloads: list[bytes], labels: list[int]) -> None:
        """Write the samples ``self.written`` and following."""

    @abstractmethod
    def _finish(self) -> None:
        """Close the library's writer."""

    def _flush(self) -> None:
        if self._labels:
            with self._failures():
                self._write(self._payloads, self._labels)
            self.written += len(self._labels)
            self._payloads, self._labels, self._bytes = [], [], 0

    def _failures(self) -> contextlib.AbstractContextManager[None]:
        return write_errors(self.folder, *self.library_errors)


def forget_mapped(path: Path) -> None:
    """Drop the pages of a mapped file that this process has touched: a page that is in use cannot be evicted."""
    libc = ctypes.CDLL(None, use_errno=True)
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if line.endswith(str(path)):
            start, end = (int(edge, 16) for edge in line.split()[0].split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)


def required(path: Path) -> Path:
    """Return the path of a store's file, or raise `CorruptStoreError` if there is none."""
    if not path.is_file():
        raise damaged("the file is missing", path)
    return path


def whole_offsets(offsets: npt.NDArray[np.int64], count: int, end: int, path: Path) -> list[int]:
    """Return the bounds of `count` payloads that fill `end` bytes; raise `CorruptStoreError` if they do not."""
    if offsets.shape != (count + 1,) or offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
        raise damaged("the payloads and their offsets do not belong together", path)
    bounds: list[int] = offsets.tolist()
    return bounds
