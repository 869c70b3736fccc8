"""The storage roofline: which accelerators each store feeds.

The supply rate of a store comes from the cell that only loads, and analysis/limits.py says how much of it reaches an
accelerator, with the least time per sample for handing a batch over. An accelerator starves if it is busy less than 90%
of its time. Cells with emulated compute, and cells that train on a GPU, are points that test the law.
"""

import dataclasses
import enum
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from storebench.analysis.comparison import MIN_ROUNDS, Estimate, estimate, median
from storebench.analysis.limits import BUSY_FRAC, delivered, starving_above
from storebench.analysis.panels import Panel, pixels, readahead_rank, state_rank
from storebench.analysis.summary import (
    MEMORY_FORMAT,
    SETTING_COLUMNS,
    STATE_COLUMNS,
    CellSummary,
    backend_rank,
)
from storebench.run.matrix import MODEL_CROPS
from storebench.settings.words import ComputeKind

# Fields that may differ between a point and its supply rate: what is computed, and how long.
_FREE = frozenset({"compute", "model", "max_steps", "warmup_steps", "passes", "epochs"})

# Cells with this many speeds of emulated compute are nothing but points of a roofline.
_LEAST_SPEEDS = 3


class Feeding(enum.StrEnum):
    FEEDS = "feeds it"
    STARVES = "starves it"
    UNDECIDED = "cannot be told"


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """A cell with an accelerator: samples per second that it takes, that reach it, and that the formula predicts."""

    cell: CellSummary
    ingestion: Estimate
    delivered: Estimate
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.delivered.mid - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """The curve of one store: the cell that only loads, its supply rate, and the points that test it."""

    loader: CellSummary
    supply: Estimate
    constant_s: float
    points: tuple[Point, ...] = ()

    @property
    def backend(self) -> str:
        return self.loader.backend

    @property
    def overlap(self) -> bool:
        return self.loader.cell.workers > 0

    def delivered(self, ingestion: float, supply: float | None = None) -> float:
        """Return the predicted samples per second for an ingestion rate, and for a supply rate, if given."""
        return delivered(ingestion, supply or self.supply.mid, self.constant_s, overlap=self.overlap)

    @functools.cached_property
    def starving(self) -> Estimate:
        """The ingestion rate above which an accelerator starves."""
        rates = [rate for rate in self.loader.values("samples_per_s").values() if rate > 0]
        return estimate([starving_above(rate, self.constant_s, overlap=self.overlap) for rate in rates])

    @property
    def at_most(self) -> bool:
        return self.loader.at_most

    @property
    def decided(self) -> bool:
        """Whether the starving point rests on enough sound rounds."""
        return self.starving.n >= MIN_ROUNDS and not self.loader.doubt

    def feeding(self, ingestion: float) -> Feeding:
        if not self.decided:
            return Feeding.UNDECIDED
        if (self.starving.high or math.inf) < ingestion:
            return Feeding.STARVES
        fed = not self.at_most and (self.starving.low or 0.0) >= ingestion
        return Feeding.FEEDS if fed else Feeding.UNDECIDED


@dataclass(frozen=True, kw_only=True, eq=False)
class Roofline:
    curves: tuple[Curve, ...]

    @property
    def first(self) -> CellSummary:
        return self.curves[0].loader

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(point for curve in self.curves for point in curve.points)


def model_errors(points: Sequence[Point]) -> tuple[float, float] | None:
    """Return the median and the largest absolute relative error of the formula; None without points."""
    errors = [abs(point.error) for point in points]
    return (median(errors), max(errors)) if errors else None


def rooflines(cells: Iterable[CellSummary]) -> list[Roofline]:
    """Return the rooflines that cells make, the most important first; settings decide, never results."""
    loaders: dict[tuple[Any, ...], dict[str, CellSummary]] = {}
    fed: dict[tuple[Any, ...], list[CellSummary]] = {}
    handing: dict[tuple[Any, ...], list[CellSummary]] = {}
    for cell in cells:
        if not cell.usable or cell.is_null:
            continue
        real = cell.cell.compute.kind is ComputeKind.REAL
        # A network on the CPU takes the producers' cores: it is no accelerator.
        if _emulates(cell) or (real and cell.cell.device != "cpu"):
            # A GPU that crops tests two supply rates: one that includes it, and one to which it is added.
            for crops in (True, False) if real and cell.cell.model in MODEL_CROPS else (True,):
                fed.setdefault((*_key(cell, crops=crops), cell.backend), []).append(cell)
                for any_size in (True, False):
                    handing.setdefault(_key(cell, any_state=True, any_size=any_size, crops=crops), []).append(
                        cell
                    )
        elif cell.cell.compute.kind is ComputeKind.NONE and cell.median("samples_per_s"):
            backends = loaders.setdefault(_key(cell), {})
            longest = backends.setdefault(cell.backend, cell)
            if (longest.median("timed_steps") or 0) < (cell.median("timed_steps") or 0):
                backends[cell.backend] = cell
    roofs = []
    for key, backends in loaders.items():
        ranked = sorted(backends.values(), key=lambda cell: backend_rank(cell.backend))
        # A handoff that was not measured with larger squares is that of the images beside them.
        keys = (_key(ranked[0], any_state=True, any_size=any_size) for any_size in (False, True))
        handed = next((handing[key] for key in keys if key in handing), [])
        curves = (_curve(loader, fed.get((*key, loader.backend), []), handed) for loader in ranked)
        roofs.append(Roofline(curves=tuple(curves)))
    return sorted(roofs, key=_rank, reverse=True)


def point_keys(roofs: Iterable[Roofline], every: Iterable[Panel]) -> frozenset[tuple[str, str]]:
    """Return the keys of cells that are points of a roofline and of nothing else: its table holds them."""
    single = {panel.first.key for panel in every if len(panel.cells) == 1}
    keys = set()
    for roofline in roofs:
        speeds = len({point.cell.cell.compute for point in roofline.points if _emulates(point.cell)})
        keys |= {
            point.cell.key
            for point in roofline.points
            if _emulates(point.cell)
            and (speeds >= _LEAST_SPEEDS or (len(roofline.curves) > 1 and point.cell.key in single))
        }
    return frozenset(keys)


def _emulates(cell: CellSummary) -> bool:
    return cell.cell.compute.kind is ComputeKind.EMULATED


def ingestion_rate(cell: CellSummary) -> Estimate | None:
    """Return the samples per second that a cell would train if data took no time; None if it computes nothing."""
    copied = cell.rounds_per("h2d_s", "timed_samples")
    rates = [
        1 / (spent + copied.get(key, 0.0))
        for key, spent in cell.rounds_per("compute_s", "timed_samples").items()
        if spent > 0
    ]
    return estimate(rates) if rates else None


def handing_s(cell: CellSummary) -> float:
    """Return the seconds per sample for handing batches over, and of the loop itself."""
    return cell.per_sample("handover_s") + max(0.0, cell.per_sample("overhead_s"))


def _curve(loader: CellSummary, fed: Sequence[CellSummary], handing: Sequence[CellSummary]) -> Curve:
    """Return the curve of a loader-only cell; with workers the handoff comes from any cell of the same loader."""
    workers = loader.cell.workers
    alike = handing if workers else fed
    measured = [handing_s(cell) for cell in alike if _keeps_up(cell)]
    alone = handing_s(loader)
    # Without overlap, the supply rate includes the loader's own handoff, and only an excess counts.
    constant_s = min([alone, *measured]) if workers else max(0.0, min(measured, default=alone) - alone)
    rates = [rate for rate in loader.values("samples_per_s").values() if rate > 0]
    curve = Curve(loader=loader, supply=estimate(rates), constant_s=constant_s)
    points = [point for cell in fed if (point := _point(curve, cell)) is not None]
    return dataclasses.replace(curve, points=tuple(sorted(points, key=lambda point: point.ingestion.mid)))


def _keeps_up(cell: CellSummary) -> bool:
    """Whether a cell measures the handoff: it has rounds enough, and its producers are faster than its accelerator."""
    ingestion = ingestion_rate(cell)
    if len(cell.values("samples_per_s")) < 3 or ingestion is None:
        return False
    producing = sum(cell.per_sample(name) for name in ("fetch_s", "decode_s", "prep_s"))
    return not cell.cell.workers or producing / cell.cell.workers < BUSY_FRAC / ingestion.mid


def _point(curve: Curve, cell: CellSummary) -> Point | None:
    rate, ingestion = cell.interval("samples_per_s"), ingestion_rate(cell)
    if rate is None or ingestion is None or rate.mid <= 0:
        return None
    more_s, loader = 0.0, curve.loader.cell
    if cell.cell.model in MODEL_CROPS and loader.model != cell.cell.model:
        # Its producers crop and mirror beyond what they did for the supply rate.
        more_s = max(0.0, cell.per_sample("prep_s") - curve.loader.per_sample("prep_s"))
    shared = more_s / max(1, loader.workers) / loader.ranks
    supply = curve.supply.mid / (1 + curve.supply.mid * shared)
    return Point(
        cell=cell, ingestion=ingestion, delivered=rate, predicted=curve.delivered(ingestion.mid, supply)
    )


def _key(
    cell: CellSummary, *, any_state: bool = False, any_size: bool = False, crops: bool = True
) -> tuple[Any, ...]:
    """Return the settings shared by a point and its supply rate."""
    free = _FREE | frozenset(STATE_COLUMNS) if any_state else _FREE
    fields = {name: cell.fields[name] for name in SETTING_COLUMNS if name not in free}
    if not cell.cell.workers:
        fields["loader"] = ""  # all of them make batches in the loop's own thread
    augmented = cell.cell.model if crops and cell.cell.model in MODEL_CROPS else ""
    any_squares = (cell.environment_key, dataclasses.replace(cell.cell.data, image_size=None))
    return (any_squares if any_size else cell.dataset_key, augmented, *fields.values())


def _rank(roofline: Roofline) -> tuple[float, ...]:
    first = roofline.first
    stored = [curve for curve in roofline.curves if curve.loader.cell.backend.format != MEMORY_FORMAT]
    return (
        first.cell.model not in MODEL_CROPS,
        pixels(first),
        first.cell.workers > 0,
        min(len(stored), 2),
        state_rank(first),
        readahead_rank(first),
        len(roofline.curves),
        -first.cell.workers,
    )
