"""A folder is scanned once: what was found is kept beside the stores, and used while nothing has changed."""

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storebench.datasets import Dataset, DatasetSpec, open_dataset
from storebench.datasets.listing import FOLDER, Listings
from tests.support.dataset_files import digests, image_file, write_class_folders
from tests.support.opened_files import opened_in

Cli = Callable[..., subprocess.CompletedProcess[str]]
LATIN = os.fsdecode(b"caf\xe9 and more")
SETTLED_S = 0.03
"""A second change within a tick of the clock would not show in the times."""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder with both splits, names with spaces and bytes that are no UTF-8, and nested folders."""
    root = tmp_path / "my photos"
    write_class_folders(root / "train", {"a": 2, LATIN: 3})
    write_class_folders(root / "val", {"a": 1})
    (root / "train" / "a" / "deeper still").mkdir()
    (root / "train" / "a" / "deeper still" / "x y.png").write_bytes(image_file(kind="PNG"))
    time.sleep(SETTLED_S)
    return root


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    (tmp_path / "stores").mkdir()
    return tmp_path / "stores"


def open_at(photos: Path, stores: Path | None, **options: Any) -> Dataset:
    """Open a folder as a new process does, with the listings of a folder of stores."""
    listings = None if stores is None else Listings(stores)
    return open_dataset(DatasetSpec(name=f"folder:{photos}", **options), listings=listings)


def folders_of(root: Path) -> list[Path]:
    return [root, *(path for path in root.rglob("*") if path.is_dir())]


@pytest.mark.parametrize("backend", ["memory", "memory+original"])
def test_a_second_start_lists_no_folder_and_opens_no_image(backend: str, photos: Path, cli: Cli) -> None:
    asked = ("convert", backend, "--dataset", str(photos))
    with opened_in(folders_of(photos)) as opened:
        assert cli(*asked).returncode == 0
        first = opened()
        assert {"", "a_0.JPEG", "x y.png"} <= set(first), "the watch sees listed folders and opened files"
        again = cli(*asked)
        assert "there already" in again.stdout, again.stderr
        assert opened() == []
        (photos / "train" / "a" / "new.png").write_bytes(image_file(kind="PNG"))
        opened()
        assert cli(*asked).returncode == 2, "the store holds other samples now"
        assert "new.png" in opened()


def test_what_was_kept_is_what_a_scan_finds(photos: Path, stores: Path) -> None:
    asked: tuple[dict[str, Any], ...] = ({}, {"split": "test"}, {"image_size": 32}, {"limit": 3}, {"size": 9})
    for options in asked:
        fresh, first, again = (open_at(photos, where, **options) for where in (None, stores, stores))
        assert fresh.info == first.info == again.info
        assert fresh.original_info == again.original_info
        assert digests(again) == digests(fresh)
    assert len(list((stores / FOLDER).iterdir())) == 2, "one per split"


def changed_in_place(photos: Path) -> None:
    path = photos / "train" / "a" / "a_0.JPEG"
    before, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-20] + bytes(18) + content[-2:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def linked(photos: Path) -> None:
    (photos / "train" / LATIN).rename(photos / "moved")
    (photos / "train" / LATIN).symlink_to(photos / "val" / "a")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file with other bytes, its time put back": changed_in_place,
    "a new file": lambda root: (root / "train" / "a" / "b.png").write_bytes(image_file(kind="PNG")),
    "a file less": lambda root: (root / "train" / "a" / "a_1.JPEG").unlink(),
    "a link in the place of a class": linked,
    "no splits any more": lambda root: [(root / name).rename(root / f"{name}s") for name in ("train", "val")],
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_has_changed_is_scanned_again(name: str, photos: Path, stores: Path) -> None:
    before = open_at(photos, stores).info
    CHANGES[name](photos)
    after = open_at(photos, stores).info
    assert after == open_at(photos, None).info
    assert after != before


def test_a_damaged_listing_is_as_good_as_none(photos: Path, stores: Path) -> None:
    expected = open_at(photos, stores).info
    [path] = (stores / FOLDER).iterdir()
    content, random_ = path.read_bytes(), random.Random(15)
    for _ in range(30):
        changed = bytearray(content)
        changed[random_.randrange(len(content))] ^= 1 << random_.randrange(8)
        path.write_bytes(random_.choice([bytes(changed), content[: random_.randrange(len(content))]]))
        assert open_at(photos, stores).info == expected
