"""The delivered rate over one cold epoch, while the page cache fills."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from storebench.report.cells import CellSummary
from storebench.report.plots.curve import (
    EpochCurve,
    curve_axes,
    curve_cells,
    draw_rate,
    finish_curves,
    first_replicate,
    reading,
    residency_percent,
)
from storebench.report.plots.looks import cell_looks
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection, first_words, medians_words
from storebench.report.plots.style import BackendStyle, noted, plain_ticks, styled
from storebench.report.texts.labels import backend_label, number, percent, setting_slug
from storebench.results import COLD_SHARES
from storebench.settings.words import CacheState

QUESTION = "How does the rate change from a cold start on?"

_SHARES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the curve of every cold panel that has step files."""
    for panel, cells in curve_cells(selection, CacheState.COLD):
        slug = setting_slug(panel.first.cell, selection.facts.varying - {"cache", "memory_bytes"})
        draw = functools.partial(plot_cold_curve, cells)
        yield Plot(name=f"cold-curve{slug}", question=QUESTION, answer=cold_answer(cells), draw=draw)


def cold_answer(cells: Sequence[CellSummary]) -> str:
    """Return how much the rate from a cold start changes with the share of the store that is read, for the cell most changed."""
    changes = []
    for cell in reading(cells, CacheState.COLD):
        known = [(share, rate[0]) for share in COLD_SHARES if (rate := cell.cold_rate(share)) is not None]
        if len(known) > 1:
            (first, early), (last, late) = known[0], known[-1]
            changes.append((max(late / early, early / late), cell, first, early, last, late))
    if not changes:
        return "The epochs are too short for rates at several shares of the store."
    _, cell, first, early, last, late = max(changes, key=lambda change: change[0])
    return (
        f"{backend_label(cell.backend)} changed most: {number(early)} samples/s with {percent(first)} of the store read,"
        f" {number(late)} with {percent(last)}{medians_words(cells)}."
    )


def plot_cold_curve(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the delivered rate against the requested share of the store, and below it the resident share.

    There is one line per backend, for the first replicate. Where more is resident than was requested, the page cache serves a
    part of the reads.

    Parameters
    ----------
    results
        The table that `storebench.load_results` returned. Its cold cells that read their store are drawn.
    ax
        Axes to draw on; None makes a new figure. Only a new figure has axes for residency.
    """
    cells = reading(results, CacheState.COLD)
    with styled():
        ax, below = curve_axes(ax, cells)
        for cell, style in zip(cells, cell_looks(cells), strict=True):
            for epoch in first_replicate(cell, growing=True)[:1]:
                label = backend_label(cell.backend)
                draw_rate(ax, style, epoch, 100 * epoch.asked_frac, label=label)
                if below is not None and epoch.residency:
                    _draw_residency(below, epoch, style)
        _share_axis(below or ax)
        if below is not None:
            asked = np.geomspace(below.get_xlim()[0], 100.0, 200)
            below.plot(asked, asked, color="black", linewidth=0.9, linestyle=":")
        note = noted("Dotted: the requested share", first_words(cells))
        finish_curves(ax, below, QUESTION, note, cells)
    return ax


def _share_axis(ax: Axes) -> None:
    """Make the horizontal axis logarithmic, with ticks at round shares."""
    ax.set_xscale("log")
    ax.set_xlabel("requested share of the store (%)")
    low, high = ax.get_xlim()
    ax.set_xlim(low, high)
    ax.set_xticks([tick for tick in _SHARES if low <= tick <= high])
    plain_ticks(ax.xaxis)


def _draw_residency(below: Axes, epoch: EpochCurve, style: BackendStyle) -> None:
    """Draw the resident share, and shade where it exceeds the requested share."""
    colour, (asked_frac, held) = style.colour, residency_percent(epoch)
    seen = asked_frac > 0
    asked, held = 100 * asked_frac[seen], held[seen]
    below.plot(asked, held, color=colour, linestyle=style.line, linewidth=1.2)
    below.fill_between(asked, asked, held, where=held > asked, color=colour, alpha=0.12)
