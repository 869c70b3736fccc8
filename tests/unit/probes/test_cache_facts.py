"""What is said of a counted cache: exact words and figures, from counts that are given."""

import os
import re
from pathlib import Path

import pytest

from storebench.probes.page_cache import (
    PAGE_BYTES,
    Residency,
    cache_facts,
)
from storebench.settings.words import CacheState

GIB = 1 << 30


def counted(pages: int | None, total: int = 10_000, method: str = "cachestat") -> Residency:
    reason = "" if pages is not None else "no kernel"
    return Residency(pages_total=total, pages_resident=pages, method=method, reason=reason)


def test_what_was_not_done_is_in_no_method() -> None:
    facts = cache_facts(CacheState.COLD, counted(0))
    assert (facts.method, facts.applies_to, facts.resident_frac_after) == ("cachestat", "epoch", None)
    assert cache_facts(CacheState.COLD, counted(0), how="fadvise").method == "fadvise+cachestat"
    assert cache_facts(CacheState.WARM, counted(None, method="unknown"), how="read").method == "read"
    assert cache_facts(CacheState.ANY, counted(None, method="none")).method == "none"
    assert cache_facts(CacheState.COLD, counted(0), applies_to="open").applies_to == "open"


@pytest.mark.parametrize(
    ("requested", "pages", "reason"),
    [
        ("cold", 0, ""),
        ("cold", 1234, "12.3% of the store was resident, cold allows 1%"),
        ("any", 1234, "no cache state was requested"),
        ("cold", None, "resident pages cannot be counted: no kernel"),
        ("warm", None, "resident pages cannot be counted: no kernel"),
    ],
)
def test_the_reason_is_told_with_its_figures(requested: str, pages: int | None, reason: str) -> None:
    assert cache_facts(CacheState(requested), counted(pages)).reason == reason


def test_a_warm_failure_tells_the_memory_that_was_needed_and_is_free() -> None:
    reason = cache_facts(CacheState.WARM, counted(10, total=3 * GIB // 2 // PAGE_BYTES)).reason
    told = re.fullmatch(
        r"0\.0% of the store was resident, warm needs 99%; likely cause: memory \(the store has 1\.50 GiB, "
        r"(\d+\.\d\d) GiB are free, and a control group may allow less\) or reclaim of idle pages "
        r"\(see 'storebench doctor'\)",
        reason,
    )
    assert told is not None, reason
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    assert float(told[1]) == pytest.approx(free, rel=0.5, abs=0.3)


def test_a_cold_failure_tells_the_likely_cause(disk: Path) -> None:
    path = disk / "nobody maps this"
    path.write_bytes(b"x" * PAGE_BYTES)
    assert cache_facts(CacheState.COLD, counted(500), paths=[path]).reason == (
        "5.0% of the store was resident, cold allows 1%; "
        "likely cause: another process is reading or writing these files"
    )


@pytest.mark.parametrize(("pages", "advised"), [(1, True), (64, True), (65, False), (5000, False)])
def test_a_store_of_few_pages_is_told_to_have_more_samples(disk: Path, pages: int, advised: bool) -> None:
    """An open reader maps up to 64 pages, which are more than 1% of a small store."""
    path = disk / "small"
    path.write_bytes(b"x" * PAGE_BYTES)
    total = pages * 50
    reason = cache_facts(CacheState.COLD, counted(pages, total=total), paths=[path]).reason
    assert reason.startswith("2.0% of the store was resident, cold allows 1%; likely cause: ")
    advice = reason.partition(";")[2].partition("; ")[2]
    assert bool(advice) is advised
    if advised:
        noun = "1 page" if pages == 1 else f"{pages} pages"
        assert re.fullmatch(
            rf"the store has only [\d.]+ [KM]iB, of which {noun} are too many: "
            r"use more samples \(--size N extends a dataset\)",
            advice,
        ), advice


def test_a_count_of_exactly_the_limit_is_within_it() -> None:
    verdicts = [
        cache_facts(CacheState(state), counted(pages)).verdict.value
        for state, pages in (("cold", 100), ("cold", 101), ("warm", 9900), ("warm", 9899))
    ]
    assert verdicts == ["verified", "failed", "verified", "failed"]
