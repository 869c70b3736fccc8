"""Seconds of two sides, compared with their calibration as a covariate (analysis of covariance).

Each replicate runs beside a calibration, and both are slow where the machine is. How much of the calibration's
variation shows in the cell's seconds is estimated from the replicates of both sides together, and removed. Where the
calibration explains nothing, nothing is removed. R. A. Fisher, *Statistical Methods for Research Workers*, 4th
edition, 1932, section 49.1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storebench import stats
from storebench.arrays import Floats
from storebench.check.sides.model import CellData
from storebench.units import Better

FEWEST_REPLICATES = 4
"""With fewer on either side, too little is left to estimate the slope from."""


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """Two sides' seconds with the share that their calibration explains removed.

    Attributes
    ----------
    slope
        By what power of the calibration's time the seconds vary: 1 if they vary alike, 0 if not at all.
    seconds
        Seconds per sample of each side's replicates, as they would have been with the mean calibration.
    calibrations
        Logarithms of the calibration's seconds, one array per side.
    """

    slope: float
    seconds: tuple[list[float], list[float]]
    calibrations: tuple[Floats, Floats]

    def compare(self, *, practical_frac: float, alpha: float) -> stats.Comparison:
        """Return the ratio of the second side to the first, with its interval at level ``1 - alpha``.

        The error contains that of the slope, which grows with the difference between the sides' calibrations.
        """
        first, second = (np.log(np.asarray(side)) for side in self.seconds)
        freedom = len(first) + len(second) - 3
        inside = sum(float(((side - side.mean()) ** 2).sum()) for side in (first, second))
        share = 1 / len(first) + 1 / len(second) + _drift(self.calibrations) ** 2 / _within(self.calibrations)
        return stats.comparison_of(
            float(second.mean() - first.mean()),
            math.sqrt(inside / freedom * share),
            freedom,
            rounds=min(len(first), len(second)),
            better=Better.LOWER,
            practical_frac=practical_frac,
            alpha=alpha,
        )


def adjustment(first: CellData, second: CellData) -> Adjustment | None:
    """Return the adjustment of two sides of one cell.

    Returns
    -------
    Adjustment or None
        None if a replicate was not calibrated, there are too few of them, the calibration never varied, or it
        differs so much between the sides that the slope, which comes from the variation within each side, would
        be extrapolated: more than half of the error would be the slope's.
    """
    calibrations = _logs(first), _logs(second)
    if calibrations[0] is None or calibrations[1] is None:
        return None
    known = calibrations[0], calibrations[1]
    variation = _within(known)
    sizes = [len(side) for side in known]
    if min(sizes) < FEWEST_REPLICATES or variation == 0:
        return None
    if _drift(known) ** 2 / variation > 1 / sizes[0] + 1 / sizes[1]:
        return None
    seconds = [np.log([replicate.seconds for replicate in side.replicates]) for side in (first, second)]
    slope = sum(_products(*pair) for pair in zip(known, seconds, strict=True)) / variation
    centre = float(np.concatenate(known).mean())
    adjusted = [
        np.exp(times - slope * (calibration - centre)).tolist()
        for calibration, times in zip(known, seconds, strict=True)
    ]
    return Adjustment(slope=slope, seconds=(adjusted[0], adjusted[1]), calibrations=known)


def _logs(side: CellData) -> Floats | None:
    """Return the logarithms of a side's calibrations; None if one is missing."""
    times = [replicate.machine_s for replicate in side.replicates]
    known = [seconds for seconds in times if seconds is not None and seconds > 0]
    return np.log(np.asarray(known)) if known and len(known) == len(times) else None


def _drift(sides: tuple[Floats, Floats]) -> float:
    """Return the logarithm of the second side's calibration time over the first side's."""
    return float(sides[1].mean() - sides[0].mean())


def _within(sides: Sequence[Floats]) -> float:
    """Return the sum of squared differences from each side's own mean."""
    return sum(_products(side, side) for side in sides)


def _products(left: Floats, right: Floats) -> float:
    return float(((left - left.mean()) * (right - right.mean())).sum())
