"""Layout of a LevelDB store, and its writer: records in key order, uncompressed."""

import os
from pathlib import Path
from typing import Any

import plyvel

from storebench.codecs import Payload
from storebench.formats.base import Writer
from storebench.formats.common import sync_folder, write_errors
from storebench.formats.keyvalue import LABEL_KEY, make_key, pack_labels
from storebench.manifest import StoreSpec

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
