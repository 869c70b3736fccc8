"""The format: sorted tables of records, their writer, and readers by get and by sorted windows."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import plyvel

from storebench.arrays import Indices
from storebench.codecs import Payload
from storebench.errors import DiskFullError
from storebench.formats.base import Fetched, Format, FormatInfo, ReaderInfo, Writer
from storebench.formats.common import damaged, sync_folder, write_error, write_errors
from storebench.formats.keyvalue import LABEL_KEY, KeyValueReader, StoredValue, make_key, pack_labels
from storebench.formats.leveldb.snapshot import Snapshot, no_room
from storebench.formats.options import Options, size
from storebench.formats.windows import Batch
from storebench.manifest import Manifest, StoreSpec

BLOCK_BYTES = 64 << 10  # as Caffe; with 4 and 16 KiB, rates on 3 KiB records were within 10%

WRITE_BUFFER_BYTES = 64 << 20  # twice this is in memory while a table is being written

TABLE_BYTES = 64 << 20  # so few tables that LevelDB maps them all (it maps 1,000)

OPEN_FILES = 1000


class LevelDbWriter(Writer):
    """Put records in key order, uncompressed: pixels do not need snappy, and PNG is compressed."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._labels: list[int] = []
        self._db = self._open(create=True)

    def append(self, payload: Payload, label: int) -> None:
        """Put one record."""
        with write_errors(self.folder, plyvel.Error):
            self._db.put(make_key(len(self._labels)), bytes(payload))
        self._labels.append(label)

    def close(self) -> None:
        """Put the labels and leave only finished tables, without a log that readers would have to replay."""
        with write_errors(self.folder, plyvel.Error):
            self._db.put(LABEL_KEY, pack_labels(self._labels))
            self._db.compact_range()
            self._db.close()
            # Reopening drops the log and the tables that compaction has replaced.
            self._db = self._open(create=False)
            self._db.close()
        sync_folder(self.folder)

    def abort(self) -> None:
        """Release the lock."""
        self._db.close()

    def _open(self, *, create: bool) -> Any:
        with write_errors(self.folder, plyvel.Error):
            return plyvel.DB(
                os.fsencode(self.folder),
                create_if_missing=create,
                error_if_exists=create,
                compression=None,
                block_size=BLOCK_BYTES,
                write_buffer_size=WRITE_BUFFER_BYTES,
                max_file_size=TABLE_BYTES,
                max_open_files=OPEN_FILES,
            )


class LevelDbGetReader(KeyValueReader):
    """One ``get`` per sample in a private snapshot of the store."""

    library_errors = (plyvel.Error,)

    def _open(self) -> Callable[[bytes], StoredValue | None]:
        self._db: Any = None
        self._snapshot = Snapshot("leveldb", self.store, linked=self._is_table)
        try:
            self._db = self._connect()
        except BaseException:
            self._snapshot.remove()
            raise
        get: Callable[[bytes], StoredValue | None] = self._db.get
        return get

    def _connect(self) -> Any:
        folder = self._snapshot.folder
        try:
            return plyvel.DB(
                os.fsencode(folder),
                create_if_missing=False,
                compression=None,
                max_file_size=TABLE_BYTES,
                max_open_files=OPEN_FILES,
            )
        except plyvel.Error as error:
            failed = write_error(error, folder.parent)  # LevelDB writes a log and a manifest to open anything
            if isinstance(failed, DiskFullError):
                raise no_room(failed) from error
            raise damaged(f"LevelDB cannot open it ({error})", self.store) from error

    def _read_labels(self) -> npt.NDArray[np.int64]:
        """Read the labels, then reopen the database: pages that an open mapping has touched cannot be evicted."""
        labels = super()._read_labels()
        self._db.close()
        self._db = self._connect()
        self._get = self._db.get
        return labels

    @staticmethod
    def _is_table(path: Path) -> bool:
        return path.suffix in (".ldb", ".sst")

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._snapshot.remove()

    def notes(self) -> dict[str, str]:
        """Return a note on how the snapshot's tables are linked."""
        return {"snapshot": self._snapshot.links}


MOST_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LevelDbSortedOptions(Options):
    """Options of ``leveldb:sorted``."""

    window_bytes: int = size(
        name="window_mib",
        default=32,
        least=1,
        most=MOST_MIB,
        unit=1 << 20,
        meaning="how many MiB of samples are loaded together; they are held in memory",
    )


class LevelDbSortedReader(LevelDbGetReader):
    """Load the next window of the plan in key order, so that a block is looked up once for all its samples."""

    options_type = LevelDbSortedOptions
    options: LevelDbSortedOptions

    def __init__(self, store: Path, manifest: Manifest, options: LevelDbSortedOptions) -> None:
        self._iterator: Any = None
        self._held: dict[int, bytes] = {}
        self._coming: Iterator[Indices] = iter(())
        self._windows = 0
        super().__init__(store, manifest, options)

    @classmethod
    def ahead_bytes(cls, options: Options, manifest: Manifest) -> int:  # noqa: ARG003 - the window does not depend on the store
        """Return the window."""
        assert isinstance(options, LevelDbSortedOptions)
        return options.window_bytes

    def _fetch(self, indices: Indices) -> list[bytes]:
        numbers = self._checked(indices)
        missing = [sample for sample in numbers if sample not in self._held]
        if missing:
            self._load_window(indices, numbers)
        return [self._held[sample] for sample in numbers]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        payloads = self._fetch(indices)
        batch = out.reshape(-1).data
        try:
            for row, payload in zip(self._row_slices(len(payloads)), payloads, strict=False):
                batch[row] = payload
        except ValueError as error:
            raise self._explain(indices.tolist(), error) from error
        return Fetched(len(batch))

    def _plan(self, batches: Sequence[Indices]) -> None:
        self._held.clear()
        self._coming = iter(batches)

    def notes(self) -> dict[str, str]:
        """Add the number of windows that were loaded."""
        return {
            **super().notes(),
            "windows": f"{self._windows} of up to {self.options.window_bytes >> 20} MiB",
        }

    def _read_labels(self) -> npt.NDArray[np.int64]:
        labels = super()._read_labels()
        self._iterator = self._db.raw_iterator(fill_cache=False)
        return labels

    def _close(self) -> None:
        self._held.clear()
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None
        super()._close()

    def _load_window(self, indices: Indices, numbers: list[int]) -> None:
        """Load the requested batch, and the batches that follow it in the plan as far as the window reaches."""
        mean = max(1, self.manifest.payload_bytes // max(1, self.manifest.count))
        wanted = set(numbers)
        planned = next(self._coming, None)
        # A call that departs from the plan ends it, because the next calls are unknown.
        if planned is None or not np.array_equal(planned, indices):
            self._coming = iter(())
        while len(wanted) * mean < self.options.window_bytes:
            batch = next(self._coming, None)
            if batch is None:
                break
            wanted.update(self._checked(batch))
        self._held.clear()
        self._windows += 1
        try:
            self._walk(sorted(wanted))
        except plyvel.Error as error:
            raise damaged(f"LevelDB cannot read it ({error})", self.store) from error

    def _walk(self, numbers: list[int]) -> None:
        iterator, last = self._iterator, -2
        for sample in numbers:
            key = make_key(sample)
            if sample == last + 1:
                iterator.next()
            else:
                iterator.seek(key)
            if not iterator.valid() or iterator.key() != key:
                raise damaged(f"sample {sample} is missing", self.store)
            self._held[sample] = iterator.value()
            last = sample


_SNAPSHOT = "each reader opens a private snapshot: hard links to the tables, copies of the rest"
"""LevelDB lets one process at a time open a database."""


class LevelDbFormat(Format):
    """Sorted tables, written once and never changed."""

    info = FormatInfo(
        name="leveldb",
        summary="LevelDB tables without compression, one %08d record per image",
        default_codec="raw",
        default_reader="get",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        """Return the readers: one ``get`` per sample, and sorted windows."""
        return {
            "get": ReaderInfo(
                reader=LevelDbGetReader,
                summary="plyvel's get, one call per sample",
                note=_SNAPSHOT,
            ),
            "sorted": ReaderInfo(
                reader=LevelDbSortedReader,
                summary="windows of the order, by key, one iterator",
                note=_SNAPSHOT,
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        """Return the writer of a LevelDB."""
        return LevelDbWriter(folder, spec)
