"""The parts of a step: those of the loop, of the producers, and in jobs of ranks those of communication."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from storebench.analysis.labels import duration, percent
from storebench.analysis.summary import CellSummary, as_cells
from storebench.report.plots.style import (
    MOST_CELLS,
    PART_COLOURS,
    beside,
    finish,
    name_rows,
    new_axes,
    plain_numbers,
    row_names,
    styled,
)
from storebench.report.ranks import job_name, step_parts

QUESTION = "Where does a step's time go?"
RANKS = "What do ranks wait for?"

_LOOP = {"data wait": "data_wait_s", "copy": "h2d_s", "compute": "compute_s"}
_PRODUCERS = {"fetch": "fetch_s", "decode": "decode_s", "prep": "prep_s", "handoff": "handover_s"}


def plot_step_time(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw where a step's time goes, per backend and cache state.

    The upper bar of each pair is the training loop, whose parts add up to the step; the lower one the time that the
    producers worked for that step, divided by the number of workers, because they run side by side.

    Parameters
    ----------
    results
        The table that `storebench.load_results` returned, filtered to the cells to draw.
    ax
        Axes to draw on; None makes a new figure.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/answer")
    >>> ax = storebench.plot_step_time(results.query("dataset == 'imagenet' and cache == 'cold'"))
    """
    usable = [cell for cell in as_cells(results) if cell.usable]
    null = [cell for cell in usable if cell.is_null][:1]  # null reads no store: one of its states is enough
    cells = [*(cell for cell in usable if not cell.is_null), *null][:MOST_CELLS]
    with styled():
        ax = new_axes(1.4 + 0.46 * len(cells), ax)
        for position, cell in enumerate(cells):
            loop = {name: cell.per_step(metric) for name, metric in _LOOP.items()}
            workers = max(cell.cell.workers, 1)
            producers = {name: cell.per_step(metric) / workers for name, metric in _PRODUCERS.items()}
            end = _stack(ax, loop, position - 0.19, 0.34)
            _stack(ax, producers, position + 0.19, 0.34)
            waits = percent(cell.median("data_wait_frac"))
            beside(ax, end, position - 0.19, f"{duration(end / 1000)}, {waits} waiting")
        _finish(ax, row_names(cells), cells, QUESTION, "Upper bar: the loop. Lower: the producers")
    return ax


def plot_rank_steps(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the parts of a step, one bar per backend, number of ranks and moment of the exchange.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/ranks")
    >>> ax = storebench.plot_rank_steps(results.query("compute == 'emulated:20'"))
    """
    cells = [cell for cell in as_cells(results) if cell.usable][:MOST_CELLS]
    with styled():
        ax = new_axes(1.4 + 0.36 * len(cells), ax)
        for position, cell in enumerate(cells):
            parts = step_parts(cell)
            end = _stack(ax, parts, position, 0.6)
            waits = parts["data wait"] * 1000 / (end or 1.0)
            beside(ax, end, position, f"{duration(end / 1000)}, {percent(waits)} waiting")
        _finish(ax, [job_name(cell) for cell in cells], cells, RANKS)
    return ax


def _stack(ax: Axes, parts: Mapping[str, float], position: float, height: float) -> float:
    """Draw parts in seconds as one bar in milliseconds, and return its end."""
    left = 0.0
    for name, seconds in parts.items():
        if seconds > 0:
            ax.barh(position, 1000 * seconds, left=left, height=height, color=PART_COLOURS[name])
        left += 1000 * seconds
    return left


def _finish(
    ax: Axes, rows: Sequence[str], cells: Sequence[CellSummary], question: str, note: str = ""
) -> None:
    drawn = {to_hex(patch.get_facecolor()) for patch in ax.patches}
    for name, colour in PART_COLOURS.items():
        if to_hex(colour) in drawn:
            ax.barh([0], [0], color=colour, label=name)
    name_rows(ax, rows)
    ax.set_xlabel("time per step (ms)")
    ax.set_xlim(0, 1.8 * ax.get_xlim()[1])
    plain_numbers(ax.xaxis)
    finish(ax, question, cells, note)
