"""FIFOs and devices in the place of a store's files: refused by name, and never waited for."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def storebench(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "storebench", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that a command refused with exit code 5, in one line that holds these words."""
    assert done.returncode == 5, (done.returncode, done.stderr)
    [line] = done.stderr.splitlines()
    assert line.startswith("storebench: ")
    assert not [word for word in words if word not in line], line


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
