"""A figure with its 95% interval, and how it is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Round = tuple[str, int]
"""Run and replicate: what was measured side by side."""

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A median over replicates and its 95% interval.

    Attributes
    ----------
    mid
        The median.
    lo, hi
        Ends of the interval; null with fewer than two replicates.
    n
        Replicates.
    """

    mid: float
    lo: float | None = None
    hi: float | None = None
    n: int = 1

    def overlaps(self, value: float) -> bool:
        """Whether `value` cannot be told from this figure; without an interval, nothing can be."""
        return self.lo is None or self.hi is None or self.lo <= value <= self.hi

    def scaled(self, factor: float) -> "Interval":
        """Return the same figure in another unit."""
        lo = None if self.lo is None else self.lo * factor
        hi = None if self.hi is None else self.hi * factor
        return Interval(mid=self.mid * factor, lo=lo, hi=hi, n=self.n)


def _bootstrap(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(values), (RESAMPLES, len(values)))
    ends = np.quantile(np.median(values[picks], axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(ends[0]), float(ends[1])


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median of replicates and its bootstrap interval."""
    array = np.asarray(values, np.float64)
    lo, hi = _bootstrap(array) if len(array) > 1 else (None, None)
    return Interval(mid=float(np.median(array)), lo=lo, hi=hi, n=len(array))


def ratio_interval(top: Mapping[Round, float], bottom: Mapping[Round, float]) -> Interval | None:
    """Return the ratio of two sides, paired by round; None where they share no round."""
    shared = [key for key in top if bottom.get(key)]
    return median_interval([top[key] / bottom[key] for key in shared]) if shared else None
