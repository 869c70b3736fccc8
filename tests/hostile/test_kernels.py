"""A kernel in the user's cache that cuts or copies wrongly: the cell fails."""

import shutil
from pathlib import Path

import pytest

from storebench.system.kernel import KERNEL, load_compiled
from tests.support.quick_cli import storebench

SIZE = ("--dataset", "imagenet", "--size", "12", "--synthetic")
CUTTING, COPYING = ("memory:native", "--model", "caffenet"), ("lmdb:direct",)
# What the library does wrong -> the cell that uses it, what the honest source has there, and what its own has.
FAULTS = {
    "windows at the left edge": (CUTTING, "(top * columns + left)", "(top * columns)"),
    "mirrored windows as they are": (CUTTING, "mirrored = places[2]", "mirrored = 0"),
    "one sample throughout": (
        COPYING,
        "source + offsets[n], (size_t)size",
        "source + offsets[0], (size_t)size",
    ),
    "the last sample left out": (COPYING, "n < count; n++, out += size", "n < count - 1; n++, out += size"),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with stores of 12 large images, and the cache of a user who has run a cell."""
    folder = tmp_path_factory.mktemp("honest")
    assert storebench(folder, "convert", "memory", "lmdb", *SIZE, "--out", "stores").returncode == 0
    words = (
        *CUTTING,
        *SIZE,
        "--compute",
        "none",
        "--threads",
        "1",
        "--batch-size",
        "4",
        "--stores",
        "stores",
    )
    done = storebench(folder, "run", *words, "--out", "run", XDG_CACHE_HOME=str(folder / "cache"))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("name", FAULTS)
def test_a_kernel_with_a_fault_fails_the_cell(honest: Path, tmp_path: Path, name: str) -> None:
    cell, right, wrong = FAULTS[name]
    source, cache = KERNEL.read_text(), tmp_path / "cache"
    assert right in source
    assert load_compiled(source.replace(right, wrong, 1), tmp_path / "scratch") is not None
    shutil.copytree(honest / "cache", cache)
    [kept], [faulty] = ([*folder.glob("*.so")] for folder in (cache / "storebench", tmp_path / "scratch"))
    shutil.copy(faulty, kept)
    words = (*cell, *SIZE, "--compute", "none", "--threads", "1", "--batch-size", "4")
    done = storebench(
        tmp_path, "run", *words, "--stores", honest / "stores", "--out", "run", XDG_CACHE_HOME=str(cache)
    )
    assert done.returncode == 5, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
