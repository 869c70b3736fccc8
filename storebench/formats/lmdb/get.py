"""Read LMDB through py-lmdb's get: each value is copied out of the memory map."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt

from storebench.arrays import Indices
from storebench.errors import UsageError
from storebench.formats.arrays import Batch
from storebench.formats.base import Fetched
from storebench.formats.common import damaged
from storebench.formats.keyvalue import KeyValueReader, StoredValue, make_key
from storebench.formats.lmdb.pages import DATA_FILE
from storebench.formats.options import Options, as_text, flag
from storebench.formats.reads.direct_file import SMALL_BYTES
from storebench.formats.windows import Windows


@dataclass(kw_only=True)
class _SharedEnvironment:
    """An open environment, the process that opened it, and the number of its readers."""

    env: Any
    readahead: bool
    process: int
    users: int = 0


_open_envs: dict[tuple[int, int], _SharedEnvironment] = {}
"""Open environments by device and inode, because py-lmdb refuses to open a file twice in one process."""


def _acquire(store: Path, readahead: bool) -> _SharedEnvironment:
    _close_inherited()
    shared = _open_envs.get(_identity(store))
    if shared is None:
        shared = _SharedEnvironment(env=_open_env(store, readahead), readahead=readahead, process=os.getpid())
        _open_envs[_identity(store)] = shared
    elif shared.readahead != readahead:
        raise UsageError(
            "the store is already open in this process with another readahead",
            where=store,
            hint="Close that reader first: LMDB opens a file once a process.",
        )
    shared.users += 1
    return shared


def _release(shared: _SharedEnvironment) -> None:
    shared.users -= 1
    if shared.users == 0 and shared.process == os.getpid():
        for key in [key for key, value in _open_envs.items() if value is shared]:
            del _open_envs[key]
        shared.env.close()


def _close_inherited() -> None:
    """Close environments that the parent had open when it forked: py-lmdb would take them for this process's own."""
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
        raise damaged(f"LMDB cannot open the file ({error})", path) from error
    # Reading past the end of a mapped file would kill the process.
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if path.stat().st_size < needed:
        env.close()
        raise damaged(f"the file has {path.stat().st_size} bytes, its pages need {needed}", path)
    return env


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
        self._shared = _acquire(self.store, self.options.readahead)
        self._txn = self._shared.env.begin(buffers=True)
        get: Callable[[bytes], StoredValue | None] = self._txn.get
        return get

    def _read_labels(self) -> npt.NDArray[np.int64]:
        """Read the labels, then map the file again: pages that an open mapping has touched cannot be evicted."""
        labels = super()._read_labels()
        self._close()
        self._get = self._open()
        return labels

    def _close(self) -> None:
        if self._txn is not None:
            self._txn.abort()
            self._txn = None
            _release(self._shared)

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
        """Return whether the kernel read ahead."""
        return {"readahead": as_text(self.options.readahead)}
