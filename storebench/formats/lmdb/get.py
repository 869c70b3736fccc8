"""LMDB through py-lmdb: the writer, and a reader whose get copies each value out of the map."""

import array
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt

from storebench.arrays import Indices
from storebench.codecs import Payload
from storebench.datasets.containers.lmdb import shared_lmdb
from storebench.errors import CorruptDataError, StorebenchError
from storebench.formats.base import Fetched, Writer
from storebench.formats.common import damaged, sync_folder, write_errors
from storebench.formats.keyvalue import LABEL_KEY, KeyValueReader, StoredValue, make_key, pack_labels
from storebench.formats.lmdb.pages import DATA_FILE
from storebench.formats.options import Options, as_text, flag
from storebench.formats.reads.direct_file import SMALL_BYTES
from storebench.formats.windows import Batch, Windows
from storebench.record.manifest import StoreSpec

FIRST_MAP_BYTES = 64 << 20
SPARE_PAGES = 256  # meta, branch and copied pages of one transaction; the estimate must not be too low


class LmdbWriter(Writer):
    """Append records in key order, with a commit every 1,000; the map grows as needed."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._labels = array.array("q")
        with write_errors(self.folder, lmdb.Error):
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
        with write_errors(self.folder, lmdb.Error):
            self._put(make_key(len(self._labels)), payload)
        self._labels.append(label)

    def close(self) -> None:
        with write_errors(self.folder, lmdb.Error):
            self._put(LABEL_KEY, pack_labels(self._labels))
            self._txn.commit()
            self._env.sync(True)
            self._env.close()
        sync_folder(self.folder)

    def abort(self) -> None:
        with contextlib.suppress(lmdb.Error):
            self._txn.abort()
        self._env.close()

    def _put(self, key: bytes, value: Payload) -> None:
        pages = len(value) // self._page + 2  # its own pages, and its share of leaf and branch pages
        # As Caffe's convert_imageset; and a transaction's pages are in memory until it is committed.
        if self._records == 1000 or self._written > 128 << 20 or pages > self._room:
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


@dataclass(frozen=True, kw_only=True)
class LmdbGetOptions(Options):
    """Options of ``lmdb:get``."""

    readahead: bool = flag(default=True, meaning="let the kernel read ahead of page faults")


class LmdbGetReader(KeyValueReader):
    """One ``get`` per sample in one read transaction, copied out of the map before it returns."""

    library_errors = (lmdb.Error,)
    options_type = LmdbGetOptions
    options: LmdbGetOptions

    def _open(self) -> Callable[[bytes], StoredValue | None]:
        self._txn: Any = None
        path = self.store / DATA_FILE
        if not path.is_file():
            raise damaged("the file is missing", path)
        try:
            self._env = shared_lmdb(path, readahead=self.options.readahead)
        except CorruptDataError as error:
            raise damaged(error.what, path) from error
        self._txn = self._env.begin(buffers=True)
        get: Callable[[bytes], StoredValue | None] = self._txn.get
        return get

    def _read_labels(self) -> npt.NDArray[np.int64]:
        """Read the labels, then map the file again: pages that an open mapping has touched cannot be evicted."""
        labels = super()._read_labels()
        self._close()
        self._get = self._open()
        return labels

    def _explain(self, numbers: list[int], error: Exception) -> IndexError | StorebenchError:
        if isinstance(error, lmdb.Error):  # a transaction that failed answers nothing more
            self._close()
            self._get = self._open()
        return super()._explain(numbers, error)

    def _close(self) -> None:
        """Let go of the database, which is unmapped with the last reference to it."""
        if self._txn is not None:
            self._txn.abort()
        for name in ("_get", "_env"):
            self.__dict__.pop(name, None)
        self._txn = None

    @property
    def serves_windows(self) -> bool:
        """Whether a window is worth a call per sample; small images are copied whole in less time."""
        return self.manifest.dataset.image_bytes >= SMALL_BYTES and super().serves_windows

    def _fetch_windows(self, indices: Indices, windows: Windows, out: Batch) -> Fetched:
        """Copy out of the map, where values stay in place until the transaction ends."""
        numbers = indices.tolist()
        try:
            values = map(self._get, map(make_key, numbers))
            # A missing record is None, which has no memory to look at.
            images = [np.frombuffer(memoryview(value), np.uint8) for value in values]  # type: ignore[arg-type]
        except self._loop_errors as error:
            raise self._explain(numbers, error) from error
        if any(image.size != self._image_bytes for image in images):
            raise self._explain(numbers, ValueError("a value has another length"))
        windows.copy_each(images, self.image_shape, out)
        return Fetched(len(numbers) * self._image_bytes)

    def notes(self) -> dict[str, str]:
        return {"readahead": as_text(self.options.readahead)}
