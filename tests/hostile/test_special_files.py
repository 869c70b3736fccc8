"""FIFOs and devices in the place of a store's files: refused by name, and never waited for."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storebench import open_reader
from storebench.errors import CorruptStoreError
from tests.hostile.refusals import refused
from tests.support.quick_cli import storebench


def instead_of(path: Path, make: Callable[[Path], None]) -> None:
    """Put something that is no file in a file's place, and let the sum of sizes be that of the rest."""
    manifest = (
        next(folder for folder in path.parents if (folder / "manifest.json").exists()) / "manifest.json"
    )
    facts = json.loads(manifest.read_text(encoding="utf-8"))
    facts["file_bytes"] -= path.stat().st_size
    manifest.write_text(json.dumps(facts), encoding="utf-8")
    path.unlink()
    make(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "a FIFO"), (zeros, "a character device")])
@pytest.mark.parametrize(
    ("pattern", "reader"),
    [
        ("files+png/**/*.png", "get"),
        ("lmdb+raw/data.mdb", "direct"),
        ("leveldb+raw/*.ldb", "get"),
    ],
)
def test_a_store_with_something_in_a_files_place_is_refused(
    stores: Path, tmp_path: Path, pattern: str, reader: str, make: Callable[[Path], None], kind: str
) -> None:
    path = min(stores.glob(pattern))
    instead_of(path, make)
    store = next(folder for folder in path.parents if folder.parent == stores)
    refused(
        storebench(tmp_path, "verify", store, "--reader", reader), str(path), f"{kind}, not a regular file"
    )


SHORTER_THAN_IT_SAYS = Path("/sys/kernel/mm/transparent_hugepage/enabled")
"""A regular file whose size is that of a page, of which fewer bytes can be read."""


@pytest.mark.skipif(not SHORTER_THAN_IT_SAYS.is_file(), reason="this kernel has no huge pages")
def test_a_file_that_ends_before_its_size_is_damaged(stores: Path) -> None:
    store = stores / "files+png"
    with open_reader(store, "get") as reader:
        path = min(store.glob("**/*00000005.png"))
        path.unlink()
        path.symlink_to(SHORTER_THAN_IT_SAYS)
        assert len(reader.fetch(np.array([4]))) == 1
        with pytest.raises(CorruptStoreError, match=rf"\d+ bytes could be read of {path.stat().st_size}"):
            reader.fetch(np.array([5]))
