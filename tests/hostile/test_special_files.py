"""FIFOs and devices in the place of a store's files: refused by name, and never waited for."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

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
