"""What is said of a counted cache: exact words and figures, from counts that are given."""

import pytest

from storebench.probes.page_cache import cache_facts
from storebench.probes.page_count import Residency
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
        (
            "cold",
            1234,
            (
                "12.3% of the store was resident, cold allows 1%; "
                "likely cause: another process reads, writes or maps these files"
            ),
        ),
        ("any", 1234, "no cache state was requested"),
        ("cold", None, "resident pages cannot be counted: no kernel"),
        ("warm", None, "resident pages cannot be counted: no kernel"),
    ],
)
def test_the_reason_is_told_with_its_figures(requested: str, pages: int | None, reason: str) -> None:
    assert cache_facts(CacheState(requested), counted(pages)).reason == reason


def test_a_count_of_exactly_the_limit_is_within_it() -> None:
    verdicts = [
        cache_facts(CacheState(state), counted(pages)).verdict.value
        for state, pages in (("cold", 100), ("cold", 101), ("warm", 9900), ("warm", 9899))
    ]
    assert verdicts == ["verified", "failed", "verified", "failed"]
