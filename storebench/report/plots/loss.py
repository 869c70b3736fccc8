"""The loss of every step."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from storebench.report.cells import NULL_FORMAT, CellSummary
from storebench.report.claims import has_distribution
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection
from storebench.report.plots.step_lines import MOST_POINTS, step_lines
from storebench.report.plots.style import legend_below, new_axes, styled, title

QUESTION = "Does the format change the training?"


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot where the panel's steps were recorded with their losses."""
    steps = selection.steps
    if steps is not None and steps["loss"].notna().any():
        draw = functools.partial(plot_loss, steps, note=selection.step_note)
        answer = loss_answer([cell for cell in selection.measured if has_distribution(cell)])
        yield Plot(name="loss", question=QUESTION, answer=answer, draw=draw)


def loss_answer(cells: Sequence[CellSummary]) -> str:
    """Return whether the losses of the lossless backends are equal bit by bit."""
    exact = [cell for cell in cells if cell.fact("store_lossless") is not False and cell.fact("loss_digest")]
    digests: dict[int, set[str]] = {}
    for cell in exact:
        for row in cell.usable:
            digests.setdefault(row["epoch"], set()).add(row["loss_digest"])
    if exact and all(len(group) == 1 for group in digests.values()):
        return f"No: the losses of {len(exact)} lossless backends are equal bit by bit at every step."
    if any(cell.cell.device != "cpu" for cell in cells):
        return "The curves lie together; on this device equal losses are not expected bit by bit."
    return "Yes, and it should not: the losses differ between lossless backends."


def plot_loss(steps: pd.DataFrame, *, ax: Axes | None = None, note: str = "") -> Axes:
    """Draw the loss of every step, one line per backend, thick below thin: equal curves lie on top of each other."""
    with styled():
        ax = new_axes(3.9, ax)
        trained = steps[(steps["format"] != NULL_FORMAT) & steps["loss"].notna()]
        lines = list(step_lines(trained))
        for position, (label, style, one) in enumerate(lines):
            loss = one["loss"].to_numpy(np.float64)
            keep = np.unique(np.linspace(0, len(loss) - 1, min(len(loss), MOST_POINTS)).astype(np.int64))
            width = 1.0 + 1.1 * (len(lines) - 1 - position)
            ax.plot(keep, loss[keep], color=style.colour, linewidth=width, label=label, solid_capstyle="butt")
        ax.set_xlabel("step")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylabel("training loss")
        legend_below(ax)
        title(ax, QUESTION, note)
    return ax
