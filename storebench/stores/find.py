"""A store on disk: where it lies, what it consists of, and whether it is whole."""

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from storebench.datasets.base import DatasetSpec
from storebench.digests import DIGEST_BYTES, DigestTable, set_digest
from storebench.errors import CorruptStoreError, SchemaVersionError, UsageError
from storebench.fileio.reading import kind_of
from storebench.formats import Backend, Format, get_format
from storebench.formats.common import load_array
from storebench.formats.registry import store_name_of
from storebench.manifest import DIGESTS_NAME, MANIFEST_NAME, Manifest
from storebench.progress import Say, mute
from storebench.stores.staging import restore

CONVERT_AGAIN = "Convert again."


@dataclass(frozen=True, kw_only=True)
class Phases:
    """What building a store took, in seconds.

    Attributes
    ----------
    make_s
        Reading, decoding and encoding samples, summed over `processes`: it may exceed the build's time.
    write_s
        Handing payloads to the format's writer.
    sync_s
        Closing the writer and syncing its files.
    processes
        How many processes read and encoded.
    """

    make_s: float
    write_s: float
    sync_s: float
    processes: int


@dataclass(frozen=True, kw_only=True)
class Store:
    """One dataset in one format with one codec.

    Attributes
    ----------
    path
        The store's folder.
    manifest
        What it says of itself.
    built
        Whether it was written just now; False when it was there already.
    phases
        What writing it took; None when it was there already.
    """

    path: Path
    manifest: Manifest
    built: bool = False
    phases: Phases | None = None


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sums over a store's data files, in bytes: apparent size, and blocks that were allocated."""

    file_bytes: int
    bytes_on_disk: int


def store_path(stores: Path, spec: DatasetSpec, backend: Backend) -> Path:
    """Return where the store of `spec` that `backend` reads lies in the folder `stores`."""
    return stores / spec.store_id / store_name_of(backend)


def open_store(path: Path) -> Store:
    """Return the store at `path` after checking, without reading its samples, that it is whole.

    Raises
    ------
    CorruptStoreError
        It is not a store, or files are missing or have another size than when they were written.
    SchemaVersionError
        Another version of storebench wrote it.
    """
    manifest = Manifest.read(path)
    read_digest_table(path, manifest)
    check_sizes(path, manifest)
    return Store(path=path, manifest=manifest)


def when_made(path: Path) -> tuple[str, int] | None:
    """Return when the store at `path` was made, as something to sort by; None if there is no whole store.

    What cannot be judged here counts as whole, because it may be the only copy: a store of another schema
    version, which counts as the oldest, and one of a format that is not installed.
    """
    try:
        created = _created(path)
        return created, (path / MANIFEST_NAME).stat().st_mtime_ns
    except (CorruptStoreError, OSError):
        return None


def _created(path: Path) -> str:
    try:
        manifest = Manifest.read(path)
    except SchemaVersionError:
        return ""
    read_digest_table(path, manifest)
    with contextlib.suppress(UsageError):
        check_sizes(path, manifest)
    return str(manifest.created_utc)


def restore_store(path: Path, say: Say = mute) -> None:
    """Give the store at `path` back its name, if a process was killed while it replaced the store.

    Parameters
    ----------
    path
        Where the store should be. Nothing is done where something is there.
    say
        Is told what was done.

    Raises
    ------
    OutputError
        The store is there under a temporary name, and may not be renamed.
    """
    restore(path, when_made, say)


def read_digest_table(path: Path, manifest: Manifest) -> DigestTable:
    """Return the digests of the samples as they were written, uint8 [count, 16].

    Raises
    ------
    CorruptStoreError
        The table is missing, truncated, or not the one that the manifest was written with.
    """
    table_path = path / DIGESTS_NAME
    if not table_path.exists():
        raise CorruptStoreError("the digest table is missing", where=table_path, hint=CONVERT_AGAIN)
    try:
        table = cast("DigestTable", load_array(table_path))
    except CorruptStoreError as error:
        raise CorruptStoreError(
            f"an unreadable digest table: {error.what}", where=table_path, hint=CONVERT_AGAIN
        ) from error
    if table.dtype != np.uint8 or table.shape != (manifest.count, DIGEST_BYTES):
        raise CorruptStoreError(
            f"a digest table of {table.dtype} {table.shape} for {manifest.count} samples",
            where=table_path,
            hint=CONVERT_AGAIN,
        )
    if set_digest(table) != manifest.samples_digest:
        raise CorruptStoreError(
            "the digest table is not the one of the manifest", where=table_path, hint=CONVERT_AGAIN
        )
    return table


def measure_sizes(path: Path, store_format: Format) -> Sizes:
    """Return how much the data files of the store at `path` take.

    Raises
    ------
    CorruptStoreError
        One of them is a FIFO, a socket or a device: reading it might never end.
    """
    stats = [_regular(file) for file in store_format.data_files(path)]
    return Sizes(
        file_bytes=sum(found.st_size for found in stats),
        bytes_on_disk=sum(found.st_blocks * 512 for found in stats),  # st_blocks counts 512 bytes everywhere
    )


def _regular(file: Path) -> os.stat_result:
    found = file.stat()
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise CorruptStoreError(
            f"{kind_of(found.st_mode)}, not a regular file", where=file, hint=CONVERT_AGAIN
        )
    return found


def check_sizes(path: Path, manifest: Manifest) -> None:
    """Check that the data files have the sizes that they were written with.

    Raises
    ------
    CorruptStoreError
        They have not: something was truncated, removed or added, or is no regular file.
    """
    try:
        found = measure_sizes(path, get_format(manifest.format)).file_bytes
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CorruptStoreError(
            "a data file is missing", where=error.filename or path, hint=CONVERT_AGAIN
        ) from None
    if found != manifest.file_bytes:
        raise CorruptStoreError(
            f"the data files have {found:,} bytes, {manifest.file_bytes:,} were written",
            where=path,
            hint=CONVERT_AGAIN,
        )
