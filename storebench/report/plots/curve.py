"""Curves of an epoch for both curve plots: rate and residency over the requested share of the store."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes

from storebench.arrays import Floats
from storebench.errors import CorruptDataError
from storebench.ranks.merging import RANK, rank_count
from storebench.report.cells import CellSummary, as_cells
from storebench.report.panels import Panel
from storebench.report.plots.selection import MOST_LINES, Selection, has_steps
from storebench.report.plots.style import (
    BackendStyle,
    companion,
    legend_below,
    new_axes,
    plain_numbers,
    title,
)
from storebench.report.states import EpochRow, fills_cache
from storebench.report.texts.labels import panel_state
from storebench.results import ResidencyPoint
from storebench.runs.steps import read_steps
from storebench.settings.words import CacheState

_BINS = 40
FAINT = 0.35
"""Opacity of the parts of a curve for which the cell's rate does not hold."""

_SPENT = ("data_wait_ns", "h2d_ns", "compute_ns")


@dataclass(frozen=True, kw_only=True)
class EpochCurve:
    """The steps of one epoch of one replicate, in pieces.

    Attributes
    ----------
    asked_frac
        Share of the store that had been requested at the end of each piece.
    samples_per_s
        Rate within each piece.
    portion
        Whether each piece is part of the steps that the cell's rate holds for.
    residency
        Residency of the store meanwhile.
    """

    asked_frac: Floats
    samples_per_s: Floats
    portion: npt.NDArray[np.bool_]
    residency: tuple[ResidencyPoint, ...]


def curve(row: EpochRow, *, growing: bool) -> EpochCurve | None:
    """Return the curve of a record, or None if its steps cannot be read or the size of its store is missing.

    Growing pieces begin with single steps, others are of one length. The portion begins and ends with a piece. With workers,
    whose batches arrive in bursts of one from each, a piece has a batch of each worker.
    """
    path, count = row["steps_path"], row["store_count"]
    if not isinstance(path, str) or not count:
        return None
    try:
        steps = read_steps(Path(path), row["steps_file"], ("samples", *_SPENT), later=(RANK,))
        ranks = rank_count(steps)
    except CorruptDataError:
        return None
    if not len(steps["samples"]):
        return None
    samples = steps["samples"].astype(np.float64).reshape(-1, ranks).sum(axis=1)
    spent_ns = sum((steps[name].astype(np.float64) for name in _SPENT), np.zeros(len(steps["samples"])))
    seconds = spent_ns.reshape(-1, ranks).mean(axis=1) / 1e9
    first, end = _portion(row)
    spaced = np.geomspace if growing else np.linspace
    cuts = spaced(1, len(samples) + 1, _BINS + 1).astype(np.int64) - 1
    cuts -= cuts % max(1, int(row["workers"] or 0))
    cuts = np.unique([*cuts, *(cut for cut in (first, end) if 0 < cut < len(samples)), len(samples)])
    starts = cuts[:-1]
    spent = np.maximum(np.add.reduceat(seconds, starts), 1e-9)
    return EpochCurve(
        asked_frac=np.cumsum(samples)[cuts[1:] - 1] / float(count),
        samples_per_s=np.add.reduceat(samples, starts) / spent,
        portion=(starts >= first) & (cuts[1:] <= end),
        residency=tuple(row["cache_curve"] or ()),
    )


def _portion(row: EpochRow) -> tuple[int, int]:
    if row["cache"] == CacheState.COLD:
        return 0, int(row["steps"])
    if not row["portion_seconds"]:
        return 0, 0
    first = int(row["portion_first_step"])
    return first, first + int(row["portion_steps"])


def reading(results: pd.DataFrame | Sequence[CellSummary], state: CacheState) -> list[CellSummary]:
    """Return the cells that read their store during the epoch with the page cache in this state."""
    return [
        cell
        for cell in as_cells(results)
        if cell.cell.cache == state and any(fills_cache(row, cell.cell) for row in cell.usable)
    ]


def curve_cells(selection: Selection, state: CacheState) -> Iterator[tuple[Panel, list[CellSummary]]]:
    """Yield each panel of a cache state with those of its cells that read their store and have step files."""
    for panel in selection.facts.panels:
        if panel.first.cell.cache == state:
            cells = [cell for cell in reading(panel.cells, state) if has_steps(cell)][:MOST_LINES]
            if cells:
                yield panel, cells


def curve_axes(ax: Axes | None, cells: Sequence[CellSummary]) -> tuple[Axes, Axes | None]:
    """Return the axes of the rate and, in a new figure and if residency was sampled, those of residency."""
    sampled = any(row["cache_curve"] for cell in cells for row in cell.usable)
    return companion(new_axes(4.6 if sampled else 3.6, ax), own=ax is None and sampled)


def first_replicate(cell: CellSummary, *, growing: bool) -> list[EpochCurve]:
    """Return the curve of every epoch of the cell's first replicate."""
    rows = cell.usable
    first = min(((row["run_id"], row["replicate"]) for row in rows), default=None)
    ours = sorted(
        (row for row in rows if (row["run_id"], row["replicate"]) == first), key=lambda r: r["epoch"]
    )
    return [epoch for row in ours if (epoch := curve(row, growing=growing)) is not None]


def draw_rate(
    ax: Axes,
    style: BackendStyle,
    epoch: EpochCurve,
    asked: Floats,
    *,
    label: str,
) -> None:
    """Draw the rate of an epoch as a faint line, and as a thick one where the cell's rate holds.

    Parameters
    ----------
    style
        Colour and line.
    asked
        Horizontal place of each piece, as many as `epoch` has.
    label
        Name in the legend; "" leaves the line out of it.
    """
    colour, line, part = style.colour, style.line, np.flatnonzero(epoch.portion)
    ax.plot(asked, epoch.samples_per_s, color=colour, linestyle=line, linewidth=1, alpha=FAINT)
    ax.plot(asked[part], epoch.samples_per_s[part], color=colour, linestyle=line, linewidth=2.2, label=label)


def residency_percent(epoch: EpochCurve) -> tuple[Floats, Floats]:
    """Return the requested and the resident share of the store in percent, float64 [counts] each."""
    asked = np.array([point.asked_frac for point in epoch.residency])
    return asked, np.array([100 * point.resident_frac for point in epoch.residency])


def finish_curves(
    ax: Axes, below: Axes | None, question: str, note: str, cells: Sequence[CellSummary]
) -> None:
    """Label the axes of rate and residency, and write legend and title.

    Parameters
    ----------
    below
        The axes of residency; None if residency is not drawn.
    note
        The meaning of dots and lines; it follows the state of the cells.
    """
    ax.set_yscale("log")
    plain_numbers(ax.yaxis)
    ax.set_ylabel("throughput (samples/s)")
    if below is not None:
        below.set_ylim(-3, 108)
        below.set_ylabel("resident (%)")
    legend_below(ax)
    title(ax, question, f"{panel_state(cells)}. {note}" if cells else "", cells)
