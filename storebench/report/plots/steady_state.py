"""How the delivered rate settles where the page cache is limited."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from storebench.report.cells import CellSummary
from storebench.report.plots.curve import (
    FAINT,
    Curve,
    curve_axes,
    curve_cells,
    first_replicate,
    line_styles,
    rate_axis,
    reading,
)
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection
from storebench.report.plots.style import legend_below, look, styled, title
from storebench.report.texts.labels import backend_label, panel_state, percent, setting_slug, size
from storebench.settings.words import CacheState

QUESTION = "Has the limited page cache reached a steady state?"


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the curve of every panel with a limited page cache that has step files."""
    for panel, cells in curve_cells(selection, CacheState.LIMITED):
        cell = panel.first.cell
        slug = setting_slug(cell, selection.facts.varying - {"cache", "memory_bytes"})
        name = f"limited-{(cell.memory_bytes or 0) >> 20}-mib{slug}"
        draw = functools.partial(plot_steady_state, cells)
        yield Plot(name=name, question=QUESTION, answer=steady_answer(cells), draw=draw)


def steady_answer(cells: Sequence[CellSummary]) -> str:
    """Return how many limited cells reached a steady state, and how far their rates still moved in it."""
    limited = reading(cells, CacheState.LIMITED)
    steady = [cell for cell in limited if not cell.whole_only and not cell.unsteady]
    unsteady = [backend_label(cell.backend) for cell in limited if cell.whole_only or cell.unsteady]
    drifts = [
        (abs(float(row["portion_drift"]) - 1), backend_label(cell.backend))
        for cell in steady
        for row in cell.counted
        if row["portion_drift"] is not None
    ]
    limit = size(limited[0].cell.memory_bytes) if limited else ""
    said = [f"{len(steady)} of {len(limited)} backends are shown to be steady with a page cache of {limit}"]
    if drifts:
        most, name = max(drifts)
        said.append(
            f"the second half of the steady part differs from the first by at most {percent(most)} ({name})"
        )
    if unsteady:
        said.append(f"not shown: {', '.join(unsteady)}")
    return "; ".join(said) + "."


def plot_steady_state(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the rate over all epochs of cells whose page cache was limited, and below it what was resident.

    One line per backend, of the first replicate. Its thick part is the steady one, which the cell's rate is of.

    Parameters
    ----------
    results
        The table that `storebench.load_results` returned; of its cells the limited ones that read their store are drawn.
    ax
        Where to draw; None makes a new figure, and only there residency has axes of its own.
    """
    cells = reading(results, CacheState.LIMITED)
    with styled():
        ax, below = curve_axes(ax, cells)
        for cell, line in zip(cells, line_styles(cells), strict=True):
            for before, epoch in enumerate(first_replicate(cell, growing=False)):
                _draw_steady(ax, below, cell, epoch, line, before)
        (below or ax).set_xlabel("times that the store was asked for")
        rate_axis(ax)
        if below is not None:
            for limit in sorted({share for cell in cells if (share := limit_frac(cell)) is not None}):
                below.axhline(100 * limit, color="black", linewidth=0.8, linestyle=":")
            below.set_ylim(-3, 108)
            below.set_ylabel("resident (%)")
        legend_below(ax)
        note = f"{panel_state(cells)}. Thick: the steady part. Dotted: the limit" if cells else ""
        title(ax, QUESTION, note, cells)
    return ax


def _draw_steady(
    ax: Axes, below: Axes | None, cell: CellSummary, epoch: Curve, line: str, before: int
) -> None:
    style, asked = look(cell), before + epoch.asked_frac
    ax.plot(asked, epoch.samples_per_s, color=style.colour, linestyle=line, linewidth=1, alpha=FAINT)
    steady = np.flatnonzero(epoch.portion)
    ax.plot(
        asked[steady],
        epoch.samples_per_s[steady],
        color=style.colour,
        linestyle=line,
        linewidth=2.2,
        label="" if before else backend_label(cell.backend),
    )
    if below is not None and epoch.residency:
        places = [before + point.asked_frac for point in epoch.residency]
        held = [100 * point.resident_frac for point in epoch.residency]
        below.plot(places, held, color=style.colour, linestyle=line, linewidth=1.2)


def limit_frac(cell: CellSummary) -> float | None:
    """Return the page cache's limit as a share of the cell's store, or None where either is not known."""
    stored = cell.fact("store_file_bytes")
    return cell.cell.memory_bytes / stored if cell.cell.memory_bytes and stored else None
