"""The cells of a dataset that its plots draw, and the steps of these cells."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from storebench.accelerators import Accelerator
from storebench.report.analysis import load_steps
from storebench.report.cells import CellSummary
from storebench.report.claims import has_distribution
from storebench.report.facts import Facts
from storebench.report.frame import BACKEND_COLUMNS, CELL_COLUMNS
from storebench.report.panels import Panel
from storebench.report.texts.caveats import caveats
from storebench.report.texts.labels import common_setting

MOST_CELLS = 24
"""Cells drawn in one plot; the tables hold the others."""

MOST_PLOTS = 4
"""Plots of one kind per dataset; the tables hold every setting."""

MOST_LINES = 10
"""Curves drawn in one plot."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """What the plots of one dataset choose their cells from.

    Attributes
    ----------
    facts
        Of all cells of one dataset on one machine.
    accelerators
        Named accelerators that the storage roofline marks.
    """

    facts: Facts
    accelerators: tuple[Accelerator, ...] = ()

    @property
    def panel(self) -> Panel | None:
        """The panel that speaks for the dataset; None if nothing was measured."""
        return self.facts.main

    @property
    def measured(self) -> tuple[CellSummary, ...]:
        """The measured cells of the panel; none without a panel."""
        return self.panel.measured if self.panel else ()

    @property
    def null(self) -> tuple[CellSummary, ...]:
        """The null cell of the panel where it was measured, alone in a tuple; else an empty one."""
        null = self.panel.null if self.panel else None
        return (null,) if null is not None and null.usable else ()

    def alike(self, varying: str) -> list[CellSummary]:
        """Return the usable cells that differ from the panel's in their backend and in one field only."""
        if self.panel is None:
            return []
        free = {*BACKEND_COLUMNS, varying}
        fixed = [name for name in CELL_COLUMNS if name not in free]
        first = self.panel.first.fields
        return [
            cell
            for cell in self.facts.cells
            if cell.usable and not cell.is_null and all(cell.fields[name] == first[name] for name in fixed)
        ]

    @property
    def _stepped(self) -> tuple[CellSummary, ...]:
        return (*self.measured, *self.null)[:MOST_LINES]

    @functools.cached_property
    def steps(self) -> pd.DataFrame | None:
        """The steps of one record of each of the panel's cells, read once; None if none has enough of them."""
        cells = [cell for cell in self._stepped if cell.usable and has_steps(cell) and has_distribution(cell)]
        if all(cell.is_null for cell in cells):
            return None
        return load_steps(pd.DataFrame([dict(cell.usable[0]) for cell in cells]))

    @property
    def step_note(self) -> str:
        """The conditions and caveats of the cells that `steps` are of."""
        setting = common_setting(self._stepped)
        first = first_words(self._stepped)
        return ". ".join([setting, *caveats(self._stepped, setting), *([first] if first else [])])


def has_steps(cell: CellSummary) -> bool:
    """Whether the steps of the cell's first usable record are there."""
    return isinstance(cell.usable[0]["steps_path"], str)


def first_words(cells: Sequence[CellSummary]) -> str:
    """Return a note that lines are of the first replicate; "" if no cell has several."""
    return "Lines: the first replicate of each" if _most_replicates(cells) > 1 else ""


def medians_words(cells: Sequence[CellSummary]) -> str:
    """Return words that end a sentence on medians beside a plot of the first replicate; "" if no cell has several."""
    most = _most_replicates(cells)
    counts = sorted({count for cell in cells if (count := _replicates(cell))})
    told = f"{counts[0]} to {most}" if counts and counts[0] < most else f"{most}"
    return f" (medians of {told} replicates; the lines are of the first)" if most > 1 else ""


def _most_replicates(cells: Sequence[CellSummary]) -> int:
    return max(map(_replicates, cells), default=0)


def _replicates(cell: CellSummary) -> int:
    return len(cell.values("whole_samples_per_s"))


def drawable(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """Return the first cells, no more than fit into a plot."""
    return list(cells)[:MOST_CELLS]


def with_count(answer: str, cells: Sequence[CellSummary]) -> str:
    """Return an answer that says so where only a part of the cells is drawn."""
    if len(cells) <= MOST_CELLS:
        return answer
    return f"{answer} Drawn are {MOST_CELLS} of {len(cells)} cells; the table has them all."


def ranked(cells: Sequence[CellSummary], metric: str) -> list[tuple[float, CellSummary]]:
    """Return (median, cell) of each cell that has a metric, the smallest first."""
    pairs = [(value, cell) for cell in cells if (value := cell.median(metric)) is not None]
    return sorted(pairs, key=lambda pair: pair[0])
