"""Statistics over replicates: one comparison of paired rounds, and intervals of medians.

A ratio is the geometric mean of the rounds' ratios, with Student's interval on their logarithms: 95%, or 99% where
the rounds' ratios spread by more than 15%, because five such rounds mislead a 95% interval too often. Nothing else
is corrected: a difference counts only if the whole interval lies beyond 10% (docs/reports.md has a simulation).
"""

import bisect
import enum
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storebench.units import Better

# A smaller difference is not worth a change of format.
PRACTICAL_FRAC = 0.10

# With fewer rounds nothing is decided.
MIN_ROUNDS = 5

# The interval has 99% if the logarithms of the rounds' ratios have a larger standard deviation than this.
NOISY_SPREAD = 0.15
ALPHA, NOISY_ALPHA = 0.05, 0.01

MOST_ROUNDS = 200
_POWER = 0.8

Values = Sequence[float] | npt.NDArray[np.floating]


class Verdict(enum.StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The median of replicates, with Student's 95% interval; no interval below two replicates."""

    mid: float
    low: float | None = None
    high: float | None = None
    n: int = 1

    def scaled(self, factor: float) -> "Estimate":
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        return Estimate(mid=self.mid * factor, low=low, high=high, n=self.n)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Contender over baseline; no interval (`low`, `high`) and no spread below two rounds."""

    mid: float | None
    """Geometric mean of the rounds' ratios; None if a value is not positive or there is no round."""
    rounds: int
    low: float | None = None
    high: float | None = None
    verdict: Verdict = Verdict.UNDECIDED
    level: float = 1 - ALPHA
    spread: float | None = None

    @property
    def may_be_faster(self) -> bool:
        """Whether a rate may still be more than 10% higher than the baseline's."""
        return self.rounds < MIN_ROUNDS or self.high is None or self.high > 1 + PRACTICAL_FRAC


def compare(
    baseline: Values,
    contender: Values,
    *,
    better: Better = Better.HIGHER,
    practical_frac: float = PRACTICAL_FRAC,
) -> Ratio:
    """Compare one metric of two cells, with one value per round in the same order; see `judge` for the verdict."""
    first, second = np.asarray(baseline, np.float64), np.asarray(contender, np.float64)
    rounds = len(first)
    both = np.concatenate([first, second])
    if not rounds or not np.all(np.isfinite(both) & (both > 0)):
        return Ratio(mid=None, rounds=rounds)
    logs = np.log(second) - np.log(first)
    mid = float(np.exp(logs.mean()))
    if rounds < 2:
        return Ratio(mid=mid, rounds=rounds)
    spread = float(logs.std(ddof=1))
    alpha = NOISY_ALPHA if spread > NOISY_SPREAD else ALPHA
    half = t_quantile(1 - alpha / 2, rounds - 1) * spread / math.sqrt(rounds)
    low, high = float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))
    verdict = judge(low, high, better, practical_frac) if rounds >= MIN_ROUNDS else Verdict.UNDECIDED
    return Ratio(mid=mid, low=low, high=high, rounds=rounds, verdict=verdict, level=1 - alpha, spread=spread)


def unpaired(baseline: Values, contender: Values) -> Ratio | None:
    """Return the ratio of sides without common rounds: Student's interval of the smaller side, and no verdict."""
    rounds = min(len(baseline), len(contender))
    if rounds < 2 or min(*baseline, *contender) <= 0:
        return None
    first, second = np.log(np.asarray(baseline, np.float64)), np.log(np.asarray(contender, np.float64))
    mid, error = second.mean() - first.mean(), math.sqrt(sum(s.var(ddof=1) / len(s) for s in (first, second)))
    half = t_quantile(1 - ALPHA / 2, rounds - 1) * error
    return Ratio(mid=math.exp(mid), low=math.exp(mid - half), high=math.exp(mid + half), rounds=rounds)


def judge(low: float, high: float, better: Better, practical_frac: float = PRACTICAL_FRAC) -> Verdict:
    """Return the verdict of an interval: it must lie wholly beyond `practical_frac` from 1, or wholly within it."""
    above, below = low > 1 + practical_frac, high < 1 / (1 + practical_frac)
    if above or below:
        return Verdict.FASTER if above == (better is Better.HIGHER) else Verdict.SLOWER
    within = low >= 1 / (1 + practical_frac) and high <= 1 + practical_frac
    return Verdict.EQUAL if within else Verdict.UNDECIDED


def rounds_needed(spread: float, frac: float) -> int | None:
    """Return the rounds that tell a true difference with probability `_POWER`; None if `MOST_ROUNDS` do not."""
    alpha = NOISY_ALPHA if spread > NOISY_SPREAD else ALPHA

    def tells(rounds: int) -> bool:
        quantiles = t_quantile(1 - alpha / 2, rounds - 1) + t_quantile(_POWER, rounds - 1)
        return quantiles * spread / math.sqrt(rounds) <= math.log1p(frac)

    candidates = range(MIN_ROUNDS, MOST_ROUNDS + 1)
    position = bisect.bisect_left(candidates, True, key=tells)
    return candidates[position] if position < len(candidates) else None


def median(values: Values) -> float:
    return float(np.median(np.asarray(values, np.float64)))


def estimate(values: Values) -> Estimate:
    """Return the median of replicates and Student's 95% interval, on logarithms if all are positive."""
    array = np.asarray(values, np.float64)
    mid, count = median(array), len(array)
    if count < 2:
        return Estimate(mid=mid, n=count)
    is_positive = bool(np.all(array > 0))
    scaled = np.log(array) if is_positive else array
    half = t_quantile(1 - ALPHA / 2, count - 1) * float(scaled.std(ddof=1)) / math.sqrt(count)
    ends = np.array([scaled.mean() - half, scaled.mean() + half])
    low, high = map(float, np.exp(ends) if is_positive else ends)
    return Estimate(mid=mid, low=low, high=high, n=count)


@functools.lru_cache(maxsize=4096)
def t_quantile(share: float, freedom: int) -> float:
    """Return the quantile of Student's t for a share over 0.5 and whole degrees of freedom."""
    low, high = 0.0, 1.0
    while 1 - _two_sided(high, freedom) / 2 < share:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        if 1 - _two_sided(middle, freedom) / 2 < share:
            low = middle
        else:
            high = middle
    return high


def _two_sided(t: float, freedom: int) -> float:
    """Return P(|T| >= |t|) by the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    if freedom == 1:
        total = 0.0
    for step in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine**2 * (step - 1) / step
        total += term
    inner = math.sin(angle) * total
    inside = (angle + inner) * 2 / math.pi if odd else inner
    return min(1.0, max(0.0, 1.0 - inside))
