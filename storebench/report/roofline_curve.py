"""One curve of a storage roofline: a backend's delivered rates, its starving point, and the points that test the curve.

The supply rate of a backend comes from the cell that only loads. The formula of `storebench.report.roofline_model` turns
it into a curve. The points that test the curve are cells with emulated compute and cells that train on a GPU. A network on
the CPU is none, because it takes the cores of the producers. Points may lower the curve's constant c, the least handoff
measured, and have no other influence on it.
"""

import dataclasses
import enum
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from storebench import stats
from storebench.matrix import MODEL_CROPS
from storebench.report.cells import CellSummary
from storebench.report.intervals import Estimate, median_interval, unpaired_ratio
from storebench.report.roofline_errors import (
    ERROR_LIMIT,
    Explanation,
    Miss,
    explanation,
    handing_rounds,
    handing_s,
    producing_s,
)
from storebench.report.roofline_model import BUSY_FRAC, RooflineModel
from storebench.report.trained import ingestion_rate
from storebench.settings.words import ComputeKind

MOST_SPAN = 3.0
"""A starving point, like a break-even, is not called decided if its interval spans more than this factor."""


class Feeding(enum.StrEnum):
    """Verdict on whether a backend keeps an accelerator busy."""

    FEEDS = "feeds it"
    """It is busy at least 90% of the time, over the entire interval."""
    STARVES = "starves it"
    """It is busy less than 90% of the time, over the entire interval."""
    UNDECIDED = "cannot be told"


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """A measured point: training on a GPU or with an emulated accelerator.

    Attributes
    ----------
    cell
        The cell that computes on what it loads.
    ingestion
        Samples per second of the accelerator, from the measured durations of its steps.
    delivered
        Measured samples per second.
    predicted
        Samples per second predicted by the model.
    explanation
        The reason for an error above `ERROR_LIMIT`, if the records show one; None otherwise.
    """

    cell: CellSummary
    ingestion: Estimate
    delivered: Estimate
    predicted: float
    explanation: Explanation | None = None

    @property
    def emulated(self) -> bool:
        """Whether the accelerator is a sleep."""
        return self.cell.cell.compute.kind is ComputeKind.EMULATED

    @property
    def error(self) -> float:
        """Relative error of the prediction; positive if less was delivered than predicted."""
        return self.predicted / self.delivered.mid - 1

    @property
    def unexplained(self) -> bool:
        """Whether the error is above `ERROR_LIMIT` without an explanation in the records."""
        return abs(self.error) > ERROR_LIMIT and self.explanation is None


@dataclass(frozen=True, kw_only=True, eq=False)
class RooflineCurve:
    """The curve of one backend.

    Attributes
    ----------
    loader
        The cell that only loads.
    supply
        Samples per second of that cell.
    constant_s
        Additional seconds per sample of a step, see `RooflineModel`.
    rounds
        The starving points from the supply rate of each replicate and, with overlap, from its handoff.
    points
        The measured points, slowest accelerator first.
    alpha
        Permitted error per conclusion from the starving point.
    handed_alone
        Whether the handoff was measured in the cell that only loads and in no other. There it takes longest, because the loop takes
        batches as fast as they can be handed over. So the curve is a lower bound where the handoff limits it.
    """

    loader: CellSummary
    supply: Estimate
    constant_s: float
    rounds: tuple[tuple[float, ...], ...]
    points: tuple[Point, ...]
    alpha: float = stats.ALPHA
    handed_alone: bool = False

    @property
    def backend(self) -> str:
        """The backend's full name."""
        return self.loader.backend

    @property
    def model(self) -> RooflineModel:
        """The formula with the figures of this backend."""
        return _model(self.loader, self.supply.mid, self.constant_s)

    def delivered(self, ingestion: float, more_s: float = 0.0) -> Estimate:
        """Return the predicted samples per second for an ingestion rate, with the interval of the supply rate.

        Parameters
        ----------
        more_s
            Additional seconds per sample of a producer, beyond those in the measured curve.
        """
        mid, lo, hi = (
            None if supply is None else self._slowed(supply, more_s).delivered(ingestion)
            for supply in (self.supply.mid, self.supply.lo, self.supply.hi)
        )
        return Estimate(mid=mid or 0.0, lo=lo, hi=hi, n=self.supply.n)

    @functools.cached_property
    def starving(self) -> Estimate:
        """The ingestion rate, in samples per second, above which an accelerator is busy less than 90% of the time.

        Its interval is single: it alone holds with probability 95%.
        """
        return _widest(self.rounds, stats.ALPHA)

    @functools.cached_property
    def sure(self) -> Estimate:
        """The starving point with an interval that holds together with all others of the page; conclusions rest on it."""
        return _widest(self.rounds, self.alpha)

    @property
    def at_most(self) -> bool:
        """Whether the supply rate, and so the starving point, is an upper bound."""
        return self.loader.at_most

    @property
    def certain(self) -> bool:
        """Whether the starving point has a usable interval."""
        sure = self.sure
        enough = sure.n >= stats.MIN_ROUNDS and sure.lo is not None and sure.hi is not None
        return enough and not self.loader.unsteady and not self.loader.cold_start

    @property
    def decided(self) -> bool:
        """Whether the interval of the starving point is usable and narrow enough for a conclusion."""
        lo, hi = self.starving.lo, self.starving.hi
        return self.certain and bool(lo and hi) and (hi or 0.0) <= MOST_SPAN * (lo or 0.0)

    def feeding(self, ingestion: float) -> Feeding:
        """Return the verdict on an accelerator with this ingestion rate in samples per second."""
        if not self.certain:
            return Feeding.UNDECIDED
        if (self.furthest.sure.hi or math.inf) < ingestion:
            return Feeding.STARVES
        fed = not self.at_most and (self.sure.lo or 0.0) >= ingestion
        return Feeding.FEEDS if fed else Feeding.UNDECIDED

    @functools.cached_property
    def furthest(self) -> "RooflineCurve":
        """The curve with the largest starving point that the records allow: without a handoff that was measured alone."""
        if not self.handed_alone:
            return self
        rates = [rate for rate in self.loader.values("samples_per_s").values() if rate > 0]
        points = tuple(_model(self.loader, rate, 0.0).starving for rate in rates)
        return dataclasses.replace(self, constant_s=0.0, rounds=(points,), handed_alone=False)

    def _slowed(self, supply: float, more_s: float) -> RooflineModel:
        """Return the formula for a supply rate whose producers need `more_s` more seconds per sample."""
        cell = self.loader.cell
        shared = more_s / max(1, cell.workers) / cell.ranks
        return _model(self.loader, supply / (1 + supply * shared), self.constant_s)

    def slowed(self, more_s: float) -> RooflineModel:
        """Return the formula if producers need `more_s` more seconds per sample than in the measured curve."""
        return self._slowed(self.supply.mid, more_s)

    def over(self, rates: Sequence[float], more_s: float = 0.0) -> Estimate | None:
        """Return the starving point over other rates, with an interval that conclusions rest on; None if it has none.

        Parameters
        ----------
        rates
            Samples per second, one per replicate.
        more_s
            Additional seconds per sample of a producer, beyond those in the measured curve.
        """
        cell = self.loader.cell
        # The starving point is 1 / 0.9 of the supply rate with overlap, and a ninth of it without.
        share = BUSY_FRAC / cell.workers if cell.workers else BUSY_FRAC / (1 - BUSY_FRAC)
        later = more_s * share / cell.ranks
        ratios = [
            unpaired_ratio([1 / (1 / value + later) for value in values], rates, alpha=self.alpha)
            for values in self.rounds
        ]
        lows = [ratio.lo for ratio in ratios if ratio is not None and ratio.lo is not None]
        highs = [ratio.hi for ratio in ratios if ratio is not None and ratio.hi is not None]
        enough = min(len(rates), *map(len, self.rounds)) >= stats.MIN_ROUNDS
        if not enough or len(lows) < len(ratios) or ratios[0] is None:
            return None
        return dataclasses.replace(ratios[0], lo=min(lows), hi=max(highs))


def _model(loader: CellSummary, supply: float, constant_s: float) -> RooflineModel:
    return RooflineModel(supply=supply, constant_s=constant_s, overlap=loader.cell.workers > 0)


def curve_of(
    loader: CellSummary, fed: Sequence[CellSummary], handing: Sequence[CellSummary]
) -> RooflineCurve:
    """Return the curve of a loader-only cell, with the points that test it.

    Parameters
    ----------
    fed
        The cells with an accelerator that test the curve.
    handing
        The cells with an accelerator and the same loader, of all backends in every state of their stores. With workers they
        give the handoff, which depends on the loader and the batch and not on the store.
    """
    rates = [rate for rate in loader.values("samples_per_s").values() if rate > 0]
    alike = handing if loader.cell.workers else fed
    constant_s = _constant_s(loader, alike)
    curve = RooflineCurve(
        loader=loader,
        supply=median_interval(rates),
        constant_s=constant_s,
        rounds=_starving_rounds(loader, rates, constant_s, alike),
        points=(),
        handed_alone=loader.cell.workers > 0 and len(_handing(loader, alike)) == 1,
    )
    points = [point for cell in fed if (point := _point(curve, cell)) is not None]
    return dataclasses.replace(curve, points=tuple(sorted(points, key=lambda point: point.ingestion.mid)))


def _starving_rounds(
    loader: CellSummary, rates: Sequence[float], constant_s: float, fed: Sequence[CellSummary]
) -> tuple[tuple[float, ...], ...]:
    """Return the starving points from the supply rate of each replicate and, with overlap, from its handoff."""
    by_supply = tuple(_model(loader, rate, constant_s).starving for rate in rates)
    if not loader.cell.workers:
        return (by_supply,)
    least = min(_handing(loader, fed), key=handing_s)
    supply = stats.median(rates)
    by_handoff = tuple(_model(loader, supply, own).starving for own in handing_rounds(least))
    return (by_supply, by_handoff) if by_handoff else (by_supply,)


def _widest(rounds: Sequence[Sequence[float]], alpha: float) -> Estimate:
    """Return the starving point. Its interval covers the spread of the supply rate and of the constant."""
    estimate, *others = (median_interval(values, alpha) for values in rounds)
    if estimate.lo is None or estimate.hi is None:
        return estimate
    ends = [end for interval in (estimate, *others) for end in (interval.lo, interval.hi) if end is not None]
    return dataclasses.replace(estimate, lo=min(ends), hi=max(ends))


def _handing(loader: CellSummary, fed: Sequence[CellSummary]) -> list[CellSummary]:
    """Return the cells of a curve that measure the handoff, the loader-only cell first.

    A cell of few rounds, whose handoff would have no interval, tests the curve and does not shape it. Nor does one whose
    producers are slower than its accelerator: the time to receive its batches is a part of the handoff there, and hidden elsewhere.
    """
    many = (cell for cell in fed if len(cell.values("samples_per_s")) >= stats.MIN_ROUNDS)
    return [loader, *filter(_keeps_up, many)]


def _keeps_up(cell: CellSummary) -> bool:
    """Whether the producers of a cell make samples faster than its accelerator takes them; without producers, True."""
    ingestion = ingestion_rate(cell)
    if not cell.cell.workers or ingestion is None:
        return True
    return producing_s(cell) / cell.cell.workers < BUSY_FRAC / ingestion.mid


def _constant_s(loader: CellSummary, fed: Sequence[CellSummary]) -> float:
    """Return the least time per sample for handoff and loop in any cell of a curve.

    Without overlap, the supply rate includes that of the loader-only cell, and only an excess counts.
    """
    own, *measured = map(handing_s, _handing(loader, fed))
    if loader.cell.workers:
        return min([own, *measured])
    return max(0.0, min(measured, default=own) - own)


def _point(curve: RooflineCurve, cell: CellSummary) -> Point | None:
    delivered, ingestion = cell.interval("samples_per_s"), ingestion_rate(cell)
    if delivered is None or ingestion is None or delivered.mid <= 0:
        return None
    model, more_s = cell.cell.model, 0.0
    if model in MODEL_CROPS and curve.loader.cell.model != model:
        # Producers crop and mirror beyond what they did for the supply rate; image files as they are were resized there.
        more_s = max(0.0, cell.per_sample("prep_s") - curve.loader.per_sample("prep_s"))
    miss = Miss(
        cell=cell,
        loader=curve.loader,
        model=curve.slowed(more_s),
        ingestion=ingestion.mid,
        delivered=delivered,
        band=curve.delivered(ingestion.mid, more_s),
        more_s=more_s,
    )
    return Point(
        cell=cell,
        ingestion=ingestion,
        delivered=delivered,
        predicted=miss.model.delivered(ingestion.mid),
        explanation=explanation(miss) if abs(miss.error) > ERROR_LIMIT else None,
    )
