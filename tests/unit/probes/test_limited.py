"""Counts of a limited page cache between two epochs."""

from typing import Any, cast

import pytest

from storebench.probes import limited
from storebench.probes.limited import LimitedCache
from storebench.probes.page_count import PAGE_BYTES, Residency


@pytest.mark.parametrize(("found", "stands"), [((60, 49, 70), 49), ((40, 60), 40), ((60,) * 9, 60)])
def test_a_count_above_the_limit_is_repeated(
    found: tuple[int, ...], stands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter(found)

    def resident(_: object) -> Residency:
        return Residency(pages_total=100, pages_resident=next(counts), method="planted")

    monkeypatch.setattr(limited, "resident", resident)
    cache = LimitedCache(cast("Any", None), 50 * PAGE_BYTES, [])
    assert cache.count().pages_resident == stands
