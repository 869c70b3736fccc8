"""What is evicted, read, counted and dropped for a cell's store, and when."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from storebench.formats import parse_backend
from storebench.probes.page_cache import Residency
from storebench.results import CacheFacts, CacheVerdict
from storebench.settings.words import CacheState
from storebench.worker import cache_state
from storebench.worker.cache_state import StoreCache

PAGES = 1000


class Kernel:
    """Stands for the page cache: what is asked of it, in order, and how many pages it says are resident."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.resident, self.asked = PAGES, list[str]()
        self.lost = list[int]()
        self.files = set[str]()
        monkeypatch.setattr(cache_state, "evict", self._evict)
        monkeypatch.setattr(cache_state, "warm", self._warm)
        monkeypatch.setattr(cache_state, "resident", self._count)
        monkeypatch.setattr(cache_state, "drop_caches", lambda: self.asked.append("drop"))

    def _evict(self, paths: Iterable[Path]) -> str:
        self.asked.append("evict")
        self.files |= {path.name for path in paths}
        return "fadvise"

    def _warm(self, paths: Iterable[Path], *, anew: bool) -> Residency:
        self.asked.append("read anew" if anew else "read")
        self.files |= {path.name for path in paths}
        return Residency(pages_total=PAGES, pages_resident=self.resident, method="cachestat")

    def _count(self, paths: Iterable[Path]) -> Residency:
        self.asked.append("count")
        self.files |= {path.name for path in paths}
        lost = self.lost.pop(0) if self.lost else 0
        return Residency(pages_total=PAGES, pages_resident=self.resident - lost, method="cachestat")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


def cache_of(state: CacheState, folder: Path, backend: str = "lmdb:direct", **options: Any) -> StoreCache:
    store = folder / "store"
    store.mkdir()
    (store / "data.mdb").write_bytes(b"x")
    (folder / ".store.pages").write_bytes(b"x")
    return StoreCache(state, parse_backend(backend), store, **({"drops": False} | options))


def test_a_warm_store_is_read_anew_once_and_then_only_topped_up(kernel: Kernel, tmp_path: Path) -> None:
    cache = cache_of(CacheState.WARM, tmp_path)
    first, later = (cache.prepare("epoch", first=first) for first in (True, False))
    assert kernel.asked == ["read anew", "count", "read", "count"]
    assert (first.method, later.method) == ("fadvise+read+cachestat", "read+cachestat")


@pytest.mark.parametrize(
    ("lost", "reads", "verdict"),
    [([10], 1, "verified"), ([11, 0], 2, "verified"), ([11, 11, 10], 3, "verified"), ([11] * 9, 3, "failed")],
)
def test_a_store_that_loses_pages_after_it_was_read_is_read_again(
    lost: list[int], reads: int, verdict: str, kernel: Kernel, tmp_path: Path
) -> None:
    """A machine that reclaims idle pages did so between the reading and the count, in 1 of 170 replicates."""
    kernel.lost = lost
    assert cache_of(CacheState.WARM, tmp_path).prepare("epoch").verdict == verdict
    assert kernel.asked == ["read anew", "count", *["read", "count"] * (reads - 1)]


def test_a_store_that_reading_does_not_warm_is_not_read_again(kernel: Kernel, tmp_path: Path) -> None:
    kernel.resident = PAGES // 2
    assert cache_of(CacheState.WARM, tmp_path).prepare("epoch").verdict is CacheVerdict.FAILED
    assert kernel.asked == ["read anew", "count"]


def test_the_index_that_a_reader_keeps_is_evicted_and_counted_too(kernel: Kernel, tmp_path: Path) -> None:
    kernel.resident = 0
    assert cache_of(CacheState.COLD, tmp_path).prepare("epoch").verdict is CacheVerdict.VERIFIED
    assert kernel.asked == ["evict", "count"]
    assert kernel.files == {"data.mdb", ".store.pages"}


@pytest.mark.parametrize(
    ("state", "asked"),
    [
        (CacheState.COLD, ["evict"]),
        (CacheState.LIMITED, ["evict"]),
        (CacheState.WARM, []),
        (CacheState.ANY, []),
    ],
)
def test_what_an_open_reader_maps_is_cold_before_it_opens(
    state: CacheState, asked: list[str], kernel: Kernel, tmp_path: Path
) -> None:
    assert cache_of(state, tmp_path).before_opening() is None
    assert kernel.asked == asked


@pytest.mark.parametrize(("resident", "last"), [(0, "drop"), (PAGES, "count")], ids=["cold", "not cold"])
def test_a_store_read_at_opening_drops_caches_only_if_it_is_cold(
    resident: int, last: str, kernel: Kernel, tmp_path: Path
) -> None:
    kernel.resident = resident
    facts = cache_of(CacheState.COLD, tmp_path, drops=True, read_at_opening=True).before_opening()
    assert isinstance(facts, CacheFacts)
    assert facts.applies_to == "open"
    assert (facts.verdict is CacheVerdict.VERIFIED) is (resident == 0)
    assert kernel.asked[-1] == last


@pytest.mark.parametrize(("state", "drops"), [(CacheState.COLD, True), (CacheState.WARM, False)])
def test_only_a_cold_cell_drops_the_machines_caches(
    state: CacheState, drops: bool, kernel: Kernel, tmp_path: Path
) -> None:
    kernel.resident = 0 if drops else PAGES
    cache = cache_of(state, tmp_path, drops=True)
    facts = cache.prepare("epoch")
    cache.drop()
    assert cache.drops is drops
    assert ("drop" in kernel.asked, "drop_caches" in facts.method) == (drops, drops)
    assert facts.metadata == ("cold" if drops else "hot")


def test_a_backend_that_reads_nothing_has_no_files_and_nothing_to_verify(
    kernel: Kernel, tmp_path: Path
) -> None:
    cache = cache_of(CacheState.COLD, tmp_path, "null", drops=True)
    facts = cache.prepare("epoch")
    cache.drop()
    assert (cache.files, cache.drops, kernel.asked) == ([], False, [])
    assert (facts.requested, facts.verdict, facts.method) == (
        CacheState.COLD,
        CacheVerdict.UNVERIFIED,
        "none",
    )
    assert (facts.resident_frac_before, facts.reason) == (None, "nothing is read")


def test_a_store_that_stays_resident_fails_with_the_cause_of_its_files(
    kernel: Kernel, tmp_path: Path
) -> None:
    facts = cache_of(CacheState.COLD, tmp_path).prepare("open")
    assert (facts.verdict, facts.applies_to) == (CacheVerdict.FAILED, "open")
    assert facts.reason.startswith(
        "100.0% of the store was resident, cold allows 1%; likely cause: another process"
    )


@pytest.mark.parametrize(
    ("state", "drops", "metadata"),
    [
        (CacheState.COLD, True, "cold"),
        (CacheState.COLD, False, "hot"),
        (CacheState.WARM, True, "hot"),
        (CacheState.ANY, False, "unknown"),
    ],
)
def test_directory_entries_are_cold_only_after_dropping(
    state: CacheState, drops: bool, metadata: str, kernel: Kernel, tmp_path: Path
) -> None:
    assert cache_of(state, tmp_path, drops=drops).prepare("epoch").metadata == metadata


def test_a_memory_backend_is_prepared_before_it_opens(kernel: Kernel, tmp_path: Path) -> None:
    kernel.resident = PAGES
    store = tmp_path / "store"
    store.mkdir()
    facts = StoreCache(CacheState.WARM, parse_backend("memory:native"), store, drops=False).before_opening()
    assert facts is not None
    assert (facts.applies_to, facts.verdict) == ("open", CacheVerdict.VERIFIED)
    assert kernel.asked == ["read anew", "count"]
