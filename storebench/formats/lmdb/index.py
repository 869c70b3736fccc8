"""The page index of an LMDB file: offset and length of every value, built once and kept beside the store."""

import contextlib
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from storebench.arrays import Integers
from storebench.errors import CorruptStoreError, StorebenchError, UsageError
from storebench.formats.common import NPY_ERRORS
from storebench.formats.lmdb.pages import (
    DATA_FILE,
    DUPLICATES,
    SUB_DATABASE,
    Nodes,
    PageFile,
    current_meta,
    leaves,
)
from storebench.system.whole_files import open_whole

_VERSION = 4


class FileIdentity(NamedTuple):
    """The identity of the file from which an index was built."""

    size: int
    mtime_ns: int
    inode: int
    transaction: int
    page_bytes: int

    @classmethod
    def of(cls, file: PageFile) -> Self:
        status = os.fstat(file.fd)
        transaction, page_bytes = current_meta(file.fd, file.path).transaction, file.meta.page_bytes
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, transaction, page_bytes)


@dataclass(frozen=True, kw_only=True)
class PageIndex:
    """The place of every value of one database, in the order of the keys."""

    identity: FileIdentity  # identity of the file when it was indexed
    offsets: Integers  # int64 [n], bytes from the start of the file
    lengths: npt.NDArray[np.uint32]  # uint32 [n], bytes
    numbered: int  # number of the first keys that are ``b"%08d" % i`` for their position i

    def __len__(self) -> int:
        return len(self.offsets)


def data_file(path: Path | str) -> Path:
    """Return the data file of a database that is named by its folder or by the file itself."""
    path = Path(path)
    return path / DATA_FILE if path.is_dir() else path


def open_index(path: Path | str) -> PageIndex:
    """Return the page index of a database; build it if there is none for the current file."""
    with PageFile(data_file(path)) as file:
        identity = FileIdentity.of(file)
        index = _load(kept_index(path), identity)
    if index is None:
        index = build_index(path)
        _keep(index, kept_index(path))
    return index


def build_index(path: Path | str) -> PageIndex:
    """Walk the tree and return the index, regardless of any cache. See `open_index`."""
    with PageFile(data_file(path)) as file:
        identity = FileIdentity.of(file)
        try:
            index = _walk(file, identity)
        except CorruptStoreError:
            if FileIdentity.of(file) == identity:
                raise
        else:
            if FileIdentity.of(file) == identity and identity.transaction == file.meta.transaction:
                return index
    raise CorruptStoreError("the file is being written to", where=path, hint="Index it when that is done.")


def _walk(file: PageFile, identity: FileIdentity) -> PageIndex:
    tree = file.meta.main
    # Not allocated at once: the record may promise more entries than a file with holes really contains.
    offsets, lengths = [np.empty(0, np.int64)], [np.empty(0, np.uint32)]
    done = numbered = 0
    for nodes in leaves(file, tree):
        if (nodes.flags & (SUB_DATABASE | DUPLICATES)).any():
            what, hint = "the file holds named databases", "Use the reader lmdb:get."
            raise UsageError(what, where=file.path, hint=hint)
        if done + len(nodes) > tree.entries:
            raise CorruptStoreError("more entries than the tree's record says", where=file.path)
        offsets.append(file.values(nodes))
        lengths.append(nodes.sizes.astype(np.uint32))
        if numbered == done:
            numbered += _numbered(nodes, done)
        done += len(nodes)
    if done != tree.entries:
        raise CorruptStoreError(f"{done} entries where the record says {tree.entries}", where=file.path)
    return PageIndex(
        identity=identity, offsets=np.concatenate(offsets), lengths=np.concatenate(lengths), numbered=numbered
    )


def _numbered(nodes: Nodes, first: int) -> int:
    """Return the number of first nodes with the keys `first`, ``first + 1`` and so on."""
    digits = nodes.data[nodes.keys[:, None] + np.arange(8)].astype(np.int64) - ord("0")
    numbers = digits @ (10 ** np.arange(7, -1, -1))
    right = (nodes.key_lengths == 8) & ((digits >= 0) & (digits <= 9)).all(axis=1)
    right &= numbers == first + np.arange(len(nodes))
    return len(nodes) if right.all() else int(np.argmin(right))


def kept_index(path: Path | str) -> Path:
    """Return the file in which the index of the unnamed database of `path` is kept."""
    real = data_file(path).resolve()
    # Beside the folder, not in it: a store's files are its data, and are sized, counted and evicted as such.
    store = real.parent if real.name == DATA_FILE else real
    return store.parent / f".{store.name}.pages"


def _load(place: Path, identity: FileIdentity) -> PageIndex | None:
    """Return the index that is kept in `place` if it is complete and belongs to the current file."""
    try:
        with np.load(place) as kept:
            if kept["identity"].tolist() != _facts(identity):
                return None
            return PageIndex(
                identity=identity,
                offsets=kept["offsets"],
                lengths=kept["lengths"],
                numbered=int(kept["numbered"]),
            )
    except (*NPY_ERRORS, zipfile.BadZipFile, zlib.error):  # its parts have checksums
        return None


def _keep(index: PageIndex, place: Path) -> None:
    """Write the index where that is possible. A reader also works without the file."""
    with contextlib.suppress(OSError, StorebenchError), open_whole(place) as file:
        np.savez(
            file,
            identity=np.array(_facts(index.identity), np.uint64),
            numbered=index.numbered,
            offsets=index.offsets,
            lengths=index.lengths,
        )


def _facts(identity: FileIdentity) -> list[int]:
    # Any of 64 bits: some FUSE file systems number files by hashes.
    return [field % 2**64 for field in (_VERSION, *identity)]
