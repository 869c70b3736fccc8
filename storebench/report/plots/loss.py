"""The loss of every step."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from storebench.report.cells import CellSummary
from storebench.report.claims import has_distribution
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection
from storebench.report.plots.step_lines import MOST_POINTS, step_lines
from storebench.report.plots.style import legend_below, new_axes, styled, title
from storebench.report.texts.labels import ORIGINAL, backend_label
from storebench.settings.backend import NULL_FORMAT

QUESTION = "Does the format change the training?"

_FEWEST_EQUAL = 2
"""Fewest backends with the same pixels whose losses can be compared."""


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot if the panel's steps were recorded with their losses."""
    steps = selection.steps
    if steps is not None and steps["loss"].notna().any():
        draw = functools.partial(plot_loss, steps, note=selection.step_note)
        answer = loss_answer([cell for cell in selection.measured if has_distribution(cell)])
        yield Plot(name="loss", question=QUESTION, answer=answer, draw=draw)


def loss_answer(cells: Sequence[CellSummary]) -> str:
    """Return whether the losses of backends that serve the same pixels are equal bit by bit."""
    trained = [cell for cell in cells if cell.fact("loss_digest")]
    exact = [cell for cell in trained if cell.fact("store_lossless") is not False]
    files = [cell for cell in trained if cell.cell.backend.codec == ORIGINAL]
    by_decoder: dict[object, list[CellSummary]] = {}
    for cell in files:
        by_decoder.setdefault(cell.cell.backend.codec_options, []).append(cell)
    compared = [*by_decoder.values(), exact]
    if trained and max(map(len, compared), default=0) < _FEWEST_EQUAL:
        alone = f"{backend_label(trained[0].backend)} alone was trained"
        return f"Unknown: {alone if len(trained) == 1 else 'no two of these backends serve the same pixels'}."
    if (exact or files) and all(map(_equal, [exact, *by_decoder.values()])):
        kinds = ((exact, "lossless backends"), (files, "backends of original files"))
        words = " and of ".join(
            f"{len(group)} {name}" for group, name in kinds if len(group) >= _FEWEST_EQUAL
        )
        return f"No: the losses of {words} are equal bit by bit at every step."
    if any(cell.cell.device != "cpu" for cell in cells):
        return "The curves lie together; on this device equal losses are not expected bit by bit."
    return "Yes, and it should not: the losses differ between lossless backends."


def plot_loss(steps: pd.DataFrame, *, ax: Axes | None = None, note: str = "") -> Axes:
    """Draw the loss of every step, one line per backend, thick lines below thin ones, so that equal curves remain visible."""
    with styled():
        ax = new_axes(3.9, ax)
        trained = steps[(steps["format"] != NULL_FORMAT) & steps["loss"].notna()]
        lines = list(step_lines(trained))
        for position, (label, style, line_steps) in enumerate(lines):
            loss = line_steps["loss"].to_numpy(np.float64)
            keep = np.unique(np.linspace(0, len(loss) - 1, min(len(loss), MOST_POINTS)).astype(np.int64))
            width = 1.0 + 1.1 * (len(lines) - 1 - position)
            ax.plot(keep, loss[keep], color=style.colour, linewidth=width, label=label, solid_capstyle="butt")
        ax.set_xlabel("step")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylabel("training loss")
        legend_below(ax)
        title(ax, QUESTION, note)
    return ax


def _equal(cells: Sequence[CellSummary]) -> bool:
    """Return whether all cells have the same losses in each epoch of a round."""
    digests: dict[tuple[int, int], set[str]] = {}
    for cell in cells:
        for row in cell.usable:
            digests.setdefault((row["replicate"], row["epoch"]), set()).add(row["loss_digest"])
    return all(len(group) == 1 for group in digests.values())
