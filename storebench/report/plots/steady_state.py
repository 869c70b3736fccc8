"""The delivered rate with a limited page cache, until it is steady."""

import functools
import math
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench import stats
from storebench.report.cells import CellSummary
from storebench.report.plots.curve import (
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
from storebench.report.plots.selection import Selection, first_words
from storebench.report.plots.style import noted, styled
from storebench.report.texts.labels import backend_label, percent, setting_slug, size
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
    """Return the number of limited cells that reached a steady state, and how far their rates still changed in it."""
    limited = reading(cells, CacheState.LIMITED)
    steady = [cell for cell in limited if not cell.whole_only and not cell.unsteady]
    unsteady = [backend_label(cell.backend) for cell in limited if cell.whole_only or cell.unsteady]
    drifts = {backend_label(cell.backend): cell.drifts for cell in steady if cell.drifts}
    limit = size(limited[0].cell.memory_bytes) if limited else ""
    clauses = [
        f"{len(steady)} of {len(limited)} backends are shown to be steady with a page cache of {limit}"
    ]
    if drifts:
        # A cell is steady by its median replicate, so that figure leads; single replicates may be disturbed.
        usual, name = max((math.expm1(stats.median(known)), name) for name, known in drifts.items())
        several = any(len(known) > 1 for known in drifts.values())
        median = ", in the median replicate of each," if several else ""
        clauses.append(
            f"the second half of the steady part{median} differs from the first by at most {percent(usual)} ({name})"
        )
    if single := [words for cell in steady if (words := _moving(cell))]:
        clauses.append(f"of these, single replicates were not steady: {', '.join(single)}")
    if unsteady:
        clauses.append(f"not shown: {', '.join(unsteady)}")
    return "; ".join(clauses) + "."


def _moving(cell: CellSummary) -> str:
    """Return the replicates of a steady cell that were not steady: "LMDB (1 of 3, by up to 400%)"; "" if all were."""
    moving, of = cell.unsteady_replicates
    if not moving:
        return ""
    most = percent(math.expm1(max(cell.drifts or (0.0,))))
    return f"{backend_label(cell.backend)} ({moving} of {of}, by up to {most})"


def plot_steady_state(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the rate over all epochs of cells with a limited page cache, and below it the resident share.

    One line per backend, of the first replicate. Its thick part is the steady one, for which the cell's rate holds.

    Parameters
    ----------
    results
        The table that `storebench.load_results` returned. Its limited cells that read their store are drawn.
    ax
        Axes to draw on; None makes a new figure. Only a new figure has axes for residency.
    """
    cells = reading(results, CacheState.LIMITED)
    with styled():
        ax, below = curve_axes(ax, cells)
        for cell, style in zip(cells, cell_looks(cells), strict=True):
            for before, epoch in enumerate(first_replicate(cell, growing=False)):
                label = "" if before else backend_label(cell.backend)
                draw_rate(ax, style, epoch, before + epoch.asked_frac, label=label)
                if below is not None and epoch.residency:
                    asked, held = residency_percent(epoch)
                    below.plot(before + asked, held, color=style.colour, linestyle=style.line, linewidth=1.2)
            limit = limit_frac(cell)
            if below is not None and limit is not None:
                below.axhline(100 * limit, color=style.colour, linewidth=1.0, linestyle=":")
        (below or ax).set_xlabel("requested samples (multiples of the store)")
        note = "Thick: the steady part. Dotted: the limit as a share of the store of its colour"
        finish_curves(ax, below, QUESTION, noted(note, first_words(cells)), cells)
    return ax


def limit_frac(cell: CellSummary) -> float | None:
    """Return the page cache's limit as a share of the cell's store; None if either is unknown."""
    stored = cell.fact("store_file_bytes")
    return cell.cell.memory_bytes / stored if cell.cell.memory_bytes and stored else None
