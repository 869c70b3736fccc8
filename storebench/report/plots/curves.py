"""The delivered rate within epochs: from a cold start, and with a limited page cache until it is steady."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes

from storebench.arrays import Floats
from storebench.errors import CorruptDataError
from storebench.ranks.merging import RANK, rank_count
from storebench.report.cells import CellSummary, Row, as_cells, fills_cache
from storebench.report.labels import backend_label
from storebench.report.plots.style import (
    MOST_LINES,
    finish,
    looks,
    new_axes,
    plain_numbers,
    plain_ticks,
    styled,
)
from storebench.runs.steps import read_steps
from storebench.settings.words import CacheState

COLD = "How does the rate change from a cold start on?"
STEADY = "When is a limited page cache steady?"

_BINS = 40
_SHARES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_SPENT = ("data_wait_ns", "h2d_ns", "compute_ns")


@dataclass(frozen=True, kw_only=True)
class _Epoch:
    """Pieces of one epoch: share of the store requested by their ends, their rates, and whether a cell's rate holds."""

    asked_frac: Floats
    samples_per_s: Floats
    steady: npt.NDArray[np.bool_]
    asked_then: Floats
    resident_frac: Floats


def plot_cold_curve(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the rate against the requested share of the store, and below it the resident share, from a cold start on.

    There is one line per backend, for the first replicate. Where more is resident than was requested (dotted), the page
    cache serves a part of the reads.

    Parameters
    ----------
    results
        The table that `storebench.load_results` returned. Its cold cells that read their store are drawn.
    ax
        Axes to draw on; None makes a new figure. Only a new figure has axes for residency.
    """
    cells = reading(results, CacheState.COLD)
    with styled():
        ax, below = _axes(ax, cells)
        for cell, look in zip(cells, looks(cells), strict=True):
            for epoch in _first_replicate(cell, growing=True)[:1]:
                label = backend_label(cell.backend)
                ax.plot(100 * epoch.asked_frac, epoch.samples_per_s, **look.stroke, label=label)
                seen = epoch.asked_then > 0
                if below is not None:
                    below.plot(100 * epoch.asked_then[seen], 100 * epoch.resident_frac[seen], **look.stroke)
        last = below or ax
        last.set_xscale("log")
        last.set_xlabel("requested share of the store (%)")
        low, high = last.get_xlim()
        plain_ticks(last.xaxis, [tick for tick in _SHARES if low <= tick <= high])
        if below is not None:
            asked = np.geomspace(max(low, 1e-3), 100.0, 200)
            below.plot(asked, asked, color="black", linewidth=0.9, linestyle=":")
        _finish(ax, below, COLD, cells, "Dotted: the requested share")
    return ax


def plot_steady_state(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the rate over all epochs of cells with a limited page cache, and below it the resident share.

    One line per backend, of the first replicate. Its thick part is the steady one, for which the cell's rate holds.
    """
    cells = reading(results, CacheState.LIMITED)
    with styled():
        ax, below = _axes(ax, cells)
        for cell, look in zip(cells, looks(cells), strict=True):
            for before, epoch in enumerate(_first_replicate(cell, growing=False)):
                label = "" if before else backend_label(cell.backend)
                places, part = before + epoch.asked_frac, np.flatnonzero(epoch.steady)
                rates, colour = epoch.samples_per_s, look.colour
                ax.plot(places, rates, **look.stroke, alpha=0.35, linewidth=1)
                ax.plot(places[part], rates[part], color=colour, linewidth=2.2, label=label)
                if below is not None:
                    resident = 100 * epoch.resident_frac
                    below.plot(before + epoch.asked_then, resident, color=colour, linewidth=1.2)
        (below or ax).set_xlabel("requested samples (multiples of the store)")
        _finish(ax, below, STEADY, cells, "Thick: the steady part")
    return ax


def reading(results: pd.DataFrame | Sequence[CellSummary], state: CacheState) -> list[CellSummary]:
    """Return the cells that read their store during the epoch with the page cache in this state."""
    cells = [cell for cell in as_cells(results) if cell.cell.cache == state]
    return [cell for cell in cells if any(fills_cache(row, cell.cell) for row in cell.usable)][:MOST_LINES]


def _axes(ax: Axes | None, cells: Sequence[CellSummary]) -> tuple[Axes, Axes | None]:
    """Return the axes of the rate and, in a new figure and if residency was sampled, those of residency."""
    sampled = any(row["cache_curve"] for cell in cells for row in cell.usable)
    return new_axes(4.8 if sampled else 3.6, ax, rows=(2.2, 1) if sampled else (1,))


def _finish(ax: Axes, below: Axes | None, question: str, cells: Sequence[CellSummary], note: str) -> None:
    ax.set_yscale("log")
    plain_numbers(ax.yaxis)
    ax.set_ylabel("samples/s")
    if below is not None:
        below.set_ylim(-3, 108)
        below.set_ylabel("resident (%)")
    finish(ax, question, cells, note)


def _first_replicate(cell: CellSummary, *, growing: bool) -> list[_Epoch]:
    first = min(((row["run_id"], row["replicate"]) for row in cell.usable), default=None)
    rows = [row for row in cell.usable if (row["run_id"], row["replicate"]) == first]
    epochs = (_epoch(row, growing=growing) for row in sorted(rows, key=lambda row: row["epoch"]))
    return [epoch for epoch in epochs if epoch is not None]


def _epoch(row: Row, *, growing: bool) -> _Epoch | None:
    """Return the pieces of a record's epoch; None if its steps cannot be read. Growing pieces begin with single steps."""
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
    first = int(row["portion_first_step"] or 0) if row["portion_seconds"] else 0
    end = first + int(row["portion_steps"] or 0) if row["portion_seconds"] else 0
    spaced = np.geomspace if growing else np.linspace
    cuts = spaced(1, len(samples) + 1, _BINS + 1).astype(np.int64) - 1
    cuts -= cuts % max(1, int(row["workers"] or 0))  # workers deliver in bursts of one batch each
    cuts = np.unique([*cuts, *(cut for cut in (first, end) if 0 < cut < len(samples)), len(samples)])
    starts = cuts[:-1]
    spent = np.maximum(np.add.reduceat(seconds, starts), 1e-9)
    points = tuple(row["cache_curve"] or ())
    return _Epoch(
        asked_frac=np.cumsum(samples)[cuts[1:] - 1] / float(count),
        samples_per_s=np.add.reduceat(samples, starts) / spent,
        steady=(starts >= first) & (cuts[1:] <= end),
        asked_then=np.array([point.asked_frac for point in points], np.float64),
        resident_frac=np.array([point.resident_frac for point in points], np.float64),
    )
