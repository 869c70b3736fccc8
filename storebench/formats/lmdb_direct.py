"""LMDB without the library: offsets from the page index, explicit reads of what is cold, one gather of what is not."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from storebench.errors import CorruptStoreError
from storebench.formats.extent_reader import ExtentReader, locator
from storebench.formats.keyvalue import LABEL_KEY
from storebench.formats.lmdb_index import DATA_FILE, PageIndex, open_index
from storebench.formats.lmdb_pages import transactions
from storebench.formats.planned_reads import OPTIONS_HELP
from storebench.formats.support import checked_labels, damaged
from storebench.manifest import Manifest


class LmdbDirectReader(ExtentReader):
    """Read a plain ``data.mdb`` at the speed of the machine. The file may not be written meanwhile."""

    options_help: ClassVar[Mapping[str, str]] = OPTIONS_HELP

    def __init__(self, store: Path, manifest: Manifest, options: Mapping[str, str]) -> None:
        super().__init__(store, manifest, options)
        self._path = store / DATA_FILE
        try:
            self._open(open_index(store))
        except BaseException:
            self.close()
            raise

    def _open(self, index: PageIndex) -> None:
        count = self.manifest.count
        if index.numbered != count or len(index) != count + 1:
            raise damaged(
                f"{index.numbered} numbered records of {len(index)} where {count} and "
                f"{LABEL_KEY.decode()!r} were expected",
                self._path,
            )
        offsets, lengths = index.offsets[:count], index.lengths[:count]
        self._check_lengths(lengths, self._path)
        mean = int(lengths.mean()) if count else 0
        self._page_bytes = index.page_bytes
        self._serve(self._path, locator(offsets, lengths), mean_bytes=mean, check=self._check)
        self._seen = transactions(self.reads.file.fd, index.page_bytes)
        if index.identity.transaction.to_bytes(8, "little") not in (self._seen[:8], self._seen[8:]):
            raise self._changed()
        self.labels = self._read_labels(int(index.offsets[count]), int(index.lengths[count]))

    def _read_labels(self, offset: int, length: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        raw = np.empty(length, np.uint8)
        self.reads.file.read_fully(offset, raw)
        if length % 8:
            raise damaged(f"{length} bytes of labels", self._path)
        return checked_labels(raw.view("<i8").astype(np.int64), self.manifest.count, self._path)

    def _check(self) -> None:
        """Refuse to serve from pages that a writer may have reused: this reader is in no reader table."""
        file = self.reads.file
        if transactions(file.fd, self._page_bytes) != self._seen or os.fstat(file.fd).st_size < file.size:
            raise self._changed()

    def _changed(self) -> CorruptStoreError:
        return CorruptStoreError(
            "the database was written to while it was read", where=self._path, hint="Open it again."
        )
