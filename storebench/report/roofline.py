"""The storage roofline: which accelerators each backend feeds, from cells with nothing and with a pause to compute.

A roofline has the curves (`storebench.report.roofline_curve`) of all backends measured in one setting.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from storebench import stats
from storebench.datasets.base import FOLDER_PREFIX
from storebench.matrix import MODEL_CROPS
from storebench.report.cells import (
    MEMORY_FORMAT,
    SETTING_COLUMNS,
    STATE_COLUMNS,
    CellSummary,
    backend_rank,
)
from storebench.report.main_panel import DEFAULT_READAHEAD_KIB, state_rank
from storebench.report.panels import Panel
from storebench.report.roofline_curve import Point, RooflineCurve, curve_of
from storebench.report.roofline_errors import ERROR_LIMIT
from storebench.report.trained import Trained, subject_key, trained_networks
from storebench.settings.words import ComputeKind

LEAST_SPEEDS = 3
"""Cells with this many speeds of emulated compute are nothing but points; with fewer, those of several backends are compared as well."""

_PHOTOGRAPHS = "imagenet"
"""The dataset that the published rates of accelerators are of; folders of photographs are like it."""

_FREE = frozenset({"compute", "model", "max_steps", "warmup_steps", "passes", "epochs"})
"""Fields that may differ between a point and its supply rate: what is computed, and how long the epoch is."""


@dataclass(frozen=True, kw_only=True)
class ErrorSummary:
    """The errors of a roofline's model against its points.

    Attributes
    ----------
    count
        Points.
    median, most
        Median and largest absolute relative error.
    above
        Points with an error above `ERROR_LIMIT`.
    unexplained
        Those of them that no record explains.
    """

    count: int
    median: float
    most: float
    above: int
    unexplained: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Roofline:
    """The curves of all backends under one setting: dataset, cache state, workers and loader.

    Attributes
    ----------
    curves
        One per backend, in the paper's order.
    trained
        The networks that were trained on the same machine and dataset, the slowest first.
    """

    curves: tuple[RooflineCurve, ...]
    trained: tuple[Trained, ...] = ()

    @property
    def first(self) -> CellSummary:
        """Any of the loader-only cells, for what they have in common."""
        return self.curves[0].loader

    @property
    def overlap(self) -> bool:
        """Whether producers work while the accelerator computes."""
        return self.first.cell.workers > 0

    @property
    def augmented(self) -> bool:
        """Whether the supply rates include a network's crops and mirrors."""
        return self.first.cell.model in MODEL_CROPS

    @property
    def of_photographs(self) -> bool:
        """Whether published training rates, which are of photographs, fit the samples."""
        name = self.first.cell.data.name
        return name == _PHOTOGRAPHS or name.startswith(FOLDER_PREFIX)

    @property
    def stored(self) -> tuple[RooflineCurve, ...]:
        """The curves of backends that read a store; those that hold their samples in memory are left out."""
        return tuple(curve for curve in self.curves if curve.loader.cell.backend.format != MEMORY_FORMAT)

    @property
    def decided(self) -> tuple[RooflineCurve, ...]:
        """The curves of `stored` whose starving point is decided."""
        return tuple(curve for curve in self.stored if curve.decided)

    @property
    def points(self) -> tuple[Point, ...]:
        """The measured points of all curves."""
        return tuple(point for curve in self.curves for point in curve.points)

    @property
    def speeds(self) -> int:
        """Number of speeds of emulated compute that were measured."""
        return len({point.cell.cell.compute for point in self.points if point.emulated})

    def concluding(self, alpha: float) -> "Roofline":
        """Return this roofline with an error of `alpha` per conclusion from a starving point."""
        return dataclasses.replace(
            self, curves=tuple(dataclasses.replace(curve, alpha=alpha) for curve in self.curves)
        )

    def curve(self, backend: str) -> RooflineCurve | None:
        """Return the curve of a backend, or None if it has none."""
        return next((curve for curve in self.curves if curve.backend == backend), None)

    @property
    def errors(self) -> ErrorSummary | None:
        """The errors of the model; None without points."""
        return error_summary(self.points)


def error_summary(points: Sequence[Point]) -> ErrorSummary | None:
    """Return the errors of the model at these points; None without points."""
    errors = [abs(point.error) for point in points]
    if not errors:
        return None
    return ErrorSummary(
        count=len(errors),
        median=stats.median(errors),
        most=max(errors),
        above=sum(error > ERROR_LIMIT for error in errors),
        unexplained=sum(point.unexplained for point in points),
    )


def rooflines(cells: Iterable[CellSummary]) -> list[Roofline]:
    """Return the rooflines that cells make, the one that speaks for the others first.

    One roofline per dataset, machine, cache state, loader, workers, batch size and augmentation under which at least one
    cell only loads. The order follows from settings, never from results: readers and decoders alone before loaders that
    augment, the largest images, overlap before none, several stores before one, a store larger than memory before cold
    before warm (warm first if a run found that the whole dataset fits into memory), Linux's own read-ahead before others.
    """
    every = [cell for cell in cells if cell.usable]
    loaders: dict[tuple[Any, ...], dict[str, CellSummary]] = {}
    fed: dict[tuple[Any, ...], list[CellSummary]] = {}
    handing: dict[tuple[Any, ...], list[CellSummary]] = {}
    for cell in (cell for cell in every if not cell.is_null):
        if _is_fed(cell):
            # A GPU that crops and mirrors tests two supply rates: one that includes it, and one to which it is added.
            trains = cell.cell.compute.kind is ComputeKind.REAL
            for crops in (True, False) if trains and cell.cell.model in MODEL_CROPS else (True,):
                fed.setdefault((*_key(cell, crops=crops), cell.backend), []).append(cell)
                handing.setdefault(_key(cell, any_state=True, crops=crops), []).append(cell)
        elif cell.cell.compute.kind is ComputeKind.NONE and cell.median("samples_per_s"):
            backends = loaders.setdefault(_key(cell), {})
            known = backends.get(cell.backend)
            if known is None or known.steps < cell.steps:
                backends[cell.backend] = cell
    trained = trained_networks(every)
    made = [
        Roofline(
            curves=tuple(
                curve_of(
                    loader,
                    fed.get((*key, loader.backend), []),
                    handing.get(_key(loader, any_state=True), []),
                )
                for loader in sorted(backends.values(), key=lambda cell: backend_rank(cell.backend))
            ),
            trained=tuple(trained.get(subject_key(next(iter(backends.values()))), ())),
        )
        for key, backends in loaders.items()
    ]
    return sorted(made, key=_rank, reverse=True)


def told_roofline(rooflines: Iterable[Roofline]) -> Roofline | None:
    """Return the roofline that the answer of a page tells: the first one with a decided backend."""
    return next((roofline for roofline in rooflines if roofline.decided), None)


def point_keys(roofs: Iterable[Roofline], every: Iterable[Panel]) -> frozenset[tuple[str, str]]:
    """Return the keys of the cells that are points of a roofline and of nothing else: its table holds them.

    Parameters
    ----------
    every
        The panels of all cells. A point in a panel of its own compares nothing, if its roofline has several backends.
    """
    single = {panel.first.key for panel in every if len(panel.cells) == 1}
    return frozenset(
        point.cell.key
        for roofline in roofs
        for point in roofline.points
        if point.emulated
        if roofline.speeds >= LEAST_SPEEDS or (len(roofline.curves) > 1 and point.cell.key in single)
    )


def _is_fed(cell: CellSummary) -> bool:
    """Whether a cell has an accelerator: a sleep, or a network on a GPU. A network on the CPU takes the producers' cores."""
    kind = cell.cell.compute.kind
    return kind is ComputeKind.EMULATED or (kind is ComputeKind.REAL and cell.cell.device != "cpu")


def _key(cell: CellSummary, *, any_state: bool = False, crops: bool = True) -> tuple[Any, ...]:
    """Return the settings shared by a point and its supply rate.

    Parameters
    ----------
    any_state
        Leave out the state of the store.
    crops
        The supply rate includes the crops and mirrors of the point's network.
    """
    free = _FREE | frozenset(STATE_COLUMNS) if any_state else _FREE
    fields = {name: cell.fields[name] for name in SETTING_COLUMNS if name not in free}
    if not cell.cell.workers:
        fields["loader"] = ""  # all of them make batches in the loop's own thread
    augmented = cell.cell.model if crops and cell.cell.model in MODEL_CROPS else ""
    return (cell.dataset_key, augmented, *fields.values())


def _rank(roofline: Roofline) -> tuple[float, ...]:
    cell = roofline.first.cell
    shape = roofline.first.fact("store_image_shape") or "0"
    kib = cell.readahead_kib
    return (
        not roofline.augmented,
        math.prod(int(side) for side in shape.split("x")),
        roofline.overlap,
        min(len(roofline.stored), 2),
        state_rank(roofline.first),
        2 if kib == DEFAULT_READAHEAD_KIB else 1 if kib is None else 0,
        len(roofline.curves),
        -cell.workers,
    )
