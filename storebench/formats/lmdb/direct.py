"""LMDB without the library: offsets from the page index, explicit reads of cold data, one gather of resident data."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from storebench.errors import CorruptStoreError
from storebench.formats.common import checked_labels, damaged
from storebench.formats.keyvalue import LABEL_KEY
from storebench.formats.lmdb.index import PageIndex, kept_indexes, open_index
from storebench.formats.lmdb.ladder import LmdbDirectOptions
from storebench.formats.lmdb.pages import DATA_FILE, mapped_transactions, transactions
from storebench.formats.lmdb.walk import TreeWalk
from storebench.formats.reads.extents import ExtentReader, locator
from storebench.manifest import Manifest


class LmdbDirectReader(ExtentReader):
    """Read a plain ``data.mdb`` at the speed of the machine. The file may not be written to meanwhile."""

    options_type = LmdbDirectOptions
    options: LmdbDirectOptions

    def __init__(self, store: Path, manifest: Manifest, options: LmdbDirectOptions) -> None:
        super().__init__(store, manifest, options)
        self._path = store / DATA_FILE
        self._walk: TreeWalk | None = None
        try:
            self._open(open_index(store))
        except BaseException:
            self.close()
            raise

    @classmethod
    def index_files(cls, store: Path) -> list[Path]:
        """Return the page index, which is kept beside the store or in the user's cache folder."""
        return kept_indexes(store)

    def notes(self) -> dict[str, str]:
        """Return the notes on reading, and how samples were located."""
        return {**super().notes(), "positions": "page index" if self._walk is None else "tree walk"}

    def _close(self) -> None:
        # The file cannot be unmapped as long as there is a view of it.
        self._mapped_transactions = np.empty(0, np.uint8)
        super()._close()
        # Only after the look-ahead has stopped, because it walks the tree in its own thread.
        if self._walk is not None:
            self._walk.close()

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
        locate = locator(offsets, lengths)
        if not self.options.index:
            self._walk = TreeWalk(self._path, count, keep_leaf=self.options.keep_leaf)
            locate = self._walk.locate
        self.lengths = lengths
        mean = int(lengths.mean()) if count else 0
        self._page_bytes = index.page_bytes
        self._serve(self._path, locate, mean_bytes=mean, check=self._check)
        self._mapped_transactions = mapped_transactions(self.reads.file.bytes, index.page_bytes)
        self._seen = transactions(self.reads.file.fd, index.page_bytes)
        if index.identity.transaction.to_bytes(8, "little") not in (self._seen[:8], self._seen[8:]):
            raise self._changed()
        self.labels = self._read_labels(int(index.offsets[count]), int(index.lengths[count]))

    def _read_labels(self, offset: int, length: int) -> npt.NDArray[np.int64]:
        if length != 8 * self.manifest.count:
            raise damaged(
                f"{length} bytes of labels where {8 * self.manifest.count} were expected", self._path
            )
        raw = np.empty(length, np.uint8)
        self.reads.file.read_fully(offset, raw)
        return checked_labels(raw.view("<i8").astype(np.int64), self.manifest.count, self._path)

    def _check(self) -> None:
        """Refuse to serve pages that a writer may have reused, because this reader is not in LMDB's reader table."""
        # The length first: touching a mapping beyond the end of its file kills the process.
        if self.reads.file.shrank() or self._transactions() != self._seen:
            raise self._changed()

    def _transactions(self) -> bytes:
        # A call reads a page for 16 bytes. The mapping has them at once, but a page that is mapped cannot be evicted.
        if self.reads.maps_pages:
            return self._mapped_transactions.tobytes()
        return transactions(self.reads.file.fd, self._page_bytes)

    def _changed(self) -> CorruptStoreError:
        return CorruptStoreError(
            "the database was written to while it was read", where=self._path, hint="Open it again."
        )
