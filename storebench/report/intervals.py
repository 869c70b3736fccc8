"""A figure with its 95% interval, for reports; the statistics are in `storebench.stats`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from storebench import stats
from storebench.stats import Verdict

Round = tuple[str, int]
"""Run and replicate: cells of one round were measured side by side."""

WIDEST = 100.0
"""An interval whose ends differ by a larger factor does not tell the order of magnitude of its figure: it is unknown."""


def telling(lo: float | None, hi: float | None) -> bool:
    """Return whether the ends of an interval say anything: they are finite and, above 0, within a factor of `WIDEST`."""
    if lo is None or hi is None or not (math.isfinite(lo) and math.isfinite(hi)):
        return False
    return lo <= 0 or hi <= WIDEST * lo


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure over replicates and its 95% interval.

    Attributes
    ----------
    mid
        The median of replicates; for a ratio, the geometric mean of the rounds' ratios.
    lo, hi
        Ends of the interval; None with fewer than two replicates.
    n
        Replicates, or rounds that both sides of a ratio share.
    """

    mid: float
    lo: float | None = None
    hi: float | None = None
    n: int = 1

    @property
    def known(self) -> bool:
        """Whether it has an interval that says anything of the figure; texts and plots show no other."""
        return telling(self.lo, self.hi)

    def scaled(self, factor: float) -> "Estimate":
        """Return the same figure in another unit."""
        lo = None if self.lo is None else self.lo * factor
        hi = None if self.hi is None else self.hi * factor
        return replace(self, mid=self.mid * factor, lo=lo, hi=hi)

    def negated(self) -> "Estimate":
        """Return the same figure with the other sign."""
        lo = None if self.hi is None else -self.hi
        hi = None if self.lo is None else -self.lo
        return replace(self, mid=-self.mid, lo=lo, hi=hi)


def median_interval(values: Sequence[float], alpha: float = stats.ALPHA) -> Estimate:
    """Return the median of replicates and its interval."""
    ends = stats.median_interval(values, alpha)
    lo, hi = (ends.low, ends.high) if ends else (None, None)
    return Estimate(mid=stats.median(values), lo=lo, hi=hi, n=len(values))


@dataclass(frozen=True, kw_only=True)
class Ratio(Estimate):
    """One side over the other, with its verdict.

    Attributes
    ----------
    verdict
        Whether the first side is faster (larger is better), slower, not
        detectably different, or nothing can be said.
    """

    verdict: Verdict = Verdict.INCONCLUSIVE

    def inverted(self) -> "Ratio":
        """Return the second side over the first."""
        turned = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
        return Ratio(
            mid=1 / self.mid,
            lo=None if self.hi is None else 1 / self.hi,
            hi=None if self.lo is None else 1 / self.lo,
            n=self.n,
            verdict=turned.get(self.verdict, self.verdict),
        )

    def in_times(self) -> "Ratio":
        """Return the same ratio, of times instead of rates: above 1 is slower."""
        turned = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
        return replace(self, verdict=turned.get(self.verdict, self.verdict))

    @property
    def equal(self) -> bool:
        """Whether the two sides are proven to differ by less than `storebench.stats.PRACTICAL_FRAC`."""
        enough = self.n >= stats.MIN_ROUNDS
        return enough and self.lo is not None and self.hi is not None and stats.within(self.lo, self.hi)

    @property
    def known(self) -> bool:
        """Whether its interval says anything: also where it is wide, if it proves that the sides differ."""
        return self.proven or telling(self.lo, self.hi)

    @property
    def proven(self) -> bool:
        """Whether the two sides differ for certain."""
        return self.verdict in (Verdict.FASTER, Verdict.SLOWER)


def mean_interval(values: Sequence[float], alpha: float = stats.ALPHA) -> Estimate:
    """Return the mean of replicates and Student's interval of it; values may be negative."""
    ends = stats.mean_interval(values, alpha)
    lo, hi = (ends.low, ends.high) if ends else (None, None)
    return Estimate(mid=sum(values) / len(values), lo=lo, hi=hi, n=len(values))


def ratio(top: Mapping[Round, float], bottom: Mapping[Round, float]) -> Ratio | None:
    """Return the ratio of two sides paired by round, by itself and uncorrected; None if no round has both."""
    return ratios([(top, bottom)])[0]


def ratios(
    pairs: Sequence[tuple[Mapping[Round, float], Mapping[Round, float]]], *, alpha: float = stats.ALPHA
) -> list[Ratio | None]:
    """Return the ratio of each (top, bottom) of one table, with intervals and verdicts that hold all at once."""
    return family(pairs, size=len(pairs), alpha=alpha)


def family(
    pairs: Sequence[tuple[Mapping[Round, float], Mapping[Round, float]]], *, size: int, alpha: float
) -> list[Ratio | None]:
    """Return the ratio of each (top, bottom) of a family of `size` comparisons, with intervals that hold all at once."""
    shared = [[key for key in top if key in bottom] for top, bottom in pairs]
    sides = [
        ([bottom[key] for key in keys], [top[key] for key in keys])
        for (top, bottom), keys in zip(pairs, shared, strict=True)
        if keys
    ]
    compared = iter(stats.compare_family(sides, size=size, alpha=alpha))
    return [_ratio(next(compared)) if keys else None for keys in shared]


def unpaired_ratios(
    pairs: Sequence[tuple[Mapping[Round, float], Mapping[Round, float]]], *, alpha: float
) -> list[Ratio | None]:
    """Return the ratio of each (top, bottom) of separate runs (Welch), with intervals that hold all at once."""
    level = alpha / max(1, len(pairs))
    return [
        unpaired_ratio(list(top.values()), list(bottom.values()), alpha=level) if top and bottom else None
        for top, bottom in pairs
    ]


def unpaired_ratio(top: Sequence[float], bottom: Sequence[float], *, alpha: float) -> Ratio | None:
    """Return the ratio of the means of two separate samples, none empty (Welch); None if a value is not positive."""
    return _ratio(stats.compare(bottom, top, paired=False, alpha=alpha))


def _ratio(comparison: stats.Comparison) -> Ratio | None:
    if comparison.ratio is None:
        return None
    return Ratio(
        mid=comparison.ratio,
        lo=comparison.low,
        hi=comparison.high,
        n=comparison.rounds,
        verdict=comparison.verdict,
    )
