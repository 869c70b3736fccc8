"""Listings: what a scan of image files found, kept beside the stores, so that a million files are scanned once."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storebench.datasets.files import FoundFiles
from storebench.datasets.sources import fingerprint, paths_of, row_of, status_row, statuses
from storebench.errors import CorruptDataError, UsageError
from storebench.system.pickles import unpickled
from storebench.system.reading import read_small_file
from storebench.system.whole_files import write_whole

FOLDER = ".listings"  # folder of the listings, in the folder of all stores
VERSION = 7  # part of every listing's name; increased whenever a scan would find something else
MOST_BYTES = 1 << 31  # most bytes of a listing; one of a million files has about 50 MB
_DIGEST_BYTES = 16


class ScanSnapshot:
    """The folders and files that a scan has looked at, each as it was before the scan looked into it."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, ...]] = {}

    def look(self, path: Path, status: os.stat_result | None = None) -> None:
        """Remember a folder or file, which may not exist; its first status counts."""
        name = os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps ".."
        if name not in self.rows:
            self.rows[name] = status_row(name) if status is None else row_of(status)


# Scan files, tell which folders were looked into, and return the files.
Scan = Callable[[ScanSnapshot], FoundFiles]


class Listings:
    def __init__(self, stores: Path) -> None:
        self._stores = stores
        self._pending: dict[str, bytes] = {}

    def refuse_within(self, images: Path) -> None:
        """Refuse stores in the folder of the images, which a later scan would take for images."""
        place, root = self._stores.resolve(), images.resolve()
        if not place.is_relative_to(root):
            return
        if not any(part.startswith(".") for part in place.relative_to(root).parts):
            raise UsageError(
                f"the stores would be written among the images of {images}, and later be taken for images",
                where=self._stores,
                hint="Name another folder for the stores: --stores, or --out of convert.",
            )

    def get(self, name: str) -> Any:
        """Return the value that was kept under a name; None if there is none, or it is damaged."""
        raw = self._pending.get(name)
        if raw is None:
            try:
                raw = read_small_file(self._stores / FOLDER / name, most_bytes=MOST_BYTES)
            except (OSError, CorruptDataError):
                return None
        content = raw[_DIGEST_BYTES:]
        with contextlib.suppress(pickle.UnpicklingError):
            return unpickled(content, own=True) if _digest(content) == raw[:_DIGEST_BYTES] else None
        return None

    def keep(self, name: str, value: Any) -> None:
        """Keep a value under a name, on disk if there is a folder of stores."""
        content = pickle.dumps(value)
        self._pending[name] = _digest(content) + content
        if self._stores.is_dir():
            self.flush()

    def flush(self) -> None:
        """Write what is kept in memory; where that is not possible, it is dropped."""
        folder = self._stores / FOLDER
        with contextlib.suppress(OSError):
            for name, raw in self._pending.items():
                folder.mkdir(exist_ok=True)
                write_whole(folder / name, raw)
        self._pending.clear()


@functools.cache
def listings_in(stores: Path) -> Listings:
    """Return the listings in a folder of stores: shared within a process, so that each scan is done once."""
    return Listings(stores)


def found_files(root: Path, key: Sequence[object], scan: Scan, listings: Listings | None) -> FoundFiles:
    """Return the files that a scan finds, or found earlier if nothing has changed since then."""
    if listings is None:
        return scan(ScanSnapshot())
    name = f"files-{fingerprint(VERSION, os.path.realpath(root), *key)}"
    if (kept := listings.get(name)) is not None:
        files: FoundFiles
        within, files, before = kept
        files = dataclasses.replace(files, root=root / within)
        unchanged = np.array_equal(statuses(before), np.array(list(before.values()), np.uint64))
        if unchanged and np.array_equal(statuses(paths_of(files.root, files.paths)), files.rows):
            return files
    seen = ScanSnapshot()
    files = scan(seen)
    listings.keep(name, (os.path.relpath(files.root, root), files, seen.rows))
    return files


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
