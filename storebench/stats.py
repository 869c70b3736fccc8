"""Medians, intervals, paired comparisons and verdicts over replicates: pure functions.

docs/statistics.md explains the methods and the simulations behind them. In short:
replicates, not steps, are the samples; a ratio is compared round by round, on
logarithms, by Student's t; a table has Holm's correction.
"""

import bisect
import dataclasses
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storebench.arrays import Floats
from storebench.results import Percentiles
from storebench.student_t import t_quantile, t_test
from storebench.units import Better

ALPHA = 0.05
PRACTICAL_FRAC = 0.10
"""A smaller difference is not worth a change of format, unless a policy says otherwise."""

MIN_ROUNDS = 3
"""With fewer rounds nothing is decided, in `storebench report`, `storebench.compare` and `storebench check`."""

POWER = 0.8
"""Probability of detecting a true difference, for `rounds_needed`."""

MOST_ROUNDS = 200
"""Upper limit of `rounds_needed`."""

ADDED_ROUNDS_FRAC = 0.5
"""Share of the permitted error that remains where a run added rounds until its intervals were narrow enough.

An interval that is narrow by chance ends such a run early, so the same error would be exceeded. The share is chosen by
simulation (docs/statistics.md).
"""

_FEWEST_FOR_ORDER = 6
"""With fewer, no distribution-free interval of the median reaches 95%: [min, max] of 5 covers 93.75%."""

_MOST_LOGARITHM = 700.0
"""A float overflows just above."""

Values = Sequence[float] | npt.NDArray[np.floating]


class Verdict(enum.StrEnum):
    """The result of a comparison, about the contender."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no detectable difference"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A confidence interval, with a level of 95% unless another one was requested."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Contender against baseline.

    Attributes
    ----------
    ratio
        Contender over baseline: the geometric mean of the rounds' ratios; None if there is no ratio.
    low, high
        Confidence interval of `ratio`, for this comparison alone; None below two replicates.
    p_value
        Two-sided p-value of "the ratio is 1"; None below two replicates.
    p_adjusted
        `p_value` after Holm's correction over a table (`corrected`); else `p_value`.
    rounds
        Number of pairs, or the smaller side's replicates if the sides are not paired.
    better
        The direction of the metric that is an improvement.
    practical_frac
        Distance from 1 within which an interval means "no detectable difference".
    reason
        Why there is no ratio or no interval, or "".
    """

    ratio: float | None
    low: float | None
    high: float | None
    p_value: float | None
    p_adjusted: float | None
    rounds: int
    better: Better
    practical_frac: float
    alpha: float
    verdict: Verdict
    reason: str = ""


def median(values: Values) -> float:
    """Return the median."""
    return float(np.median(np.asarray(values, np.float64)))


def percentiles(durations_ns: npt.ArrayLike) -> Percentiles:
    """Return p50, p95, p99 and the longest of some durations; each is a duration that occurred."""
    array = np.asarray(durations_ns)
    p50, p95, p99 = np.percentile(array, [50, 95, 99], method="inverted_cdf")
    return Percentiles(p50=int(p50), p95=int(p95), p99=int(p99), max=int(array.max()))


def median_interval(values: Values, alpha: float = ALPHA) -> Interval | None:
    """Return a confidence interval of the median over replicates; None for a single replicate.

    From 6 replicates on, this is the exact interval between order statistics, valid for every
    distribution. Below, it is Student's t, on logarithms if all values are positive. Where even the
    smallest and the largest value do not cover the median often enough for `alpha`, it is the
    smallest interval that holds them and Student's: a smaller `alpha` never gives a narrower one.
    """
    array = np.sort(np.asarray(values, np.float64))
    count = len(array)
    if count < 2:
        return None
    if count >= _FEWEST_FOR_ORDER and (rank := _order_rank(count, alpha)):
        return Interval(low=float(array[rank - 1]), high=float(array[count - rank]))
    if array[0] > 0:
        centre, half, _ = _student(np.log(array), alpha)
        found = Interval(low=_exp(centre - half), high=_exp(centre + half))
    else:
        centre, half, _ = _student(array, alpha)
        found = Interval(low=centre - half, high=centre + half)
    if count < _FEWEST_FOR_ORDER:
        return found
    return Interval(low=min(found.low, float(array[0])), high=max(found.high, float(array[-1])))


def _order_rank(count: int, alpha: float) -> int:
    """Return the largest r for which [r-th smallest, r-th largest] covers the median often enough, or 0."""
    tail, rank = 0.0, 0
    for below in range(count // 2):
        tail += math.comb(count, below) / 2**count
        if 2 * tail > alpha:
            break
        rank = below + 1
    return rank


def noise_floor_frac(values: Values, alpha: float = ALPHA) -> float | None:
    """Return the smallest difference that a comparison of a cell with itself could call, as a share.

    0.08 means that two runs of the same cell, with as many replicates each, have to differ
    by 8% before the difference is distinguishable from noise. None below two replicates, or
    if a value is not positive.
    """
    array = np.asarray(values, np.float64)
    if len(array) < 2 or not _positive(array):
        return None
    spread = float(np.log(array).std(ddof=1)) * math.sqrt(2 / len(array))
    return math.expm1(t_quantile(1 - alpha / 2, 2 * len(array) - 2) * spread)


def spread(values: Values) -> float | None:
    """Return the standard deviation of the values' logarithms; None below two values, or if one is not positive."""
    array = np.asarray(values, np.float64)
    return float(np.log(array).std(ddof=1)) if len(array) >= 2 and _positive(array) else None


def rounds_needed(
    spread: float, frac: float, *, alpha: float = ALPHA, power: float = POWER, paired: bool = True
) -> int | None:
    """Return the number of rounds that detect a true difference of `frac` with probability `power`.

    Parameters
    ----------
    spread
        Standard deviation of the logarithm: of the rounds' ratios if `paired`, else of one side's replicates.
    frac
        The difference as a share: 0.25 means a ratio of 1.25.

    Returns
    -------
    int or None
        At least `MIN_ROUNDS`, per side; None if `MOST_ROUNDS` are too few.
    """

    def tells(rounds: int) -> bool:
        freedom = rounds - 1 if paired else 2 * rounds - 2
        error = spread * math.sqrt((1 if paired else 2) / rounds)
        return (t_quantile(1 - alpha / 2, freedom) + t_quantile(power, freedom)) * error <= math.log1p(frac)

    candidates = range(MIN_ROUNDS, MOST_ROUNDS + 1)
    position = bisect.bisect_left(candidates, True, key=tells)
    return candidates[position] if position < len(candidates) else None


def compare(
    baseline: Values,
    contender: Values,
    *,
    better: Better = Better.HIGHER,
    paired: bool = True,
    practical_frac: float = PRACTICAL_FRAC,
    alpha: float = ALPHA,
) -> Comparison:
    """Compare one metric of two cells over their replicates.

    Parameters
    ----------
    baseline, contender
        One value per replicate; if `paired`, entry i of both is from round i.
    better
        "faster" means larger values for HIGHER and smaller ones for LOWER.
    paired
        Whether the two sides ran interleaved in the same rounds. Two separate runs
        are not paired, and are compared by Welch's test.

    Raises
    ------
    ValueError
        Paired sides of different lengths, an empty side, or a metric without a better direction.
    """
    first, second = np.asarray(baseline, np.float64), np.asarray(contender, np.float64)
    _check(first, second, better, paired=paired)
    rounds = min(len(first), len(second))
    blank = _undecided(rounds, better, practical_frac, alpha)
    if not (_positive(first) and _positive(second)):
        return dataclasses.replace(blank, reason="a value is not positive, so there is no ratio")
    centre = float(np.log(second).mean() - np.log(first).mean())
    if rounds < 2:
        return dataclasses.replace(
            blank, ratio=math.exp(centre), reason="one replicate shows no spread: run more"
        )
    if paired:
        _, half, p_value = _student(np.log(second) - np.log(first), alpha)
    else:
        half, p_value = _welch(np.log(first), np.log(second), alpha)
    return _with_interval(blank, centre, half, p_value)


def comparison_of(
    centre: float,
    error: float,
    freedom: int,
    *,
    rounds: int,
    better: Better,
    practical_frac: float = PRACTICAL_FRAC,
    alpha: float = ALPHA,
) -> Comparison:
    """Return the comparison that an estimate of the ratio's logarithm gives, by Student's t.

    Parameters
    ----------
    centre, error
        The estimate and its standard error.
    freedom
        Degrees of freedom of the error, at least 1.
    rounds
        Replicates of the side that has fewer.
    """
    blank = _undecided(rounds, better, practical_frac, alpha)
    return _with_interval(blank, centre, *t_test(centre, error, freedom, alpha))


def _undecided(rounds: int, better: Better, practical_frac: float, alpha: float) -> Comparison:
    return Comparison(
        ratio=None,
        low=None,
        high=None,
        p_value=None,
        p_adjusted=None,
        rounds=rounds,
        better=better,
        practical_frac=practical_frac,
        alpha=alpha,
        verdict=Verdict.INCONCLUSIVE,
    )


def _with_interval(blank: Comparison, centre: float, half: float, p_value: float) -> Comparison:
    """Return the comparison with its ratio, interval and verdict; `centre` and `half` are logarithms."""
    return _judged(
        dataclasses.replace(
            blank,
            ratio=math.exp(centre),
            low=_exp(centre - half),
            high=_exp(centre + half),
            p_value=p_value,
            p_adjusted=p_value,
        )
    )


def compare_family(
    pairs: Sequence[tuple[Values, Values]],
    *,
    size: int | None = None,
    better: Better = Better.HIGHER,
    practical_frac: float = PRACTICAL_FRAC,
    alpha: float = ALPHA,
) -> list[Comparison]:
    """Compare (baseline, contender) pairs, paired by round, with intervals that hold all at once.

    Each interval has the level ``1 - alpha / size`` (Bonferroni), so with probability
    ``1 - alpha`` every one of them contains the true ratio, and every statement read from them is
    true. A verdict and its interval are one statement: "faster" and "slower" exclude 1.

    Parameters
    ----------
    size
        Number of comparisons in the family, if these pairs are only a part of it; None counts the pairs.
    """
    count = max(1, len(pairs) if size is None else size)
    judged = []
    for baseline, contender in pairs:
        comparison = compare(
            baseline, contender, better=better, practical_frac=practical_frac, alpha=alpha / count
        )
        if comparison.p_value is not None:
            comparison = dataclasses.replace(comparison, p_adjusted=min(1.0, comparison.p_value * count))
        judged.append(_judged(dataclasses.replace(comparison, alpha=alpha)))
    return judged


FIRST_LOOK_FRAC = 0.8
"""Share of the permitted error that the first look at a run may spend; the rest is for later looks."""


def look_alpha(looks: int, alpha: float = ALPHA, *, by_precision: bool = False) -> float:
    """Return the error that the `looks`-th look at a run may spend.

    Rounds that are added after looking give chance another try. The first look spends `FIRST_LOOK_FRAC`
    of `alpha` and each later one half of the remainder, so all looks together stay below `alpha`.

    Parameters
    ----------
    by_precision
        Whether the run itself added rounds until its intervals were narrow enough (`storebench.rounds`). All looks of
        that rule together are one look, with `ADDED_ROUNDS_FRAC` of its error.
    """
    share = ADDED_ROUNDS_FRAC if by_precision else 1.0
    if looks <= 1:
        return share * alpha * FIRST_LOOK_FRAC
    return share * alpha * (1 - FIRST_LOOK_FRAC) / float(2 ** (looks - 1))


def mean_interval(values: Values, alpha: float = ALPHA) -> Interval | None:
    """Return Student's interval of the mean, for values that may be zero or negative; None below two."""
    array = np.asarray(values, np.float64)
    if len(array) < 2:
        return None
    centre, half, _ = _student(array, alpha)
    return Interval(low=centre - half, high=centre + half)


def _check(first: Floats, second: Floats, better: Better, *, paired: bool) -> None:
    if better is Better.NEITHER:
        raise ValueError("a metric without a better direction cannot be faster or slower")
    if not len(first) or not len(second):
        raise ValueError("each side needs at least one replicate")
    if paired and len(first) != len(second):
        raise ValueError(f"paired sides of {len(first)} and {len(second)} replicates")


def within(low: float, high: float, practical_frac: float = PRACTICAL_FRAC) -> bool:
    """Return whether the interval of a ratio is within `practical_frac` of 1."""
    return low >= 1 / (1 + practical_frac) and high <= 1 + practical_frac


def _exp(logarithm: float) -> float:
    """Return the exponential, at the ends of the range of a float where two rounds show no more than that they differ."""
    return math.exp(min(max(logarithm, -_MOST_LOGARITHM), _MOST_LOGARITHM))


def half_width_frac(low: float, high: float) -> float:
    """Return the distance from the middle of a ratio's interval to its ends, as a share: 0.1 for [0.909, 1.1]."""
    return math.sqrt(high / low) - 1 if low > 0 else math.inf


def _positive(values: Floats) -> bool:
    return bool(np.all(np.isfinite(values) & (values > 0)))


def _judged(comparison: Comparison) -> Comparison:
    """Return the comparison with the verdict from its interval and adjusted p-value."""
    ratio, low, high = comparison.ratio, comparison.low, comparison.high
    if ratio is None or low is None or high is None or comparison.p_adjusted is None:
        return comparison
    if comparison.rounds < MIN_ROUNDS:
        reason = f"{comparison.rounds} rounds decide nothing, {MIN_ROUNDS} are needed"
        return dataclasses.replace(comparison, reason=reason)
    narrow = within(low, high, comparison.practical_frac)
    if comparison.p_adjusted < comparison.alpha:
        verdict = Verdict.FASTER if (ratio > 1) == (comparison.better is Better.HIGHER) else Verdict.SLOWER
    else:
        verdict = Verdict.NO_DIFFERENCE if narrow else Verdict.INCONCLUSIVE
    return dataclasses.replace(comparison, verdict=verdict)


def corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return a table's comparisons with Holm's correction: verdicts follow the adjusted p-values.

    The intervals remain those of each comparison alone.
    """
    tested = [comparison.p_value for comparison in comparisons if comparison.p_value is not None]
    adjusted = iter(holm(tested))
    return [
        comparison
        if comparison.p_value is None
        else _judged(dataclasses.replace(comparison, p_adjusted=next(adjusted)))
        for comparison in comparisons
    ]


def holm(p_values: Values) -> list[float]:
    """Return p-values adjusted for their number (Holm 1979), in the order given."""
    raw = np.asarray(p_values, np.float64)
    order = np.argsort(raw, kind="stable")
    factors = len(raw) - np.arange(len(raw))
    stepped = np.minimum(1.0, np.maximum.accumulate(raw[order] * factors))
    adjusted = np.empty_like(raw)
    adjusted[order] = stepped
    return [float(p_value) for p_value in adjusted]


def _student(values: Floats, alpha: float) -> tuple[float, float, float]:
    """Return mean, half-width of its interval, and p-value of "the mean is 0" (one-sample t-test)."""
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean, *t_test(mean, error, len(values) - 1, alpha)


def _welch(first: Floats, second: Floats, alpha: float) -> tuple[float, float]:
    """Return half-width and p-value for the difference of two means with unequal spread.

    Degrees of freedom are rounded down, which gives a wider interval.
    """
    parts = [float(side.var(ddof=1)) / len(side) for side in (first, second)]
    error = math.sqrt(sum(parts))
    below = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True))
    freedom = max(1, math.floor(sum(parts) ** 2 / below)) if below else len(first) + len(second) - 2
    return t_test(float(second.mean() - first.mean()), error, freedom, alpha)
