"""Attacks on how windows are cut and on image files as they are: a run must fail, or build its store again."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from storebench.system.copying import SOURCE, load_compiled
from tests.support.photo_folders import write_photos
from tests.support.quick_cli import storebench

SIZE = ("--dataset", "imagenet", "--size", "12", "--synthetic")
COMPUTE = ("--compute", "none", "--threads", "1", "--batch-size", "4")

KERNELS = {
    "windows at the left edge": ("(top * columns + left)", "(top * columns)"),
    "windows one column to the right": ("top * columns + left)", "top * columns + left + (left > 0))"),
    "mirrored windows as they are": ("mirrored = places[2]", "mirrored = 0"),
    "no window is drawn to be mirrored": ("(bits >> 32 & 1) * mirrors", "0 * mirrors"),
    "every window at the top": ("(bits & 0xFFFF) % (uint32_t)tops", "0"),
    "the last window is left as it was": ("n < count; n++, places += 3) {\n        const int64_t top",
                                          "n < count - 1; n++, places += 3) {\n        const int64_t top"),
}  # fmt: skip
"""What a library in the user's cache does wrong -> what the honest source has there, and what its own has."""

COPIES = {
    "one sample throughout": ("source + offsets[n], (size_t)size", "source + offsets[0], (size_t)size"),
    "the last sample is left as it was": ("n < count; n++, out += size", "n < count - 1; n++, out += size"),
}  # fmt: skip
"""The same for whole samples."""


def planted_kernel(honest: Path, cache: Path, scratch: Path, name: str) -> None:
    """Put a compiled kernel with a fault where the honest one would be kept, as its owner."""
    right, wrong = (KERNELS | COPIES)[name]
    assert SOURCE.count(right) >= 1
    assert load_compiled(SOURCE.replace(right, wrong, 1), scratch) is not None
    [kept], [faulty] = ([*folder.glob("*.so")] for folder in (honest / "storebench", scratch))
    shutil.copytree(honest, cache)
    shutil.copy(faulty, cache / "storebench" / kept.name)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store of 12 large images."""
    root = tmp_path_factory.mktemp("windows")
    done = storebench(root, "convert", "memory", "lmdb", *SIZE, "--out", "stores")
    assert done.returncode == 0, done.stderr
    return root / "stores"


def run_of_windows(folder: Path, images: Path, cache: Path, *cell: str) -> subprocess.CompletedProcess[str]:
    """Run a cell, by default one that cuts windows, with the kernel in a user's cache."""
    words = (
        "run",
        *(cell or ("memory:native", "--model", "caffenet")),
        *SIZE,
        *COMPUTE,
        "--stores",
        images,
        "--out",
        "run",
    )
    return storebench(folder, *words, XDG_CACHE_HOME=str(cache))


@pytest.fixture(scope="module")
def honest(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cache of a user who has run the cell."""
    folder = tmp_path_factory.mktemp("honest")
    done = run_of_windows(folder, images, folder / "cache")
    assert done.returncode == 0, done.stderr
    return folder / "cache"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_with_a_fault_fails_the_cell(images: Path, honest: Path, tmp_path: Path, name: str) -> None:
    planted_kernel(honest, tmp_path / "cache", tmp_path / "scratch", name)
    done = run_of_windows(tmp_path, images, tmp_path / "cache")
    assert done.returncode == 5, (done.returncode, done.stderr)
    assert "kept from the timed batches" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_with_a_fault_fails_the_cell(images: Path, honest: Path, tmp_path: Path, name: str) -> None:
    planted_kernel(honest, tmp_path / "cache", tmp_path / "scratch", name)
    done = run_of_windows(tmp_path, images, tmp_path / "cache", "lmdb:direct")
    assert done.returncode == 5, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Return a folder with class folders of photographs, and their files in a store as they are."""
    root = tmp_path
    write_photos(root / "photos", each=6, only=0)
    done = storebench(root, "convert", "original", "--dataset", "folder:photos", "--out", "stores")
    assert done.returncode == 0, done.stderr
    return root


def photos_of(root: Path) -> list[Path]:
    return sorted((root / "stores").rglob("*.jpg")) + sorted((root / "stores").rglob("*.JPEG"))


def flip_a_bit(root: Path) -> None:
    path = photos_of(root)[3]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def exchange_two(root: Path) -> None:
    first, second = photos_of(root)[2:4]
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def put_one_everywhere(root: Path) -> None:
    content = photos_of(root)[0].read_bytes()
    for path in photos_of(root):
        path.write_bytes(content)


def append_to_one(root: Path) -> None:
    """Add bytes behind the end of an image, which no decoder looks at."""
    path = photos_of(root)[1]
    path.write_bytes(path.read_bytes() + bytes(64))


ATTACKS: dict[str, Callable[[Path], None]] = {
    "a bit of one file": flip_a_bit,
    "two files exchanged": exchange_two,
    "one file everywhere": put_one_everywhere,
    "bytes behind the end of an image": append_to_one,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_run_from_changed_image_files_fails(photographs: Path, name: str) -> None:
    assert len(photos_of(photographs)) == 12
    ATTACKS[name](photographs)
    words = ("run", "original", "--dataset", "folder:photos", "--model", "tiny", "--image-size", "40")
    done = storebench(photographs, *words, *COMPUTE, "--stores", "stores", "--out", "run")
    built_again = (done.returncode, "building" in done.stderr) == (0, True)
    assert built_again or done.returncode == 5, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
