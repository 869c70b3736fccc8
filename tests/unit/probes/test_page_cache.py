"""The page cache of real files on the real kernel: counted, evicted, filled, judged."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storebench.probes import page_count
from storebench.probes.machine import mount_of
from storebench.probes.page_cache import cache_facts, evict, warm
from storebench.probes.page_count import PAGE_BYTES, resident
from storebench.settings.words import CacheState

pytestmark = pytest.mark.still_pages


def test_a_file_that_was_just_written_and_never_synced_can_be_evicted(disk: Path) -> None:
    path = disk / "dirty"
    path.write_bytes(os.urandom(8 << 20))
    assert resident([path]).frac == 1.0
    evict([path])
    assert resident([path]).pages_resident == 0


def test_cachestat_and_mincore_agree_on_a_partly_resident_file(big_file: Path) -> None:
    evict([big_file])
    with big_file.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for page in range(0, 3000, 100):
            os.pread(file.fileno(), 10, page * PAGE_BYTES)
        size = big_file.stat().st_size
        found = page_count._mincore(file.fileno(), size)
        assert found == resident([big_file]).pages_resident
        assert 30 <= found < 3000


@pytest.mark.parametrize("size", [1, PAGE_BYTES, PAGE_BYTES + 1])
def test_a_last_page_counts_once_and_nothing_beyond_the_end(disk: Path, size: int) -> None:
    path = disk / f"odd{size}"
    path.write_bytes(b"x" * size)
    found = resident([path])
    assert found.pages_total == found.pages_resident == -(-size // PAGE_BYTES)


def test_warming_anew_reads_a_resident_file_again(big_file: Path, own_read_bytes: Callable[[], int]) -> None:
    warm([big_file])
    before = own_read_bytes()
    warm([big_file])
    assert own_read_bytes() - before < 0.05 * big_file.stat().st_size
    warm([big_file], anew=True)
    assert own_read_bytes() - before >= big_file.stat().st_size
    assert (resident([big_file]).frac or 0) >= 0.99


def test_cold_cannot_exist_on_tmpfs(shm: Path) -> None:
    evict([shm])
    facts = cache_facts(CacheState.COLD, resident([shm]), paths=[shm], how="fadvise")
    assert facts.verdict == "failed"
    assert "cold cannot exist on tmpfs" in facts.reason


def test_a_store_without_pages_is_unverified(disk: Path) -> None:
    path = disk / "nothing"
    path.touch()
    facts = cache_facts(CacheState.COLD, resident([path]), paths=[path])
    assert facts.verdict == "unverified"
    assert "no pages" in facts.reason


AS_NOBODY = """
import os, sys
from storebench.probes.page_cache import evict, warm
from storebench.probes.page_count import resident
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
own, foreign = sys.argv[1:]
with open(own, "wb") as file:
    file.write(b"x" * 100_000)
print(resident([own]).frac, evict([own]), resident([own]).frac, warm([own]).frac, resident([own]).frac)
found = resident([foreign])
print(found.pages_resident, found.reason)
"""


@pytest.fixture
def open_folder(root: None, disk: Path) -> Iterator[Path]:
    """Folder on a disk that every user may enter and write, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if mount_of(folder).fstype != mount_of(disk).fstype:
            pytest.skip("the folder for temporary files is on no disk")
        folder.chmod(0o777)
        yield folder


def test_without_root_files_are_evicted_counted_and_warmed(
    open_folder: Path, python: Callable[..., str]
) -> None:
    foreign = open_folder / "foreign"
    foreign.write_bytes(b"x" * 100_000)
    foreign.chmod(0o644)
    evict([foreign])
    states, found = python(AS_NOBODY, open_folder / "own", foreign).splitlines()
    assert states == "1.0 fadvise 0.0 1.0 1.0"
    # The truth (0 of 25) or an honest unknown; mincore alone would have said 25.
    assert found == "0 " or (found.startswith("None ") and len(found) > 10)


@pytest.mark.root
def test_through_overlayfs_pages_are_counted_and_evicted(root: None, disk: Path) -> None:
    folders = {name: disk / "overlay" / name for name in ("lower", "upper", "work", "merged")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    (folders["lower"] / "file").write_bytes(os.urandom(4 << 20))
    options = "lowerdir={lower},upperdir={upper},workdir={work}".format(**folders)
    mounted = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, str(folders["merged"])],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"overlayfs cannot be mounted: {mounted.stderr.decode().strip()}")
    try:
        path = folders["merged"] / "file"
        warm([path])
        assert mount_of(path).fstype == "overlay"
        assert resident([path]).frac == 1.0, "cachestat through overlayfs would say 0"
        evict([path])
        assert resident([path]).pages_resident == 0
        assert resident([folders["lower"] / "file"]).pages_resident == 0
    finally:
        subprocess.run(["umount", str(folders["merged"])], check=True)
