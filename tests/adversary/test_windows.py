"""A kernel in the user's cache that cuts or copies wrongly: the cell fails."""

import shutil
import subprocess
from pathlib import Path

import pytest

from storebench.system.kernel import KERNEL, load_compiled
from tests.support.quick_cli import storebench

SIZE = ("--dataset", "imagenet", "--size", "12", "--synthetic")
COMPUTE = ("--compute", "none", "--threads", "1", "--batch-size", "4")

KERNELS = {
    "windows at the left edge": ("(top * columns + left)", "(top * columns)"),
    "mirrored windows as they are": ("mirrored = places[2]", "mirrored = 0"),
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
    source = KERNEL.read_text()
    assert source.count(right) >= 1
    assert load_compiled(source.replace(right, wrong, 1), scratch) is not None
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
