"""How long eviction and warming go on, on real files and the real kernel."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storebench.probes import page_cache, page_count
from storebench.probes.page_cache import COLD_MAX_FRAC, WARM_PASSES, evict, warm
from storebench.probes.page_count import PAGE_BYTES, resident

PAGES = 2000
"""Pages of the file. Cold tolerates 20 of them, which are not waited for."""

pytestmark = pytest.mark.still_pages


@pytest.fixture
def file(disk: Path) -> Iterator[Path]:
    path = disk / "two thousand pages"
    path.write_bytes(os.urandom(PAGES * PAGE_BYTES))
    evict([path])
    yield path
    path.unlink()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many pages were left after each attempt to evict, and let attempts follow without a wait."""
    count, seen = page_count.resident_by_file, list[int]()

    def noted(paths: list[Path | str]) -> dict[str, int]:
        found = count(paths)
        seen.append(sum(found.values()))
        return found

    monkeypatch.setattr(page_cache, "resident_by_file", noted)
    monkeypatch.setattr(page_cache, "_EVICT_WAITS_S", (0.0,) * 7)
    return seen


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the name of each file that gets an fsync."""
    names: list[str] = []
    sync = os.fsync

    def noted(fd: int) -> None:
        names.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        sync(fd)

    monkeypatch.setattr("storebench.probes.page_cache.os.fsync", noted)
    return names


def touched(path: Path, pages: int) -> mmap.mmap:
    """Map a file and touch some of its pages, and no others."""
    with path.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    assert all(mapped[page * PAGE_BYTES] is not None for page in range(0, 40 * pages, 40))
    return mapped


@pytest.mark.parametrize("pages", [1, 12, 20])
def test_a_few_mapped_pages_are_looked_at_twice(file: Path, counts: list[int], pages: int) -> None:
    with touched(file, pages):
        evict([file])
    assert counts == [pages, pages]


@pytest.mark.parametrize("pages", [21, 25])
def test_more_mapped_pages_are_waited_for_to_the_end(file: Path, counts: list[int], pages: int) -> None:
    assert pages > COLD_MAX_FRAC * PAGES
    with touched(file, pages):
        evict([file])
    assert counts == [pages] * 7


def test_many_files_are_written_back_together(disk: Path, counts: list[int], synced: list[str]) -> None:
    """Each fsync may commit the journal, so many files get one syncfs, and only those with pages left an fsync."""
    files = [disk / f"many-{number}" for number in range(100)]
    for path in files:
        path.write_bytes(os.urandom(PAGE_BYTES))  # dirty until it is written back
    evict(files)
    assert (synced, counts) == ([], [0])
    with touched(files[7], 1):
        evict(files)
    assert set(synced) == {"many-7"}


def test_warming_gives_up_where_pages_are_always_pushed_out(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, passes = page_cache._read, list[float | None]()

    def pushed_out(paths: list[Path], *, anew: bool) -> None:
        reading(paths, anew=anew)
        passes.append(resident(paths).frac)
        evict(paths)

    monkeypatch.setattr(page_cache, "_read", pushed_out)
    assert warm([file]).frac == 0.0
    assert passes == [1.0] * WARM_PASSES
