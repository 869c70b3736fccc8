"""Figures with intervals: units, medians, ratios turned round, and families of them."""

import math

import pytest

from storebench import stats
from storebench.report.intervals import (
    Estimate,
    Ratio,
    family,
    mean_interval,
    median_interval,
    ratio,
    ratios,
    telling,
    unpaired_ratio,
    unpaired_ratios,
)
from storebench.stats import Verdict

FASTER = Ratio(mid=2.0, lo=1.6, hi=2.5, n=4, verdict=Verdict.FASTER)


def rounds(*values: float, run: str = "run") -> dict[tuple[str, int], float]:
    return {(run, number): value for number, value in enumerate(values)}


def test_a_figure_in_another_unit_keeps_its_rounds_and_a_missing_end() -> None:
    scaled = Estimate(mid=2.0, lo=None, hi=3.0, n=5).scaled(1000)
    assert (scaled.mid, scaled.lo, scaled.hi, scaled.n) == (2000.0, None, 3000.0, 5)


def test_a_median_of_one_replicate_has_no_interval() -> None:
    alone, several = median_interval([3.0]), median_interval([3.0, 1.0, 2.0])
    assert (alone.mid, alone.lo, alone.hi, alone.n) == (3.0, None, None, 1)
    assert (several.mid, several.n) == (2.0, 3)
    assert several.lo is not None
    assert several.hi is not None
    assert several.lo <= 1.0
    assert several.hi >= 3.0


def test_the_interval_of_a_mean_may_hold_zero_and_grows_with_confidence() -> None:
    wide, narrow = (mean_interval([-1.0, 0.0, 1.5], alpha) for alpha in (0.01, 0.2))
    assert wide.mid == narrow.mid == pytest.approx(0.5 / 3)
    assert wide.lo is not None
    assert narrow.lo is not None
    assert wide.lo < narrow.lo < 0


def test_a_ratio_turned_round_has_its_ends_and_its_verdict_exchanged() -> None:
    turned = FASTER.inverted()
    assert (turned.mid, turned.lo, turned.hi, turned.n) == pytest.approx((0.5, 0.4, 1 / 1.6, 4))
    assert turned.verdict is Verdict.SLOWER
    assert turned.inverted() == FASTER
    open_end = Ratio(mid=2.0, lo=None, hi=4.0).inverted()
    assert (open_end.lo, open_end.hi, open_end.verdict) == (0.25, None, Verdict.INCONCLUSIVE)


def test_a_ratio_of_times_above_one_is_slower() -> None:
    times = FASTER.in_times()
    assert (times.mid, times.lo, times.hi, times.verdict) == (2.0, 1.6, 2.5, Verdict.SLOWER)


@pytest.mark.parametrize(
    ("lo", "hi", "n", "equal"),
    [
        (0.95, 1.05, 3, True),
        (0.95, 1.05, 2, False),
        (0.80, 1.05, 3, False),
        (0.95, 1.20, 3, False),
        (None, 1.05, 3, False),
    ],
)
def test_equality_needs_three_rounds_and_an_interval_within_a_tenth(
    lo: float | None, hi: float | None, n: int, equal: bool
) -> None:
    assert Ratio(mid=1.0, lo=lo, hi=hi, n=n).equal is equal


def test_only_faster_and_slower_are_proven() -> None:
    proven = {verdict for verdict in Verdict if Ratio(mid=1.0, verdict=verdict).proven}
    assert proven == {Verdict.FASTER, Verdict.SLOWER}


def test_sides_are_paired_by_the_rounds_that_both_have() -> None:
    found = ratio(rounds(20.0, 40.0, 60.0, 1e9), rounds(10.0, 20.0, 30.0))
    assert found is not None
    assert (found.n, found.mid) == (3, pytest.approx(2.0))
    assert ratio(rounds(1.0, run="a"), rounds(1.0, run="b")) is None


def test_each_ratio_of_a_table_is_wider_for_the_others_beside_it() -> None:
    noisy = (rounds(21.0, 40.0, 57.0), rounds(10.0, 20.0, 30.0))
    (alone,), several = ratios([noisy]), ratios([noisy, noisy, noisy])
    assert alone is not None
    assert several[0] is not None
    assert (alone.lo or 0.0) > (several[0].lo or 0.0)
    (within,) = family([noisy], size=3, alpha=stats.ALPHA)
    assert within == several[0]


def test_a_pair_without_a_common_round_keeps_its_place_in_a_family() -> None:
    good = (rounds(2.0, 2.0, 2.0), rounds(1.0, 1.0, 1.0))
    found = family([({}, {}), good], size=2, alpha=stats.ALPHA)
    assert found[0] is None
    assert found[1] is not None
    assert found[1].mid == pytest.approx(2.0)


def test_separate_runs_are_compared_without_pairing_their_rounds() -> None:
    top, bottom = rounds(20.0, 22.0, 24.0, run="a"), rounds(12.0, 11.0, 10.0, run="b")
    found, nothing = unpaired_ratios([(top, bottom), (top, {})], alpha=stats.ALPHA)
    assert nothing is None
    assert found is not None
    assert found.mid == pytest.approx(2.0, rel=0.01)
    assert found.verdict is Verdict.FASTER


def test_each_ratio_of_separate_runs_is_as_wide_as_their_number_demands() -> None:
    pair = (rounds(20.0, 22.0, 24.0, run="a"), rounds(12.0, 11.0, 10.0, run="b"))
    for count in (1, 2, 5):
        found = unpaired_ratios([pair] * count, alpha=0.05)
        assert found == [unpaired_ratio([20, 22, 24], [12, 11, 10], alpha=0.05 / count)] * count
    assert unpaired_ratios([({}, pair[1]), pair], alpha=0.05)[0] is None


def test_the_other_sign_exchanges_the_ends() -> None:
    whole = Estimate(mid=2.0, lo=-1.0, hi=3.0, n=5)
    turned = whole.negated()
    assert (turned.mid, turned.lo, turned.hi, turned.n) == (-2.0, -3.0, 1.0, 5)
    assert turned.negated() == whole
    low, high = Estimate(mid=2.0, lo=1.0).negated(), Estimate(mid=2.0, hi=3.0).negated()
    assert (low.lo, low.hi, high.lo, high.hi) == (None, -1.0, -3.0, None)


@pytest.mark.parametrize(
    ("verdict", "of_times"),
    [
        (Verdict.FASTER, Verdict.SLOWER),
        (Verdict.SLOWER, Verdict.FASTER),
        (Verdict.NO_DIFFERENCE, Verdict.NO_DIFFERENCE),
        (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE),
    ],
)
def test_a_verdict_on_rates_is_the_opposite_one_on_times(verdict: Verdict, of_times: Verdict) -> None:
    one = Ratio(mid=2.0, lo=1.6, hi=2.5, n=4, verdict=verdict)
    assert (one.in_times().verdict, one.inverted().verdict) == (of_times, of_times)


@pytest.mark.parametrize(
    ("lo", "hi", "known"),
    [
        (None, None, False),
        (1.0, None, False),
        (None, 1.0, False),
        (1.0, math.inf, False),
        (-math.inf, 1.0, False),
        (math.nan, 1.0, False),
        (1.0, 100.0, True),
        (1.0, 100.1, False),
        (0.5, 50.0, True),
        (0.0, 5000.0, True),
        (-1.0, 5000.0, True),
    ],
)
def test_ends_that_differ_by_more_than_a_hundredfold_tell_nothing(
    lo: float | None, hi: float | None, known: bool
) -> None:
    assert telling(lo, hi) is known
    assert Estimate(mid=1.0, lo=lo, hi=hi).known is known
    assert Ratio(mid=1.0, lo=lo, hi=hi).known is known
    assert Ratio(mid=1.0, lo=lo, hi=hi, verdict=Verdict.FASTER).known
