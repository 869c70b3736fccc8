"""The one comparison: its interval against scipy, its verdicts as a table."""

import importlib
import math
from typing import Any

import numpy as np
import pytest

from storebench.analysis.comparison import Verdict, compare, estimate, rounds_needed, t_quantile
from storebench.units import Better

EVEN = [100.0, 101.0, 99.0, 100.5, 99.5]


def scaled(factor: float, wobble: float = 0.0) -> list[float]:
    return [
        value * factor * math.exp(wobble * sign) for value, sign in zip(EVEN, (1, -1, 1, -1, 0), strict=True)
    ]


@pytest.mark.parametrize(
    ("contender", "better", "verdict"),
    [
        (scaled(1.5, 0.01), Better.HIGHER, Verdict.FASTER),
        (scaled(1.5, 0.01), Better.LOWER, Verdict.SLOWER),
        (scaled(0.6, 0.01), Better.LOWER, Verdict.FASTER),
        (scaled(1.02, 0.01), Better.HIGHER, Verdict.EQUAL),
        (scaled(1.11, 0.01), Better.HIGHER, Verdict.UNDECIDED),
        (scaled(1.09, 0.0001), Better.HIGHER, Verdict.EQUAL),
        (scaled(1.25, 0.2), Better.HIGHER, Verdict.UNDECIDED),
    ],
)
def test_verdicts(contender: list[float], better: Better, verdict: Verdict) -> None:
    assert compare(EVEN, contender, better=better).verdict is verdict


@pytest.fixture(scope="module")
def stats() -> Any:
    return importlib.import_module("scipy.stats")  # which takes longer than all other imports but torch


@pytest.mark.parametrize(("wobble", "level"), [(0.02, 0.95), (0.10, 0.95), (0.25, 0.99)])
def test_the_interval_is_students(wobble: float, level: float, stats: Any) -> None:
    contender = scaled(2.0, wobble)
    found = compare(EVEN, contender)
    logs = np.log(contender) - np.log(EVEN)
    low, high = stats.ttest_1samp(logs, 0).confidence_interval(level)
    assert found.level == level
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert found.mid == pytest.approx(math.exp(logs.mean()))


def test_fewer_than_five_rounds_decide_nothing() -> None:
    assert compare(EVEN[:4], scaled(140)[:4]).verdict is Verdict.UNDECIDED
    assert compare(EVEN, scaled(140)).verdict is Verdict.FASTER


@pytest.mark.parametrize("values", [[0.0, 1, 1, 1, 1], [math.inf, 1, 1, 1, 1], [math.nan, 1, 1, 1, 1]])
def test_values_without_a_ratio(values: list[float]) -> None:
    found = compare(EVEN, values)
    assert (found.mid, found.low, found.verdict) == (None, None, Verdict.UNDECIDED)


def test_quantiles_and_intervals_against_scipy(stats: Any) -> None:
    for freedom in (1, 2, 3, 4, 9, 30):
        assert t_quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
    low, high = stats.ttest_1samp(np.log(EVEN), 0).confidence_interval()
    found = estimate(EVEN)
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert (estimate([3.0]).mid, estimate([3.0]).low) == (3.0, None)


def test_rounds_needed_reach_their_power() -> None:
    rounds = rounds_needed(0.12, 0.25)
    assert rounds is not None
    random = np.random.default_rng(1)
    told = [
        compare(
            np.ones(rounds), np.exp(random.normal(math.log(1.25), 0.12, rounds)), practical_frac=0.0
        ).verdict
        for _ in range(1000)
    ]
    assert told.count(Verdict.FASTER) / 1000 == pytest.approx(0.8, abs=0.08)
    assert rounds_needed(5.0, 0.01) is None
