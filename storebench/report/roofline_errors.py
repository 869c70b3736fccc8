"""Why a measured point is not on its roofline: causes that the point's own records show."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

from storebench.report.cells import CellSummary
from storebench.report.intervals import Estimate
from storebench.report.roofline_model import RooflineModel
from storebench.settings.words import CacheState

ERROR_LIMIT = 0.20
"""A larger error of the model needs an explanation."""

_KNEE = 2.0
"""Around the knee of a curve, uneven batches cost time: the ingestion rate is within this factor of the supply rate."""

_UNEVEN = 3.0
"""The longest of 20 waits is this many times as long as the mean one where batches arrive unevenly."""


class Cause(enum.StrEnum):
    """Why a point lies off its curve."""

    FIRST_BATCH = "first batch"
    """The first batch, which nothing overlaps with, takes a notable part of so short an epoch."""
    PRODUCERS = "producers"
    """Producers take another time per sample beside the accelerator's pauses than without them."""
    HANDOFF = "handoff"
    """Handing a batch over takes a notable part of so short a step."""
    JITTER = "jitter"
    """Batches arrive unevenly, and the accelerator is as fast as the loader."""
    SPREAD = "spread"
    """The replicates differ by more than the error."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The cause of an error of the model.

    Attributes
    ----------
    cause
        The cause that the records show.
    figure
        FIRST_BATCH: its share of the timed part. PRODUCERS: how many times as long they take per sample. HANDOFF: its
        time over that of the accelerator's step. JITTER: the longest of 20 waits over the mean wait. Else 0.
    error
        The error that is left if the cause is accounted for; None if it cannot be.
    """

    cause: Cause
    figure: float = 0.0
    error: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Miss:
    """A point that is off its curve, with all that may explain it.

    Attributes
    ----------
    cell, loader
        The cell with an accelerator, and the one with nothing to compute.
    model
        The formula with the figures of `loader`, and with `more_s`.
    ingestion
        Samples per second of the accelerator.
    delivered
        Samples per second that were measured.
    band
        The formula's results for the ends of the supply rate's interval.
    more_s
        Seconds per sample that producers of `cell` prepare longer than those of `loader`, which do not crop and mirror.
    """

    cell: CellSummary
    loader: CellSummary
    model: RooflineModel
    ingestion: float
    delivered: Estimate
    band: Estimate
    more_s: float = 0.0

    def error_of(self, model: RooflineModel, delivered: float | None = None) -> float:
        """Return the relative error of `model` here, or against another measured rate."""
        return model.delivered(self.ingestion) / (delivered or self.delivered.mid) - 1

    @property
    def error(self) -> float:
        """The relative error of the model: above 0 where less was delivered than predicted."""
        return self.error_of(self.model)


def explanation(miss: Miss) -> Explanation | None:
    """Return the first cause that leaves an error of at most `ERROR_LIMIT`; None if the records show none."""
    return next((reason for cause in _CAUSES if (reason := cause(miss)) is not None), None)


def producing_s(cell: CellSummary) -> float:
    """Return the seconds per sample that all producers of a cell work together."""
    return sum(cell.per_sample(name) for name in ("fetch_s", "decode_s", "prep_s"))


def handing_s(cell: CellSummary) -> float:
    """Return the seconds per sample for handing batches over, and of the loop itself."""
    return cell.per_sample("handover_s") + max(0.0, cell.per_sample("overhead_s"))


def handing_rounds(cell: CellSummary) -> list[float]:
    """Return `handing_s` of each replicate."""
    handed, rest = (cell.rounds_per_sample(name) for name in ("handover_s", "overhead_s"))
    return [seconds + max(0.0, rest.get(key, 0.0)) for key, seconds in handed.items()]


def _first_batch(miss: Miss) -> Explanation | None:
    """Leave out the first batch of the point, and that of its supply rate if it has one, too."""
    share, factor = first_share(miss.cell), _without_first(miss.cell)
    if share is None or factor is None:
        return None
    model = replace(miss.model, supply=miss.model.supply * (_without_first(miss.loader) or 1.0))
    return _left(Cause.FIRST_BATCH, share, miss.error_of(model, miss.delivered.mid * factor))


def first_share(cell: CellSummary) -> float | None:
    """Return the share of a cell's timed part that is the wait for the first batch; None if its figures do not hold it."""
    first, timed = cell.median("time_to_first_batch_s"), cell.median("timed_s")
    return None if not first or not timed or _starts_later(cell) else first / timed


def _without_first(cell: CellSummary) -> float | None:
    """Return by which factor a cell's rate rises without its first batch; None if its figures do not hold it."""
    share, timed, steps = first_share(cell), cell.median("timed_s"), cell.median("timed_steps")
    if share is None or not timed or not steps or steps < 2:
        return None
    rest = 1 - share - cell.per_step("compute_s") / timed
    return None if rest <= 0 else (1 - 1 / steps) / rest


def _starts_later(cell: CellSummary) -> bool:
    """Whether the first batch of an epoch is not in a cell's figures."""
    return cell.cell.warmup_steps > 0 or cell.cell.cache == CacheState.LIMITED


def _producers(miss: Miss) -> Explanation | None:
    own, base = producing_s(miss.cell), producing_s(miss.loader) + miss.more_s
    if not own or not base:
        return None
    # Without overlap the loop waits for all of it; with overlap the producers share it.
    seconds = 1 / miss.model.supply
    seconds = seconds * own / base if miss.model.overlap else seconds + own - base
    if seconds <= 0:
        return None
    return _left(Cause.PRODUCERS, own / base, miss.error_of(replace(miss.model, supply=1 / seconds)))


def _handoff(miss: Miss) -> Explanation | None:
    own = handing_s(miss.cell)
    constant_s = own if miss.model.overlap else max(0.0, own - handing_s(miss.loader))
    return _left(
        Cause.HANDOFF, own * miss.ingestion, miss.error_of(replace(miss.model, constant_s=constant_s))
    )


def _left(cause: Cause, figure: float, error: float) -> Explanation | None:
    return Explanation(cause=cause, figure=figure, error=error) if abs(error) <= ERROR_LIMIT else None


def _jitter(miss: Miss) -> Explanation | None:
    wait_ns, step_s = miss.cell.median("data_wait_p95_ns"), miss.cell.per_step("data_wait_s")
    near = 1 / _KNEE <= miss.ingestion / miss.model.supply <= _KNEE
    if not miss.model.overlap or not near or miss.error < 0 or not wait_ns or not step_s:
        return None
    uneven = wait_ns / 1e9 / step_s
    return Explanation(cause=Cause.JITTER, figure=uneven) if uneven >= _UNEVEN else None


def _spread(miss: Miss) -> Explanation | None:
    ends = (miss.delivered.lo, miss.delivered.hi, miss.band.lo, miss.band.hi)
    low, high, least, most = ends
    if low is None or high is None or least is None or most is None:
        return None
    return Explanation(cause=Cause.SPREAD) if low <= most and least <= high else None


_CAUSES: tuple[Callable[[Miss], Explanation | None], ...] = (
    _first_batch,
    _producers,
    _handoff,
    _jitter,
    _spread,
)
"""The causes that are tried, in order: the most certain first."""
