"""Statistics against scipy, against hand-computed cases, and by simulation at the sizes that we use."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from storebench import stats, student_t
from storebench.stats import Comparison, Verdict, compare, corrected, holm, median_interval
from storebench.units import Better

Draw = Callable[[np.random.Generator, tuple[int, ...]], npt.NDArray[np.float64]]

TRIALS = 3000
# Three standard errors of a share of 5% in that many trials.
SLACK = 3 * math.sqrt(0.05 * 0.95 / TRIALS)

DRAWS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(100, 5, shape),
    "heavy-tailed": lambda rng, shape: 100 * np.exp(0.05 * rng.standard_t(2, shape)),
    "skewed": lambda rng, shape: 100 * rng.lognormal(0, 0.5, shape),
}
both_sizes = pytest.mark.parametrize("count", [5, 15])
all_draws = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
called_different = (Verdict.FASTER, Verdict.SLOWER)


def comparisons(draw: Draw, count: int, ratio: float, *, paired: bool = True) -> list[Comparison]:
    rng = np.random.default_rng(2024)
    first, second = draw(rng, (TRIALS, count)), ratio * draw(rng, (TRIALS, count))
    return [compare(a, b, paired=paired) for a, b in zip(first, second, strict=True)]


@both_sizes
@all_draws
def test_the_interval_of_a_ratio_covers_the_truth_95_times_in_100(draw: Draw, count: int) -> None:
    found = comparisons(draw, count, 1.7)
    covered = np.mean([(one.low or 0) <= 1.7 <= (one.high or 0) for one in found])
    assert covered >= 0.95 - SLACK


@both_sizes
def test_on_normal_data_it_covers_no_more_than_it_says(count: int) -> None:
    found = comparisons(DRAWS["normal"], count, 1.7)
    covered = np.mean([(one.low or 0) <= 1.7 <= (one.high or 0) for one in found])
    assert covered <= 0.95 + SLACK


@both_sizes
@all_draws
def test_the_interval_of_the_median_covers_the_truth_95_times_in_100(draw: Draw, count: int) -> None:
    values = draw(np.random.default_rng(7), (TRIALS, count))
    intervals = [median_interval(row) for row in values]
    covered = np.mean(
        [interval is not None and interval.low <= 100 <= interval.high for interval in intervals]
    )
    assert covered >= 0.95 - SLACK


@pytest.mark.thinned("draw paired")
@pytest.mark.parametrize("count", [2, 3, 5, 15])
@pytest.mark.parametrize("paired", [True, False])
@all_draws
def test_a_against_a_is_called_different_in_at_most_5_of_100(draw: Draw, count: int, paired: bool) -> None:
    found = comparisons(draw, count, 1.0, paired=paired)
    assert np.mean([one.verdict in called_different for one in found]) <= 0.05 + SLACK


def test_at_most_5_of_100_tables_of_a_against_a_raise_an_alarm() -> None:
    cells = 40
    found = comparisons(DRAWS["normal"], 5, 1.0)
    tables = [corrected(found[at : at + cells]) for at in range(0, TRIALS, cells)]
    alarms = np.mean([any(one.verdict in called_different for one in table) for table in tables])
    uncorrected = np.mean(
        [
            any(one.verdict in called_different for one in found[at : at + cells])
            for at in range(0, TRIALS, cells)
        ]
    )
    assert alarms <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(tables))
    assert uncorrected > 0.5, "without Holm most tables would raise one"


@pytest.mark.parametrize("draw", [DRAWS["normal"], DRAWS["heavy-tailed"]], ids=["normal", "heavy-tailed"])
def test_a_fivefold_slow_down_is_called_slower_at_five_replicates(draw: Draw) -> None:
    found = comparisons(draw, 5, 1 / 5)
    assert np.mean([one.verdict is Verdict.SLOWER for one in found]) > 0.95


def test_a_fivefold_slow_down_survives_the_correction_over_forty_cells() -> None:
    slow = comparisons(DRAWS["normal"], 5, 1 / 5)[:50]
    same = comparisons(DRAWS["normal"], 5, 1.0)[:39]
    assert all(corrected([one, *same])[0].verdict is Verdict.SLOWER for one in slow)


def test_the_rank_test_of_other_tools_cannot_call_it_at_all() -> None:
    fast, slow = [1.0, 1.01, 1.02, 1.03, 1.04], [5.0, 5.1, 5.2, 5.3, 5.4]
    wilcoxon = scipy.stats.wilcoxon(np.log(slow) - np.log(fast)).pvalue
    assert wilcoxon > 0.05
    assert compare(fast, slow, better=Better.LOWER).verdict is Verdict.SLOWER


def test_a_percentile_bootstrap_would_cover_far_too_little_at_three() -> None:
    rng = np.random.default_rng(3)
    draws = rng.integers(0, 3, (300, 3))
    covered = []
    for first, second in zip(rng.normal(100, 5, (500, 3)), rng.normal(100, 5, (500, 3)), strict=True):
        ratios = np.median(second[draws], axis=1) / np.median(first[draws], axis=1)
        low, high = np.percentile(ratios, [2.5, 97.5])
        covered.append(low <= 1 <= high)
    assert np.mean(covered) < 0.85


def test_paired_p_value_and_interval_agree_with_scipy() -> None:
    rng = np.random.default_rng(5)
    first, second = rng.normal(100, 5, 7), rng.normal(104, 5, 7)
    logs = np.log(second) - np.log(first)
    expected = scipy.stats.ttest_1samp(logs, 0)
    interval = expected.confidence_interval(0.95)
    found = compare(first, second)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx(np.exp([interval.low, interval.high]), rel=1e-9)
    assert found.ratio == pytest.approx(scipy.stats.gmean(second / first))


def test_unpaired_agrees_with_scipys_welch_and_never_claims_more() -> None:
    rng = np.random.default_rng(6)
    first, second = rng.normal(100, 5, 12), rng.normal(108, 9, 9)
    expected = scipy.stats.ttest_ind(np.log(second), np.log(first), equal_var=False).pvalue
    found = compare(first, second, paired=False).p_value
    assert found is not None
    assert expected <= found <= 1.1 * expected


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 10, 29, 100])
def test_students_t_agrees_with_scipy(freedom: int) -> None:
    for t in (0.0, 0.1, 1.0, 2.5, 7.0, 40.0):
        assert student_t.t_two_sided(-t, freedom) == pytest.approx(
            2 * scipy.stats.t.sf(t, freedom), rel=1e-9, abs=1e-14
        )
    for share in (0.95, 0.975, 0.995):
        assert student_t.t_quantile(share, freedom) == pytest.approx(
            scipy.stats.t.ppf(share, freedom), rel=1e-9
        )


def test_holm_by_hand() -> None:
    # Sorted .005 .01 .03 .04 times 4 3 2 1 is .02 .03 .06 .04; never falling: .02 .03 .06 .06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.7, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_lies_between_the_raw_values_and_bonferroni(raw: list[float]) -> None:
    adjusted = holm(raw)
    assert all(p <= a <= min(1, len(raw) * p) for p, a in zip(raw, adjusted, strict=True))
    ordered = [a for _, a in sorted(zip(raw, adjusted, strict=True))]
    assert all(before <= after for before, after in itertools.pairwise(ordered))


def test_order_statistics_of_the_median_are_the_textbooks() -> None:
    # Ranks for 95%: n=6 the extremes, n=9 second, n=15 fourth (Conover, table A3).
    for count, rank in ((6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6)):
        values = np.arange(1.0, count + 1)
        interval = median_interval(values)
        assert interval is not None
        assert (interval.low, interval.high) == (rank, count + 1 - rank)
        within = scipy.stats.binom.cdf(count - rank, count, 0.5) - scipy.stats.binom.cdf(rank - 1, count, 0.5)
        assert within >= 0.95


def test_percentiles_are_durations_that_occurred() -> None:
    found = stats.percentiles(np.arange(1, 101)[::-1])
    assert (found.p50, found.p95, found.p99, found.max) == (50, 95, 99, 100)
    stalls = stats.percentiles([10] * 97 + [10_000] * 3)
    assert (stalls.p50, stalls.p95, stalls.p99, stalls.max) == (10, 10, 10_000, 10_000)


def test_the_direction_of_the_metric_decides_what_is_faster() -> None:
    slow, fast = [100.0, 101, 99, 100, 102], [200.0, 203, 198, 201, 204]
    assert compare(slow, fast, better=Better.HIGHER).verdict is Verdict.FASTER
    assert compare(slow, fast, better=Better.LOWER).verdict is Verdict.SLOWER
    assert compare(fast, slow, better=Better.HIGHER).verdict is Verdict.SLOWER
    assert compare(fast, slow, better=Better.LOWER).verdict is Verdict.FASTER
    with pytest.raises(ValueError, match="direction"):
        compare(slow, fast, better=Better.NEITHER)


def test_pairing_by_round_takes_out_a_machine_that_slows_down() -> None:
    machine = np.array([1.0, 0.9, 0.7, 0.5, 0.4])
    baseline, contender = 100 * machine, 110 * machine * [1.001, 0.999, 1, 1.002, 0.998]
    assert compare(baseline, contender).verdict is Verdict.FASTER
    assert compare(baseline, contender, paired=False).verdict is Verdict.INCONCLUSIVE


def test_narrow_around_one_is_no_difference_and_wide_is_inconclusive() -> None:
    base = np.array([100.0, 101, 99, 100, 100])
    assert compare(base, base[::-1] * 1.001).verdict is Verdict.NO_DIFFERENCE
    wide = compare(base, base * [1.5, 0.7, 1.2, 0.8, 1.1])
    assert wide.verdict is Verdict.INCONCLUSIVE
    assert compare(base, base[::-1] * 1.001, practical_frac=0.001).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize(
    ("end", "verdict"),
    [(1.09, Verdict.NO_DIFFERENCE), (1.11, Verdict.INCONCLUSIVE), (1.18, Verdict.INCONCLUSIVE)],
)
def test_equality_needs_an_interval_within_ten_percent_on_either_side(
    side: int, end: float, verdict: Verdict
) -> None:
    # Four rounds around a ratio of 1.02 (or 1/1.02), spread so that the far end of the interval lies at `end`.
    centre = math.log(1.02)
    half = (math.log(end) - centre) / (student_t.t_quantile(0.975, 3) * math.sqrt(4 / 3) / 2)
    logs = side * (centre + half * np.array([-1, 1, -1, 1]))
    found = compare(np.ones(4), np.exp(logs))
    far = found.high if side > 0 else found.low
    assert far == pytest.approx(end**side)
    assert found.verdict is verdict


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_rounds_decide_nothing(count: int) -> None:
    assert compare([1.0] * count, [5.0] * count).verdict is Verdict.INCONCLUSIVE
    assert compare([1.0] * count, [1.0] * count).verdict is Verdict.INCONCLUSIVE
    (one,) = stats.compare_family([([1.0] * count, [5.0] * count)])
    assert one.verdict is Verdict.INCONCLUSIVE
    assert stats.compare_family([([1.0] * 3, [5.0] * 3)])[0].verdict is Verdict.FASTER


def test_the_verdict_of_a_family_is_what_its_interval_says() -> None:
    rng = np.random.default_rng(11)
    pairs = [(rng.lognormal(0, 0.1, 5), rng.lognormal(0.1 * n, 0.1, 5)) for n in range(12)]
    found = stats.compare_family(pairs, size=40)
    assert {comparison.verdict for comparison in found} > {Verdict.FASTER}
    for one, (base, contender) in zip(found, pairs, strict=True):
        alone = compare(base, contender)
        assert one.low is not None
        assert one.high is not None
        assert (one.low > 1) is (one.verdict is Verdict.FASTER)
        assert one.low < (alone.low or 0) < (alone.high or 0) < one.high
        assert one.ratio == alone.ratio
        assert one.p_adjusted == pytest.approx(min(1.0, 40 * (alone.p_value or 0)))


def test_at_most_5_of_100_families_of_intervals_miss_the_truth() -> None:
    rng = np.random.default_rng(12)
    draws = rng.lognormal(0, 0.2, (400, 8, 2, 4))
    missed = [
        any(
            (comparison.low or 0) > 1 or (comparison.high or 9) < 1
            for comparison in stats.compare_family(list(map(tuple, table)))
        )
        for table in draws
    ]
    assert np.mean(missed) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(draws))


def test_an_interval_of_a_mean_agrees_with_scipy() -> None:
    values = [-0.4, 1.2, 0.3, 0.9]
    expected = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.99)
    found = stats.mean_interval(values, alpha=0.01)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert stats.mean_interval([1.0]) is None


def test_correction_takes_back_a_verdict_but_leaves_the_interval() -> None:
    weak = compare([100.0, 100, 101, 99, 100], [103.0, 101, 102, 103, 101])
    assert weak.verdict is Verdict.FASTER
    after = corrected([weak] * 40)[0]
    assert after.verdict is Verdict.NO_DIFFERENCE
    assert (after.low, after.high, after.p_value) == (weak.low, weak.high, weak.p_value)
    assert after.p_adjusted == pytest.approx(min(1, 40 * (weak.p_value or 0)))


def test_one_replicate_has_a_ratio_and_no_interval() -> None:
    found = compare([100.0], [500.0])
    assert (found.verdict, found.low, found.high, found.p_value) == (Verdict.INCONCLUSIVE, None, None, None)
    assert found.ratio == pytest.approx(5)
    assert "one replicate" in found.reason
    assert corrected([found]) == [found]
    assert median_interval([100.0]) is None
    assert stats.noise_floor_frac([100.0]) is None


def test_counters_that_repeat_exactly_are_compared_exactly() -> None:
    assert compare([7.0] * 5, [7.0] * 5).verdict is Verdict.NO_DIFFERENCE
    assert compare([7.0] * 5, [7.1] * 5, better=Better.LOWER).verdict is Verdict.SLOWER
    assert compare([7.0] * 5, [7.1] * 4, better=Better.LOWER, paired=False).verdict is Verdict.SLOWER


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_value_without_a_logarithm_has_no_ratio_and_says_so(bad: float) -> None:
    found = compare([1.0, 2.0], [1.0, bad])
    assert (found.ratio, found.verdict) == (None, Verdict.INCONCLUSIVE)
    assert "not positive" in found.reason


def test_sides_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="paired sides of 2 and 3"):
        compare([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="at least one"):
        compare([], [1.0], paired=False)


def test_the_noise_floor_is_where_twins_begin_to_differ() -> None:
    values = np.array([100.0, 104, 97, 101, 99])
    floor = stats.noise_floor_frac(values)
    assert floor is not None
    above = compare(values, values * (1 + 1.01 * floor), paired=False)
    below = compare(values, values * (1 + 0.99 * floor), paired=False)
    assert above.verdict is Verdict.FASTER
    assert below.verdict not in called_different


def test_two_replicates_have_a_noise_floor() -> None:
    assert stats.noise_floor_frac([100.0, 104.0]) == pytest.approx(
        math.expm1(4.3027 * math.log(1.04) / math.sqrt(2)), rel=1e-3
    )


def test_an_interval_that_reaches_zero_is_as_wide_as_can_be() -> None:
    assert stats.half_width_frac(0.0, 2.0) == math.inf
    assert stats.half_width_frac(0.5, 2.0) == pytest.approx(1.0)


def test_a_median_of_values_around_zero_has_an_interval_too() -> None:
    interval = median_interval([-1.0, 0.0, 2.0])
    assert interval is not None
    assert interval.low < 0 < interval.high


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("deviation", [0.05, 0.15])
def test_the_rounds_needed_tell_the_difference_in_80_percent(deviation: float, paired: bool) -> None:
    frac = 0.25
    rounds = stats.rounds_needed(deviation, frac, paired=paired)
    assert rounds is not None
    rng = np.random.default_rng(7)
    shape = (TRIALS, rounds)
    first = np.ones(shape) if paired else np.exp(rng.normal(0, deviation, shape))
    second = (1 + frac) * np.exp(rng.normal(0, deviation, shape))
    told = sum(
        compare(a, b, paired=paired).verdict is Verdict.FASTER for a, b in zip(first, second, strict=True)
    )
    assert told / TRIALS > 0.78
    assert rounds == stats.MIN_ROUNDS or told / TRIALS < 0.93  # and no more rounds than that take


def test_a_spread_that_no_number_of_rounds_tells_apart_has_no_answer() -> None:
    assert stats.rounds_needed(3.0, 0.01) is None
    assert stats.rounds_needed(0.0, 0.01) == stats.MIN_ROUNDS


def test_the_spread_is_that_of_the_logarithms() -> None:
    assert stats.spread([1.0, math.e]) == pytest.approx(math.sqrt(0.5))
    assert stats.spread([1.0]) is None
    assert stats.spread([1.0, 0.0]) is None


def test_the_median_of_two_far_values_at_a_strict_level_has_an_interval() -> None:
    interval = median_interval([270.0, 845.0], 0.0004)
    assert interval is not None
    assert 0 < interval.low < 1e-200
    assert 1e200 < interval.high < float("inf")


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=16), st.sampled_from([0.05, 0.02, 0.01, 0.002]))
def test_a_stricter_interval_of_a_median_is_never_narrower(values: list[float], alpha: float) -> None:
    wide, narrow = median_interval(values, alpha / 5), median_interval(values, alpha)
    assert wide is not None
    assert narrow is not None
    assert wide.low <= narrow.low * (1 + 1e-12)
    assert wide.high >= narrow.high * (1 - 1e-12)


def test_all_looks_together_spend_no_more_than_the_error() -> None:
    assert [stats.look_alpha(looks, 0.05) for looks in range(1, 5)] == pytest.approx(
        [0.04, 0.005, 0.0025, 0.00125]
    )
    assert sum(stats.look_alpha(looks) for looks in range(1, 60)) == pytest.approx(stats.ALPHA)
    halves = [stats.look_alpha(looks, by_precision=True) for looks in range(1, 5)]
    assert halves == pytest.approx([stats.look_alpha(looks) / 2 for looks in range(1, 5)])


def test_two_values_have_an_interval_of_their_mean_and_of_their_median() -> None:
    expected = scipy.stats.ttest_1samp([1.0, 3.0], 0).confidence_interval(0.95)
    mean, middle = stats.mean_interval([1.0, 3.0]), median_interval([-1.0, 3.0])
    assert mean is not None
    assert middle is not None
    assert (mean.low, mean.high) == pytest.approx((expected.low, expected.high))
    assert (middle.low + middle.high) / 2 == pytest.approx(1.0)


@pytest.mark.parametrize("count", [2, 3, 5, 7])
@pytest.mark.parametrize("factor", [1e-6, 0.5, 1e6])
def test_an_interval_of_a_median_does_not_depend_on_the_unit(count: int, factor: float) -> None:
    values = np.random.default_rng(8).lognormal(0, 0.4, count)
    plain, scaled = median_interval(values), median_interval(factor * values)
    assert plain is not None
    assert scaled is not None
    assert (scaled.low, scaled.high) == pytest.approx((factor * plain.low, factor * plain.high))


def test_rounds_are_paired_unless_told_otherwise_and_fewer_then() -> None:
    alone = stats.rounds_needed(0.3, 0.25)
    assert alone == stats.rounds_needed(0.3, 0.25, paired=True)
    assert alone is not None
    assert alone < (stats.rounds_needed(0.3, 0.25, paired=False) or 0)
