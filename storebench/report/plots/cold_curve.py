"""How the delivered rate changes over one cold epoch, as the page cache fills."""

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
from storebench.report.plots.style import legend_below, look, plain_ticks, styled, title
from storebench.report.texts.labels import backend_label, number, panel_state, percent, setting_slug
from storebench.settings.words import CacheState

QUESTION = "How long is a cold epoch cold?"

_SHARES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the curve of every cold panel that has step files."""
    for panel, cells in curve_cells(selection, CacheState.COLD):
        slug = setting_slug(panel.first.cell, selection.facts.varying - {"cache", "memory_bytes"})
        draw = functools.partial(plot_cold_curve, cells)
        yield Plot(name=f"cold-curve{slug}", question=QUESTION, answer=cold_answer(cells), draw=draw)


def cold_answer(cells: Sequence[CellSummary]) -> str:
    """Return how long the cells were cold, and the backend whose rate the page cache changed most afterwards."""
    told = []
    for cell in reading(cells, CacheState.COLD):
        cold, whole = cell.median("samples_per_s"), cell.median("whole_samples_per_s")
        asked = cell.median("portion_asked_frac")
        if cold and whole and asked is not None:
            told.append((whole / cold, asked, cold, whole, backend_label(cell.backend)))
    if not told:
        return "The records do not say in which steps the cells were cold, so no cold rate is given."
    shortest, longest = min(one[1] for one in told), max(one[1] for one in told)
    span = percent(longest) if shortest == longest else f"{percent(shortest)} to {percent(longest)}"
    _, asked, cold, whole, name = max(told, key=lambda one: max(one[0], 1 / one[0]))
    return (
        f"Until {span} of the store had been asked for; {name} gave {number(cold)} samples/s while cold"
        f" (up to {percent(asked)}) and {number(whole)} over the whole epoch."
    )


def plot_cold_curve(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the delivered rate against the share of the store that was asked for, and below it what was resident.

    One line per backend, of the first replicate. Its thick part is the cold one and ends with a dot: from there
    on more was resident than had been asked for, so the rest of the epoch is fed by the page cache.

    Parameters
    ----------
    results
        The table that `storebench.load_results` returned; of its cells the cold ones that read their store are drawn.
    ax
        Where to draw; None makes a new figure, and only there residency has axes of its own.
    """
    cells = reading(results, CacheState.COLD)
    with styled():
        ax, below = curve_axes(ax, cells)
        for cell, line in zip(cells, line_styles(cells), strict=True):
            for epoch in first_replicate(cell, growing=True)[:1]:
                _draw_cold(ax, below, cell, epoch, line)
        lowest = below or ax
        lowest.set_xscale("log")
        lowest.set_xlabel("share of the store that was asked for (%)")
        rate_axis(ax)
        low, high = lowest.get_xlim()
        lowest.set_xlim(low, high)
        lowest.set_xticks([tick for tick in _SHARES if low <= tick <= high])
        plain_ticks(lowest.xaxis)
        if below is not None:
            asked = np.geomspace(low, 100.0, 200)
            below.plot(asked, asked, color="black", linewidth=0.9, linestyle=":")
            below.set_ylim(-3, 108)
            below.set_ylabel("resident (%)")
        legend_below(ax)
        note = (
            f"{panel_state(cells)}. Dot: the end of the cold part. Dotted: what was asked for"
            if cells
            else ""
        )
        title(ax, QUESTION, note, cells)
    return ax


def _draw_cold(ax: Axes, below: Axes | None, cell: CellSummary, epoch: Curve, line: str) -> None:
    style, shares = look(cell), 100 * epoch.asked_frac
    ax.plot(shares, epoch.samples_per_s, color=style.colour, linestyle=line, linewidth=1, alpha=FAINT)
    cold = np.flatnonzero(epoch.portion)
    ax.plot(
        shares[cold],
        epoch.samples_per_s[cold],
        color=style.colour,
        linestyle=line,
        linewidth=2.2,
        marker="o",
        markevery=[len(cold) - 1] if len(cold) else [],
        markersize=6,
        label=backend_label(cell.backend),
    )
    if below is not None and epoch.residency:
        asked = np.array([100 * point.asked_frac for point in epoch.residency])
        held = np.array([100 * point.resident_frac for point in epoch.residency])
        seen = asked > 0
        below.plot(asked[seen], held[seen], color=style.colour, linestyle=line, linewidth=1.2)
        below.fill_between(
            asked[seen],
            asked[seen],
            held[seen],
            where=held[seen] > asked[seen],
            color=style.colour,
            alpha=0.12,
        )
