"""LMDB: one B+-tree in one file, read through its memory map."""

import contextlib
import errno
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import lmdb
import numpy as np
import numpy.typing as npt

from storebench.codecs import Payload
from storebench.errors import OutputError, UsageError
from storebench.formats.base import Format, FormatInfo, ReaderInfo, Traits, Usage, Writer
from storebench.formats.keyvalue import LABEL_KEY, KeyValueReader, Value, make_key, pack_labels
from storebench.formats.support import damaged, sync_folder, write_errors
from storebench.manifest import StoreSpec

DATA_FILE = "data.mdb"
FIRST_MAP_BYTES = 64 << 20
COMMIT_RECORDS = 1000  # as Caffe's convert_imageset
COMMIT_BYTES = 128 << 20  # a transaction's pages are in memory until it is committed
SPARE_PAGES = 256  # meta, branch and copied pages of one transaction; the estimate must not be short
TRIAL_BYTES = 1 << 20


class LmdbWriter(Writer):
    """Append records in key order, a commit every 1,000; the map grows as it needs to."""

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
        """Find out why: LMDB calls a short write, as a disk that fills up shows first, an I/O error.

        As much is written as the transaction would have been: the rest of a short write may leave room for a page.
        """
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
        """Start a transaction in a map that has room for `pages` more and then some."""
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


@dataclass(kw_only=True)
class _Shared:
    """An open environment, who opened it, and how many of its readers use it."""

    env: Any
    readahead: bool
    process: int
    users: int = 0


_open_envs: dict[tuple[int, int], _Shared] = {}
"""By device and inode, because py-lmdb refuses to open one file twice in one process."""


def _acquire(store: Path, readahead: bool) -> _Shared:
    _close_inherited()
    shared = _open_envs.get(_identity(store))
    if shared is None:
        shared = _Shared(env=_open_env(store, readahead), readahead=readahead, process=os.getpid())
        _open_envs[_identity(store)] = shared
    elif shared.readahead != readahead:
        raise UsageError(
            "the store is already open in this process with another readahead",
            where=store,
            hint="Close that reader first: LMDB opens a file once a process.",
        )
    shared.users += 1
    return shared


def _surrender(shared: _Shared) -> None:
    shared.users -= 1
    if shared.users == 0 and shared.process == os.getpid():
        for key in [key for key, value in _open_envs.items() if value is shared]:
            del _open_envs[key]
        shared.env.close()


def _close_inherited() -> None:
    """Close what a parent had open when it forked: py-lmdb would take it for this process's own."""
    for key in [key for key, shared in _open_envs.items() if shared.process != os.getpid()]:
        _open_envs.pop(key).env.close()


def _identity(store: Path) -> tuple[int, int]:
    path = store / DATA_FILE
    if not path.is_file():
        raise damaged("the file is missing", path)
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def _open_env(store: Path, readahead: bool) -> Any:
    path = store / DATA_FILE
    try:
        env = lmdb.open(
            os.fsencode(store), readonly=True, lock=False, create=False, readahead=readahead, max_spare_txns=1
        )
    except lmdb.Error as error:
        raise damaged(f"LMDB does not open the file ({error})", path) from error
    # Reading past the end of a mapped file would kill the process.
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if path.stat().st_size < needed:
        env.close()
        raise damaged(f"the file has {path.stat().st_size} bytes, its pages need {needed}", path)
    return env


class LmdbGetReader(KeyValueReader):
    """One ``get`` a sample in one read transaction, copied out of the map before it returns."""

    library_errors = (lmdb.Error,)
    options_help: ClassVar[Mapping[str, str]] = {
        "readahead": "on (default) or off: whether the kernel reads ahead of page faults"
    }

    def _open(self) -> Callable[[bytes], Value | None]:
        self._txn: Any = None
        readahead = self.options.get("readahead", "on")
        if readahead not in ("on", "off"):
            raise UsageError(f"readahead is on or off, not {readahead!r}")
        self._shared = _acquire(self.store, readahead == "on")
        self._txn = self._shared.env.begin(buffers=True)
        get: Callable[[bytes], Value | None] = self._txn.get
        return get

    def _read_labels(self) -> npt.NDArray[np.int64]:
        """Read them, then map the file anew: pages that an open mapping has touched cannot be evicted."""
        labels = super()._read_labels()
        self._release()
        self._get = self._open()
        return labels

    def _release(self) -> None:
        if self._txn is not None:
            self._txn.abort()
            self._txn = None
            _surrender(self._shared)

    def notes(self) -> dict[str, str]:
        """Say which readahead was used."""
        return {"readahead": self.options.get("readahead", "on")}


class LmdbFormat(Format):
    """A memory-mapped B+-tree in one file."""

    info = FormatInfo(
        name="lmdb",
        summary="one memory-mapped B+-tree (data.mdb), one %08d record an image",
        default_codec="raw",
        default_reader="get",
        traits=Traits(note="opened read-only and without locks, so any number of processes read at once"),
        usage=Usage.CAFFE,
        expert_would="An expert would commit less often than every 1,000 records; readers would hardly notice.",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        """Return the library's way in, and the way around it."""
        from storebench.formats.lmdb_direct import LmdbDirectReader

        direct = Traits(releases_gil=True, note="reads the file without the library, and writes no lock")
        return {
            "get": ReaderInfo(
                reader=LmdbGetReader,
                summary="py-lmdb's get, one call a sample",
                usage=Usage.EXPERT,
                expert_would="An expert would switch read-ahead off for a store larger than memory "
                "(lmdb?readahead=off); values are copied once, from the map into the batch, as it should be.",
            ),
            "direct": ReaderInfo(
                reader=LmdbDirectReader,
                summary="page index, explicit planned reads",
                traits=direct,
                usage=Usage.EXPERT,
                expert_would="An expert would change nothing: the library is left out of the reading.",
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        """Return the writer of ``data.mdb``."""
        return LmdbWriter(folder, spec)

    def data_files(self, store: Path) -> list[Path]:
        """Return the one file."""
        return [store / DATA_FILE]
