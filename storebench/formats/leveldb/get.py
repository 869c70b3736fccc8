"""Read LevelDB through plyvel's get, in a private snapshot: the library admits one process at a time."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import plyvel

from storebench.errors import DiskFullError
from storebench.formats.common import damaged, write_error
from storebench.formats.keyvalue import KeyValueReader, StoredValue
from storebench.formats.leveldb.snapshot import Snapshot, no_room
from storebench.formats.leveldb.write import OPEN_FILES, TABLE_BYTES


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
