"""The format: sorted tables of records, their writer, and their reader by get."""

import array
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.codecs import Payload
from storebench.errors import DiskFullError
from storebench.formats.base import Format, FormatInfo, ReaderInfo, Writer
from storebench.formats.common import damaged, sync_folder, write_error, write_errors
from storebench.formats.keyvalue import LABEL_KEY, KeyValueReader, StoredValue, make_key, pack_labels
from storebench.formats.snapshot import Snapshot
from storebench.record.manifest import StoreSpec

if sys.version_info < (3, 13):
    import plyvel
else:
    import plyvel_next as plyvel

TABLE_BYTES = 64 << 20  # so large that there are few tables, and LevelDB maps them all (it maps 1,000)
OPEN_FILES = 1000


class LevelDbWriter(Writer):
    """Put records in key order, uncompressed: pixels do not need snappy, and PNG is compressed."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._labels = array.array("q")
        self._db = self._open(create=True)

    def append(self, payload: Payload, label: int) -> None:
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
        self._db.close()

    def _open(self, *, create: bool) -> Any:
        with write_errors(self.folder, plyvel.Error):
            return plyvel.DB(
                os.fsencode(self.folder),
                create_if_missing=create,
                error_if_exists=create,
                compression=None,
                block_size=64 << 10,  # as Caffe; with 4 and 16 KiB, rates on 3 KiB records were within 10%
                write_buffer_size=64 << 20,  # twice this is in memory while a table is being written
                max_file_size=TABLE_BYTES,
                max_open_files=OPEN_FILES,
            )


class LevelDbGetReader(KeyValueReader):
    """One ``get`` per sample in a private snapshot of the store."""

    library_errors = (plyvel.Error,)

    def _open(self) -> Callable[[bytes], StoredValue | None]:
        self._db: Any = None
        self._snapshot = Snapshot("leveldb", self.store, linked=lambda path: path.suffix in (".ldb", ".sst"))
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
                raise failed from error
            raise damaged(f"LevelDB cannot open it ({error})", self.store) from error

    def _read_labels(self) -> npt.NDArray[np.int64]:
        """Read the labels, then reopen the database: pages that an open mapping has touched cannot be evicted."""
        labels = super()._read_labels()
        self._db.close()
        self._db = self._connect()
        self._get = self._db.get
        return labels

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._snapshot.remove()

    def notes(self) -> dict[str, str]:
        return {"snapshot": self._snapshot.links}


class LevelDbFormat(Format):
    """Sorted tables, written once and never changed."""

    info = FormatInfo(
        name="leveldb",
        summary="LevelDB tables without compression, one %08d record per image",
        default_codec="raw",
        default_reader="get",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "get": ReaderInfo(
                reader=LevelDbGetReader,
                summary="plyvel's get, one call per sample",
                # LevelDB lets one process at a time open a database.
                note="each reader opens a private snapshot: hard links to the tables, copies of the rest",
            )
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return LevelDbWriter(folder, spec)
