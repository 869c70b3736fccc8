"""A store on disk: its path, its parts, and whether it is complete."""

import dataclasses
import functools
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from storebench.codecs import any_size
from storebench.datasets.base import DatasetSpec
from storebench.digests import DIGEST_BYTES, DigestTable, set_digest
from storebench.errors import CorruptStoreError
from storebench.formats import Backend, Format, get_format
from storebench.formats.common import load_array
from storebench.formats.registry import store_name_of
from storebench.record.manifest import CONVERT_AGAIN, DIGESTS_NAME, Manifest
from storebench.system.file_tree import names_of

_damaged = functools.partial(CorruptStoreError, hint=CONVERT_AGAIN)


@dataclass(frozen=True, kw_only=True)
class Store:
    """One dataset in one format with one codec."""

    path: Path  # the store's folder
    manifest: Manifest  # its own description
    built: bool = False  # whether it was just written; False if it existed already


def store_path(stores: Path, spec: DatasetSpec, backend: Backend) -> Path:
    if any_size(backend.codec):
        spec = dataclasses.replace(spec, image_size=None)
    return stores / spec.store_id / store_name_of(backend)


def open_store(path: Path) -> Store:
    """Return the store at `path` after checking that it is complete, without reading its samples."""
    manifest = Manifest.read(path)
    read_digest_table(path, manifest)
    check_sizes(path, manifest)
    return Store(path=path, manifest=manifest)


def read_digest_table(path: Path, manifest: Manifest) -> DigestTable:
    """Return the digests of the samples as written, uint8 [count, 16]."""
    table_path = path / DIGESTS_NAME
    if not table_path.exists():
        raise _damaged("the digest table is missing", where=table_path)
    try:
        table = cast("DigestTable", load_array(table_path))
    except CorruptStoreError as error:
        raise _damaged(f"an unreadable digest table: {error.what}", where=table_path) from error
    if table.dtype != np.uint8 or table.shape != (manifest.count, DIGEST_BYTES):
        what = f"a digest table of {table.dtype} {table.shape} for {manifest.count} samples"
        raise _damaged(what, where=table_path)
    if set_digest(table) != manifest.samples_digest:
        raise _damaged("the digest table does not match the manifest", where=table_path)
    return table


def measure_sizes(path: Path, store_format: Format) -> tuple[int, int]:
    """Return the bytes of the data files of the store at `path`: apparent size, and allocated blocks."""
    file_bytes = bytes_on_disk = 0
    for file in names_of(store_format.data_files(path)):
        status = os.stat(file)  # noqa: PTH116 - a million Path objects take seconds
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise _damaged("not a regular file", where=file)
        file_bytes += status.st_size
        bytes_on_disk += status.st_blocks * 512  # on every file system
    return file_bytes, bytes_on_disk


def check_sizes(path: Path, manifest: Manifest) -> None:
    """Check that the data files have the sizes with which they were written."""
    try:
        file_bytes, _ = measure_sizes(path, get_format(manifest.format))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _damaged("a data file is missing", where=error.filename or path) from None
    if file_bytes != manifest.file_bytes:
        what = f"the data files have {file_bytes:,} bytes, {manifest.file_bytes:,} were written"
        raise _damaged(what, where=path)
