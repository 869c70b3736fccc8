"""Listings: what a scan of image files found, kept beside the stores, so that a million files are scanned once."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storebench.datasets.base import MOST_IMAGE_SIZE, Origin, Provenance
from storebench.datasets.files import FoundFiles
from storebench.datasets.sources import (
    CTIME,
    Refusal,
    Statuses,
    fingerprint,
    paths_of,
    row_of,
    status_row,
    statuses,
)
from storebench.errors import CorruptDataError, DataNotFoundError, StorebenchError, UsageError
from storebench.fileio.json_text import parse_json
from storebench.fileio.reading import read_small_file
from storebench.fileio.whole_files import write_whole

FOLDER = ".listings"  # folder of the listings, in the folder of all stores
VERSION = 3  # part of every listing's name; increased whenever a scan would find something else
MOST_BYTES = 1 << 31  # most bytes of a listing; one of a million files has about 50 MB
_DIGEST_BYTES = 16
_SETTLED_NS = 20_000_000
"""Within this time a second change may leave the times as they are: file systems use the clock of the last tick."""

_COARSE_NS = 2_000_000_000  # the same on file systems that keep whole seconds

_UNUSABLE = (OSError, StorebenchError, ValueError, LookupError, TypeError, AttributeError)
"""What reading a damaged listing may raise."""

_REFUSALS: dict[str, type[Refusal]] = {kind.__name__: kind for kind in (CorruptDataError, DataNotFoundError)}
"""The name that a listing keeps for an error -> its class."""


def packed_refusals(refusals: Mapping[int, Refusal]) -> list[tuple[int, str, str, str | None]]:
    """Return why files cannot be read, by index, as rows for JSON."""
    return [(index, type(error).__name__, error.what, error.hint) for index, error in refusals.items()]


def unpacked_refusals(rows: Any, locate: Callable[[int], Path | str]) -> dict[int, Refusal]:
    """Return what `packed_refusals` was given; a damaged row raises some error."""
    return {index: _REFUSALS[kind](what, where=locate(index), hint=hint) for index, kind, what, hint in rows}


class ScanSnapshot:
    """The folders and files that a scan has looked at, each as it was before the scan looked into it."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, ...]] = {}
        self.others: set[Path] = set()
        self.endings: dict[Path, set[str]] = {}
        self.systems: set[Path] = set()

    def look(self, path: Path, status: os.stat_result | None = None) -> None:
        """Remember a folder or file, which may not exist; its first status counts."""
        name = os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps ".."
        if name not in self.rows:
            self.rows[name] = status_row(name) if status is None else row_of(status)


Scan = Callable[[ScanSnapshot], tuple[FoundFiles, Statuses]]
"""Scan files, tell which folders were looked into, and return the files with their statuses."""


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

    def get(self, name: str) -> bytes | None:
        """Return the content that was kept under a name; None if there is none, or it is damaged."""
        raw = self._pending.get(name)
        if raw is None:
            try:
                raw = read_small_file(self._stores / FOLDER / name, most_bytes=MOST_BYTES)
            except (OSError, CorruptDataError):
                return None
        digest, content = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
        return content if _digest(content) == digest else None

    def keep(self, name: str, content: bytes) -> None:
        """Keep content under a name, on disk if there is a folder of stores."""
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
    """Return the listings in a folder of stores: the same for all parts of a process, so that each scan is done once."""
    return Listings(stores)


def found_files(root: Path, key: Sequence[object], scan: Scan, listings: Listings | None) -> FoundFiles:
    """Return the files that a scan finds, or found earlier if nothing has changed since then."""
    if listings is None:
        return scan(ScanSnapshot())[0]
    name = f"files-{fingerprint(VERSION, os.path.realpath(root), *key)}"
    if (content := listings.get(name)) is not None:
        with contextlib.suppress(*_UNUSABLE):
            if (known := _unpacked(content, root)) is not None:
                return known
    began_ns, seen = time.time_ns(), ScanSnapshot()
    files, rows = scan(seen)
    folders = np.array(list(seen.rows.values()), np.uint64).reshape(-1, rows.shape[1])
    newest = int(np.concatenate([folders, rows])[:, CTIME].max(initial=0))
    # Only if a change after the scan began would show in the times.
    if newest < began_ns - (_SETTLED_NS if newest % 1_000_000_000 else _COARSE_NS):
        listings.keep(name, _packed(files, root, seen, _digest(folders.tobytes(), rows.tobytes())))
    return files


def _packed(files: FoundFiles, root: Path, seen: ScanSnapshot, unchanged: bytes) -> bytes:
    """Return files as bytes: a line of JSON, the labels, and the names of the folders and of the files."""
    header = {
        "root": os.path.relpath(files.root, root),
        "class_names": files.class_names,
        "provenance": dataclasses.asdict(files.provenance),
        "own_shape": files.own_shape,
        "sizes": files.sizes,
        "digest": files.digest,
        "unreadable": packed_refusals(files.unreadable),
        "files": len(files.paths),
        "folders": len(seen.rows),
        "unchanged": unchanged.hex(),
    }
    names = "\0".join([*seen.rows, *files.paths]).encode("utf-8", "surrogateescape")
    return json.dumps(header).encode() + b"\n" + files.labels.astype("<i8").tobytes() + names


def _unpacked(content: bytes, root: Path) -> FoundFiles | None:
    """Return the files of a listing; None if something has changed since then."""
    line, _, body = content.partition(b"\n")
    header: dict[str, Any] = parse_json(line, "listing")
    labels = np.frombuffer(body[: 8 * header["files"]], "<i8").astype(np.int64)
    names = body[8 * header["files"] :].decode("utf-8", "surrogateescape").split("\0")
    folders, paths = names[: header["folders"]], names[header["folders"] :]
    within = root / header["root"]
    if not len(labels) == len(paths) == header["files"]:
        return None
    rows = [statuses(folders).tobytes(), statuses(paths_of(within, paths)).tobytes()]
    if _digest(*rows).hex() != header["unchanged"]:
        return None
    provenance = header["provenance"]
    height, width, channels = header["own_shape"]
    sizes = tuple((across, down) for across, down in header["sizes"])
    if min(height, width, *itertools.chain(*sizes)) < 1 or max(height, width) > MOST_IMAGE_SIZE:
        return None
    return FoundFiles(
        root=within,
        paths=paths,
        labels=labels,
        class_names=tuple(header["class_names"]),
        provenance=Provenance(**provenance | {"origin": Origin(provenance["origin"])}),
        own_shape=(height, width, channels),
        sizes=sizes,
        digest=header["digest"],
        unreadable=unpacked_refusals(header["unreadable"], lambda index: within / paths[index]),
    )


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()
