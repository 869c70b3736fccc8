"""The parts of a step's time: those of the loop as a stacked bar, and beside it those of the producers."""

import functools
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch, Rectangle

from storebench import stats
from storebench.report.cells import WORK_COLUMNS, CellSummary, as_cells
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection, drawable, ranked, with_count
from storebench.report.plots.style import (
    PART_COLOURS,
    BackendStyle,
    bar,
    beside,
    legend_below,
    make_room,
    name_rows,
    new_axes,
    spaced_numbers,
    styled,
    title,
)
from storebench.report.texts.labels import backend_label, common_setting, duration, percent
from storebench.settings.words import ComputeKind

QUESTION = "Where does a step's time go?"

LOOP_PARTS = {"data wait": "data_wait_s", "copy": "h2d_s", "compute": "compute_s"}
PRODUCER_PARTS = {"fetch": "fetch_s", "decode": "decode_s", "prep": "prep_s", "handoff": "handover_s"}


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot of the panel's cells in every cache state."""
    if selection.measured:
        cells = (*selection.alike("cache"), *selection.null)
        answer = with_count(step_answer(selection.measured), cells)
        draw = functools.partial(plot_step_time, drawable(cells))
        yield Plot(name="step-time", question=QUESTION, answer=answer, draw=draw)


def step_answer(cells: Sequence[CellSummary]) -> str:
    """Return the shares of its time that the loop waits: the largest and the smallest."""
    if cells and cells[0].cell.compute.kind is ComputeKind.NONE:
        return _work_answer(cells)
    waits = ranked(cells, "data_wait_frac")
    if not waits:
        return ""
    (least, first), (most, last) = waits[0], waits[-1]
    if first is last:
        return f"With {backend_label(first.backend)} the loop waits {percent(least)} of its time."
    return (
        f"With {backend_label(last.backend)} the loop waits {percent(most)} of its time,"
        f" with {backend_label(first.backend)} {percent(least)}."
    )


def _work_answer(cells: Sequence[CellSummary]) -> str:
    """Return the largest part of the producers' work with the slowest backend and the fastest: a loop that computes nothing only waits."""
    rates = ranked(cells, "samples_per_s")
    shares = (
        [words for _, cell in dict.fromkeys((rates[0], rates[-1])) if (words := _largest_part(cell))]
        if rates
        else []
    )
    listed = f": {', and '.join(shares)}" if shares else ""
    return f"The loop computes nothing and waits for the producers{listed}."


def _largest_part(cell: CellSummary) -> str:
    """Return "decode is 76% of their work with PNG files"; "" if none of it was measured."""
    parts = {name: metric for name, metric in PRODUCER_PARTS.items() if metric in WORK_COLUMNS}
    shares = {
        name: stats.median(list(found.values()))
        for name, metric in parts.items()
        if (found := cell.work_share(metric))
    }
    most = max(shares, key=shares.__getitem__, default="")
    return (
        f"{most} is {percent(shares[most])} of their work with {backend_label(cell.backend)}" if most else ""
    )


def plot_step_time(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw where a step's time goes, per backend and cache state.

    The upper bar of each pair is the training loop (its parts add up to the step),
    the lower one the time that the producers worked for that step; with several
    workers the producers' time is divided by their number, because they run side by side.

    Parameters
    ----------
    results
        The table that `storebench.load_results` returned, filtered to the cells to draw.
    ax
        Axes to draw on; None makes a new figure.
    """
    cells = _drawable(as_cells(results))
    with styled():
        ax = new_axes(1.6 + 0.46 * len(cells), ax)
        for position, cell in enumerate(cells):
            _stack(ax, cell, LOOP_PARTS, position - 0.19, 1.0)
            _stack(ax, cell, PRODUCER_PARTS, position + 0.19, 1.0 / max(cell.cell.workers, 1))
        _finish(ax, cells)
    return ax


def _drawable(cells: Sequence[CellSummary]) -> list[CellSummary]:
    # Nothing is read from a store for null, so one of its cache states is enough.
    null = [cell for cell in cells if cell.is_null and cell.usable][:1]
    return [cell for cell in cells if cell.usable and not cell.is_null] + null


def _stack(ax: Axes, cell: CellSummary, parts: dict[str, str], position: float, share: float) -> None:
    left = 0.0
    for name, metric in parts.items():
        width = cell.per_step(metric) * share * 1000
        if width > 0:
            style = BackendStyle(colour=PART_COLOURS[name], hatch="", marker="", line="-")
            bar(ax, position, width, style, height=0.34, left=left)
        left += width
    if parts is LOOP_PARTS:
        least = "at least " if cell.at_most else ""
        waits = percent(cell.median("data_wait_frac"))
        beside(ax, left, position, f"{least}{duration(left / 1000)}, {waits} waiting")


def _finish(ax: Axes, cells: Sequence[CellSummary]) -> None:
    name_rows(ax, cells)
    ax.set_xlabel("time per step (ms)")
    ax.set_xlim(0, 1.05 * max((_end(bar) for bar in ax.patches), default=1.0))
    drawn = {patch.get_facecolor() for patch in ax.patches}
    for name, colour in PART_COLOURS.items():
        if to_rgba(colour) in drawn:
            ax.barh(0, 0, color=colour, label=name)
    legend_below(ax)
    note = ". Upper bar: the training loop. Lower bar: the producers"
    title(ax, QUESTION, common_setting(cells) + note, cells)
    make_room(ax)
    spaced_numbers(ax)


def _end(bar: Patch) -> float:
    return float(bar.get_x() + bar.get_width()) if isinstance(bar, Rectangle) else 0.0
