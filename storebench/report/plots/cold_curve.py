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
from storebench.report.texts.labels import agreed, backend_label, listed, number, percent, setting_slug
from storebench.settings.words import CacheState
from storebench.units import number_of

QUESTION = "How long is a cold epoch cold?"

FEWEST_BATCHES = 3
"""A cold part of fewer batches, of every cell of a panel, is no curve: that is one point, or two."""

_SHARES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the curve of every cold panel that has step files and is cold for long enough to have one."""
    for panel, cells in curve_cells(selection, CacheState.COLD):
        if cold_batches(cells) < FEWEST_BATCHES:
            continue  # `left_out` says so
        slug = setting_slug(panel.first.cell, selection.facts.varying - {"cache", "memory_bytes"})
        draw = functools.partial(plot_cold_curve, cells)
        yield Plot(name=f"cold-curve{slug}", question=QUESTION, answer=cold_answer(cells), draw=draw)


def cold_batches(cells: Sequence[CellSummary]) -> int:
    """Return the longest cold part of any record of these cells, in batches; 0 if none says which steps were cold."""
    step_counts = (row["portion_steps"] for cell in cells for row in cell.usable if row["portion_seconds"])
    return max((int(steps) for steps in step_counts), default=0)


def cold_answer(cells: Sequence[CellSummary]) -> str:
    """Return a sentence on how long cells were cold, and on the backend whose rate the page cache then changed most."""
    changed: list[CellSummary] = []
    throughout: list[CellSummary] = []
    rising: list[CellSummary] = []
    short: list[CellSummary] = []
    for cell in reading(cells, CacheState.COLD):
        if cell.steps:
            whole = min(int(row["timed_steps"]) for row in cell.usable)
            group = short if cell.steps < FEWEST_BATCHES else changed
            if cell.steps >= whole:
                group = rising if cell.rise else throughout
            group.append(cell)
    clauses = [
        _changed(changed),
        _were(throughout, "cold throughout the epoch"),
        *map(_rose, rising),
        _were(short, f"cold for {number_of(max((cell.steps for cell in short), default=0), 'step')} only"),
    ]
    sharing = [backend_label(cell.backend) for cell in (*changed, *throughout, *rising) if cell.shares_pages]
    if sharing:
        clauses.append(
            f"Several samples share a page ({', '.join(sharing)}): each request also brings in samples that were not requested, so"
            " more of the store is resident and the rate rises, but it counts as cold."
        )
    text = " ".join(clause for clause in clauses if clause)
    return text or "The records do not say in which steps the cells were cold, so no cold rate is given."


def _changed(cells: Sequence[CellSummary]) -> str:
    """Return until when cells were cold that did not stay so, and the rate that changed most afterwards; "" for none."""
    rates = []
    for cell in cells:
        cold, whole = cell.median("samples_per_s"), cell.median("whole_samples_per_s")
        asked = cell.median("portion_asked_frac")
        if cold and whole and asked is not None:
            cold_rate = ("at most " if cell.at_most else "") + number(cold)
            rates.append((whole / cold, asked, cold_rate, whole, cell))
    if not rates:
        return ""
    shortest, longest = min(share for _, share, *_ in rates), max(share for _, share, *_ in rates)
    span = percent(longest) if shortest == longest else f"{percent(shortest)} to {percent(longest)}"
    _, asked, cold_rate, whole, most = max(rates, key=lambda rate: max(rate[0], 1 / rate[0]))
    were = _clause([cell for *_, cell in rates], f"cold until {span} of the store had been requested")
    return (
        f"{were}; {backend_label(most.backend)} gave {cold_rate} samples/s while cold"
        f" (up to {percent(asked)}) and {number(whole)} over the entire epoch{medians_words(cells)}."
    )


def _rose(cell: CellSummary) -> str:
    """Return why the rate of a cell that was cold throughout is an upper bound."""
    return (
        f"{_were([cell], 'cold throughout the epoch, as far as resident pages show')} Its rate rose {number(cell.rise, 2)}-fold"
        " within it, so that something other than the device may have served the later steps: the rate is an upper bound."
    )


def _were(cells: Sequence[CellSummary], state: str) -> str:
    """Return a sentence that names the cells in a state; "" for none."""
    return f"{_clause(cells, state)}." if cells else ""


def _clause(cells: Sequence[CellSummary], state: str) -> str:
    """Return "LMDB and PNG files were cold"."""
    names = listed([backend_label(cell.backend) for cell in cells])
    return f"{names} {'were' if len(cells) > 1 else agreed(cells[0], 'was', 'were')} {state}"


def plot_cold_curve(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the delivered rate against the requested share of the store, and below it the resident share.

    There is one line per backend, for the first replicate. Its thick part is cold and ends with a dot. After the dot,
    more is resident than was requested, so the page cache serves part of the rest of the epoch.

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
                draw_rate(ax, style, epoch, 100 * epoch.asked_frac, label=label, end_dot=True)
                if below is not None and epoch.residency:
                    _draw_residency(below, epoch, style)
        _share_axis(below or ax)
        if below is not None:
            asked = np.geomspace(below.get_xlim()[0], 100.0, 200)
            below.plot(asked, asked, color="black", linewidth=0.9, linestyle=":")
        note = noted("Dot: the end of the cold part. Dotted: the requested share", first_words(cells))
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
