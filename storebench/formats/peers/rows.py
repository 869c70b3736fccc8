"""What these formats share: their descriptions, a reader by a library's batch call, and the errors of libraries."""

import contextlib
import ctypes
import mmap
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil

from storebench.arrays import Indices, Integers
from storebench.errors import StorebenchError
from storebench.formats.base import Fetched, Format, Reader, ReaderInfo, Writer
from storebench.formats.common import damaged, load_labels, wrong_length
from storebench.formats.options import Options
from storebench.formats.windows import Batch
from storebench.places.copying import require_copy, store_key
from storebench.places.objects import PlaceFailedError
from storebench.record.manifest import Manifest, StoreSpec
from storebench.system.libc import LIBC

# Names of the columns, as Hugging Face's image folders have them.
IMAGE, LABEL = "image", "label"

# Labels beside the data, where reading them from the data would read everything.
LABELS_FILE = "labels.npy"

# Errors that libraries raise for a file that is damaged.
ERRORS: tuple[type[Exception], ...] = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(MemoryError, OSError, RuntimeError, TypeError, ValueError),
)

Row = bytes | memoryview


class PeerFormat(Format):
    """A format that consists of a writer and a reader."""

    writes: ClassVar[type[Writer]]
    reads: ClassVar[ReaderInfo]

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {self.info.default_reader: self.reads}

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return self.writes(folder, spec)


class RowsReader(Reader):
    """Read each batch through the library's own call for several samples."""

    library: ClassVar[str]
    library_errors: ClassVar[tuple[type[Exception], ...]] = ERRORS
    releases_late: ClassVar[bool] = False
    """Whether threads of the library let go of files a moment after closing."""

    def __init__(self, store: Path, manifest: Manifest, options: Options, url: str = "") -> None:
        super().__init__(store, manifest, options)
        self.url = url  # of the server that has a copy; "" to read the folder
        self.opened = contextlib.ExitStack()
        if not store.is_dir():
            raise damaged("the store is missing", store)
        try:
            with self._damage("cannot open it"):
                if url:
                    require_copy(store, url)
                self.labels = np.array(
                    self._open(), np.int64
                )  # a copy: views of a mapped file would stay in use
                self._require_all(self.labels, range(manifest.count))
            forget_mapped(store)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _open(self) -> Any:
        """Open the store and return its labels, perhaps mapped; what has to be released is pushed on `opened`."""

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
        batch = out.reshape(-1).data
        with self._damage("cannot read samples"):
            rows = self._rows(numbers)
            self._require_all(rows, numbers)
            for number, at, row in zip(numbers, range(0, out.nbytes, size), rows, strict=True):
                if len(row) != size:
                    raise wrong_length(number, len(row), size, self.store)
                batch[at : at + size] = row
        return Fetched(out.nbytes)

    def there(self, name: str) -> str:
        """Return the address of a file of the store at the server."""
        return f"{self.url}/{store_key(self.store)}/{name}"

    def _labels_beside(self) -> Integers:
        return load_labels(self.store / LABELS_FILE, self.manifest.count)

    def _require_all(self, rows: Sized, numbers: Sized) -> None:
        if len(rows) != len(numbers):
            raise damaged(f"{len(rows)} samples where {len(numbers)} were expected", self.store)

    @contextlib.contextmanager
    def _damage(self, what: str) -> Iterator[None]:
        try:
            yield
        except StorebenchError:
            raise
        except Exception as error:
            if not (self.url or isinstance(error, self.library_errors)):  # clients have errors of their own
                raise
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            failure = f"{self.library} {what} ({reason})"
            if self.url:
                raise PlaceFailedError(failure, where=self.there("")) from error
            raise damaged(failure, self.store) from error

    def _close(self) -> None:
        self.opened.close()
        until, folder = time.monotonic() + 0.2, self.store.resolve()
        while self.releases_late and time.monotonic() < until:
            opened = psutil.Process().open_files()
            if not _mapped(folder) and not any(Path(file.path).is_relative_to(folder) for file in opened):
                break
            time.sleep(0.001)

    def hold(self, name: str) -> None:
        """Drop the attribute `name` on closing: mapped memory is released with the last reference."""
        self.opened.callback(self.__dict__.pop, name, None)


def _mapped(folder: Path) -> list[str]:
    """Return the ranges of addresses at which this process has files of the folder mapped."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    inside = f" {folder.resolve()}/"
    return [line.split()[0] for line in maps.splitlines() if inside in line]


def forget_mapped(folder: Path) -> None:
    """Drop the mapped pages that opening has touched, such as those of labels: pages in use cannot be evicted."""
    for addresses in _mapped(folder):
        start, end = (int(edge, 16) for edge in addresses.split("-"))
        LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def required(path: Path) -> Path:
    """Return the path of a store's file, or raise `CorruptStoreError` if there is none."""
    if not path.is_file():
        raise damaged("the file is missing", path)
    return path
