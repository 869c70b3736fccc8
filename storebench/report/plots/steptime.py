"""Where a step's time goes: the loop's stacked bar, and beside it what the producers did."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from storebench.report.cells import CellSummary, as_cells
from storebench.report.labels import backend_label, common_setting, duration, percent
from storebench.report.plots.style import PART_COLOURS, new_axes, styled, title

LOOP_PARTS = {"data wait": "data_wait_s", "copy": "h2d_s", "compute": "compute_s"}
PRODUCER_PARTS = {"fetch": "fetch_s", "decode": "decode_s", "prep": "prep_s", "hand-over": "handover_s"}


def plot_step_time(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw where a step's time goes, per backend and cache state.

    The upper bar of each pair is the training loop (its parts add up to the step),
    the lower one the time that the producers worked for that step; with several
    workers the producers' time is divided by their number, because they run side by side.

    Parameters
    ----------
    results
        What `storebench.load_results` returned, filtered to the cells to draw.
    ax
        Where to draw; None makes a new figure.
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
            ax.barh(position, width, left=left, height=0.34, color=PART_COLOURS[name], linewidth=0)
        left += width
    if parts is LOOP_PARTS:
        text = f" {duration(left / 1000)}, {percent(cell.median('data_wait_frac'))} waiting"
        ax.text(left, position, text, va="center", fontsize=8)


def _finish(ax: Axes, cells: Sequence[CellSummary]) -> None:
    states = {cell.cell.cache for cell in cells}
    names = [
        backend_label(c.backend) + (f", {c.cell.cache}" if len(states) > 1 and not c.is_null else "")
        for c in cells
    ]
    ax.set_yticks(range(len(cells)), names)
    ax.set_ylim(len(cells) - 0.45, -0.55)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("milliseconds a step")
    ax.set_xlim(0, 1.45 * max((_end(bar) for bar in ax.patches), default=1.0))
    keys = {name: Patch(color=colour) for name, colour in PART_COLOURS.items()}
    drawn = {bar.get_facecolor() for bar in ax.patches}
    shown = {name: patch for name, patch in keys.items() if patch.get_facecolor() in drawn}
    figure = ax.get_figure(root=True)
    if figure is not None and shown:
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=4)
    note = ". Upper bar: the training loop. Lower bar: the producers"
    title(ax, "Where does a step's time go?", common_setting(cells) + note, cells)


def _end(bar: Patch) -> float:
    return float(bar.get_x() + bar.get_width()) if isinstance(bar, Rectangle) else 0.0
