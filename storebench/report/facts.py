"""The facts that follow from a set of records, derived once and handed down in one frozen object.

Tables, plots, sentences and the page take `Facts`. None of them derives its own panels, decisions or verdicts.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from storebench.report.ceilings import ceilings
from storebench.report.cells import CellSummary, varying_fields, work_key
from storebench.report.claims import Claims, claims_of
from storebench.report.decisions import Decisions, added_by_precision, decide, looks_at
from storebench.report.factors import PAYING_STATES, BreakEven, Square, break_evens, squares
from storebench.report.ladder import Ladder, comparisons, ladders
from storebench.report.main_panel import ordered
from storebench.report.panels import Panel, panels, without
from storebench.report.roofline import Roofline, point_keys, rooflines
from storebench.report.verdict import CellVerdict, cell_verdicts
from storebench.runs.manifest import Whole, agreed

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, eq=False)
class Facts:
    """The facts that follow from some cells.

    Attributes
    ----------
    cells
        The cells, in the order of `storebench.report.cells.backend_rank`.
    panels
        The same cells in groups that may be compared, null cells beside them. The points of rooflines are left out.
    ordered
        The panels that have a rate, in the order of `storebench.report.main_panel.ordered`.
    decisions
        Every comparison of the page that the cells are on.
    claims
        Every assertion that sentences of the page may make.
    verdicts
        The limit of each measured cell, by (environment_key, cell_id); cells of other datasets may be among them.
    ladders
        LMDBIO's ladder under each setting that has one.
    squares
        The costs of container and codec, for each pair of stores that allows it.
    break_evens
        The break-even of each conversion that was measured, in every panel.
    rooflines
        The roofline of each setting in which a cell only loads, with the accelerators that each backend feeds; the one that
        speaks for the others comes first.
    """

    cells: tuple[CellSummary, ...]
    panels: tuple[Panel, ...]
    ordered: tuple[Panel, ...]
    decisions: Decisions
    claims: Claims
    verdicts: Mapping[tuple[str, str], CellVerdict]
    ladders: tuple[Ladder, ...]
    squares: tuple[Square, ...]
    break_evens: tuple[BreakEven, ...]
    rooflines: tuple[Roofline, ...]

    @property
    def main(self) -> Panel | None:
        """The panel that speaks for the others; None if nothing was measured."""
        return next(iter(self.ordered), None)

    @property
    def paying_panel(self) -> Panel | None:
        """The first panel whose rate is that of whole epochs: of those that do the main panel's work, else of all."""
        whole = [panel for panel in self.ordered if panel.first.cell.cache in PAYING_STATES]
        work = work_key(self.main.first) if self.main else None
        alike = (panel for panel in whole if work_key(panel.first) == work)
        return next(alike, next(iter(whole), None))

    @property
    def paying(self) -> tuple[BreakEven, ...]:
        """The break-evens of `paying_panel`."""
        panel = self.paying_panel
        return tuple(even for even in self.break_evens if panel is not None and even.cell in panel.cells)

    @functools.cached_property
    def whole(self) -> Whole | None:
        """The whole dataset, if all cells are of runs that chose to measure a part of it; None otherwise."""
        return agreed(cell.whole for cell in self.cells) if len(self.datasets) == 1 else None

    @functools.cached_property
    def varying(self) -> frozenset[str]:
        """The fields of a setting that are not the same in all cells."""
        return varying_fields(self.cells)

    @functools.cached_property
    def ceilings(self) -> Mapping[str, float | None]:
        """Ceilings and yardsticks that the cells of the main panel carry, in samples per second, by what they are."""
        return ceilings(self.main.listed if self.main else ())

    @functools.cached_property
    def datasets(self) -> Mapping[tuple[Any, ...], "Facts"]:
        """The facts of each dataset on each machine, by `CellSummary.dataset_key`, in the order of their cells."""
        parts: dict[str, dict[tuple[Any, ...], Any]] = {
            "panels": _split(self.panels, lambda panel: panel.first),
            "ordered": _split(self.ordered, lambda panel: panel.first),
            "ladders": _split(self.ladders, lambda ladder: ladder.first),
            "squares": _split(self.squares, lambda square: square.slow),
            "break_evens": _split(self.break_evens, lambda even: even.cell),
            "rooflines": _split(self.rooflines, lambda roofline: roofline.first),
        }
        return {
            key: replace(self, cells=cells, **{name: split.get(key, ()) for name, split in parts.items()})
            for key, cells in _split(self.cells, lambda cell: cell).items()
        }


def _split(
    items: Iterable[_T], cell_of: Callable[[_T], CellSummary]
) -> dict[tuple[Any, ...], tuple[_T, ...]]:
    """Return items by the dataset of a cell of theirs."""
    groups: dict[tuple[Any, ...], list[_T]] = {}
    for item in items:
        groups.setdefault(cell_of(item).dataset_key, []).append(item)
    return {key: tuple(group) for key, group in groups.items()}


def derive(cells: Sequence[CellSummary], decisions: Decisions | None = None) -> Facts:
    """Return the facts of some cells.

    Parameters
    ----------
    cells
        All cells of a page or, with `decisions`, a part of them.
    decisions
        Those of the page that these cells are on; None decides by these cells alone.
    """
    roofs = tuple(rooflines(cells))
    every = panels(cells)
    all_panels = tuple(without(every, point_keys(roofs, every)))
    ordered_panels = tuple(ordered(all_panels))
    made = decisions or decide(
        ordered_panels,
        looks_at(cells),
        by_precision=added_by_precision(cells),
        ratios=comparisons(all_panels),
        others=_concluding_figures(roofs),
    )
    roofs = tuple(roofline.concluding(made.rest_alpha) for roofline in roofs)
    verdicts, climbed, evens = (
        cell_verdicts(cells, made),
        ladders(all_panels, made),
        break_evens(all_panels, made),
    )
    return Facts(
        cells=tuple(cells),
        panels=all_panels,
        ordered=ordered_panels,
        decisions=made,
        claims=claims_of(ordered_panels, cells, made, verdicts, evens, climbed),
        verdicts=verdicts,
        ladders=tuple(climbed),
        squares=tuple(squares(all_panels)),
        break_evens=tuple(evens),
        rooflines=roofs,
    )


def _concluding_figures(roofs: Sequence[Roofline]) -> int:
    """Return the number of starving points and trained rates that sentences may use."""
    trained = {network.cell.key for roofline in roofs for network in roofline.trained}
    return len(trained) + sum(len(roofline.curves) for roofline in roofs)


@dataclass(frozen=True, kw_only=True, eq=False)
class PageFacts:
    """The facts of a page: of every cell, and of those whose records validate.

    Attributes
    ----------
    shown
        Of every cell: tables and plots show them all.
    sound
        Of the cells that validate, from which advice is drawn; the same object where all do.
    """

    shown: Facts
    sound: Facts

    @property
    def told(self) -> Facts:
        """The facts that sentences rest on: those of the sound cells, or of all cells if none is sound."""
        return self.sound if self.sound.cells else self.shown

    @property
    def unsound(self) -> tuple[CellSummary, ...]:
        """The cells that do not validate."""
        return tuple(cell for cell in self.shown.cells if cell.invalid)

    def sound_part(self, key: tuple[Any, ...]) -> Facts:
        """Return the facts of a dataset's cells that validate; they may be none."""
        return self.sound.datasets.get(key) or derive((), self.sound.decisions)


def derive_page(cells: Sequence[CellSummary]) -> PageFacts:
    """Return the facts of a page. Every comparison is decided by the cells that validate, or by all where none does."""
    sound = [cell for cell in cells if not cell.invalid]
    derived = derive(sound or cells)
    if len(derived.cells) == len(cells):
        return PageFacts(shown=derived, sound=derived if sound else derive((), derived.decisions))
    return PageFacts(shown=derive(cells, derived.decisions), sound=derived)
