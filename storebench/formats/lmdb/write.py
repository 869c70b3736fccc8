"""Layout of an LMDB store, and its writer: records in key order, a commit every 1,000."""

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import lmdb

from storebench.codecs import Payload
from storebench.errors import OutputError
from storebench.formats.base import Writer
from storebench.formats.common import sync_folder, write_errors
from storebench.formats.keyvalue import LABEL_KEY, make_key, pack_labels
from storebench.formats.lmdb.pages import DATA_FILE
from storebench.manifest import StoreSpec

FIRST_MAP_BYTES = 64 << 20

COMMIT_RECORDS = 1000  # as Caffe's convert_imageset

COMMIT_BYTES = 128 << 20  # a transaction's pages are in memory until it is committed

SPARE_PAGES = 256  # meta, branch and copied pages of one transaction; the estimate must not be too low

TRIAL_BYTES = 1 << 20


class LmdbWriter(Writer):
    """Append records in key order, with a commit every 1,000; the map grows as needed."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._labels: list[int] = []
        self._page, self._records, self._written = mmap.PAGESIZE, 0, 0
        with self._write_errors():
            self._env = lmdb.open(
                os.fsencode(folder),
                map_size=FIRST_MAP_BYTES,
                lock=False,
                sync=False,
                metasync=False,
                readahead=False,
            )
        self._page = self._env.stat()["psize"]
        self._begin(0)

    def append(self, payload: Payload, label: int) -> None:
        """Put one record."""
        with self._write_errors():
            self._put(make_key(len(self._labels)), payload)
        self._labels.append(label)

    def close(self) -> None:
        """Put the labels, commit, and sync the file."""
        with self._write_errors():
            self._put(LABEL_KEY, pack_labels(self._labels))
            self._txn.commit()
            self._env.sync(True)
            self._env.close()
        sync_folder(self.folder)

    def abort(self) -> None:
        """Drop the transaction and the environment."""
        with contextlib.suppress(lmdb.Error):
            self._txn.abort()
        self._env.close()

    @contextlib.contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            with write_errors(self.folder, lmdb.Error):
                yield
        except OutputError as error:
            if os.strerror(errno.EIO) in str(error):
                self._write_once_more()
            raise

    def _write_once_more(self) -> None:
        """Find the reason: LMDB reports a short write, the first sign of a full disk, as an I/O error."""
        with write_errors(self.folder, OSError), (self.folder / DATA_FILE).open("ab", buffering=0) as file:
            left = self._written + (self._records + SPARE_PAGES) * self._page
            while left > 0:
                left -= file.write(bytes(min(left, TRIAL_BYTES)))
            os.fsync(file.fileno())

    def _put(self, key: bytes, value: Payload) -> None:
        pages = len(value) // self._page + 2  # its own pages, and its share of leaf and branch pages
        if self._records == COMMIT_RECORDS or self._written > COMMIT_BYTES or pages > self._room:
            self._txn.commit()
            self._begin(pages)
        self._txn.put(key, value, append=True, dupdata=False)
        self._records += 1
        self._written += len(value)
        self._room -= pages

    def _begin(self, pages: int) -> None:
        """Start a transaction in a map with ample room for `pages` more."""
        info = self._env.info()
        used = info["last_pgno"] + 1 + SPARE_PAGES
        size = info["map_size"]
        while used + pages > size // self._page:
            size *= 2
        if size != info["map_size"]:
            self._env.set_mapsize(size)
        self._room = size // self._page - used
        self._records = self._written = 0
        self._txn = self._env.begin(write=True)
