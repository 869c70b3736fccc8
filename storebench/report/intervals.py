"""A figure with its 95% interval, as reports carry it; the statistics themselves are `storebench.stats`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from storebench import stats
from storebench.stats import Verdict

Round = tuple[str, int]
"""Run and replicate: what was measured side by side."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A figure over replicates and its 95% interval.

    Attributes
    ----------
    mid
        The median of replicates; for a ratio, the geometric mean of the rounds' ratios.
    lo, hi
        Ends of the interval; null with fewer than two replicates.
    n
        Replicates, or rounds that both sides of a ratio share.
    """

    mid: float
    lo: float | None = None
    hi: float | None = None
    n: int = 1

    def scaled(self, factor: float) -> "Interval":
        """Return the same figure in another unit."""
        lo = None if self.lo is None else self.lo * factor
        hi = None if self.hi is None else self.hi * factor
        return replace(self, mid=self.mid * factor, lo=lo, hi=hi)


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median of replicates and its interval."""
    ends = stats.median_interval(values)
    lo, hi = (ends.low, ends.high) if ends else (None, None)
    return Interval(mid=stats.median(values), lo=lo, hi=hi, n=len(values))


@dataclass(frozen=True, kw_only=True)
class Ratio(Interval):
    """One side over the other, with what may be said of it.

    Attributes
    ----------
    verdict
        Whether the first side is faster (larger is better), slower, not
        detectably different, or nothing can be said.
    """

    verdict: Verdict = Verdict.INCONCLUSIVE

    @property
    def proven(self) -> bool:
        """Whether the two sides differ for certain."""
        return self.verdict in (Verdict.FASTER, Verdict.SLOWER)


def ratio(top: Mapping[Round, float], bottom: Mapping[Round, float]) -> Ratio | None:
    """Return the ratio of two sides paired by round; None where no round has both."""
    return ratios([(top, bottom)])[0]


def ratios(pairs: Sequence[tuple[Mapping[Round, float], Mapping[Round, float]]]) -> list[Ratio | None]:
    """Return the ratio of each (top, bottom) of one table; verdicts are corrected for their number (Holm)."""
    found: list[stats.Comparison | None] = []
    for top, bottom in pairs:
        shared = [key for key in top if key in bottom]
        both = [bottom[key] for key in shared], [top[key] for key in shared]
        found.append(stats.compare(*both) if shared else None)
    corrected = iter(stats.corrected([one for one in found if one is not None]))
    return [None if one is None else _ratio(next(corrected)) for one in found]


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
