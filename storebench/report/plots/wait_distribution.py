"""The distribution of the data wait over steps."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from storebench.report.cells import CellSummary
from storebench.report.claims import has_distribution
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection, medians_words, ranked
from storebench.report.plots.step_lines import MOST_POINTS, some_points, step_lines
from storebench.report.plots.style import legend_below, new_axes, plain_numbers, styled, title
from storebench.report.texts.labels import backend_label, duration

QUESTION = "How long does a step wait, and how long at worst?"

_HUNDRED = 100
"""Of fewer steps, one in a hundred is none."""


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot if the panel's steps were recorded."""
    if selection.steps is not None:
        draw = functools.partial(plot_wait_distribution, selection.steps, note=selection.step_note)
        answer = worst_answer([cell for cell in selection.measured if has_distribution(cell)])
        yield Plot(name="wait-distribution", question=QUESTION, answer=answer, draw=draw)


def worst_answer(cells: Sequence[CellSummary]) -> str:
    """Return the wait that one step in a hundred exceeds, of fewer steps the longest one: with the best backend and the worst."""
    counts = sorted({int(row["timed_steps"]) for cell in cells for row in cell.usable}) or [0]
    steps = counts[0]
    rare = steps >= _HUNDRED
    waits = ranked(cells, "data_wait_p99_ns" if rare else "data_wait_max_ns")
    if not waits:
        return ""
    (low, first), (high, last) = waits[0], waits[-1]
    quantity = (
        "One step in a hundred waits at least"
        if rare
        else f"The longest of {steps} waits{' or more' * (len(counts) > 1)} took"
    )
    least = f"{duration(low / 1e9)} with {backend_label(first.backend)}"
    most = "" if first is last else f" and {duration(high / 1e9)} with {backend_label(last.backend)}"
    return f"{quantity} {least}{most}{medians_words(cells)}."


def plot_wait_distribution(steps: pd.DataFrame, *, ax: Axes | None = None, note: str = "") -> Axes:
    """Draw the share of steps that waited at most a given time (ECDF, logarithmic), without warm-up steps."""
    with styled():
        ax = new_axes(3.9, ax)
        for label, style, line_steps in step_lines(steps):
            timed = line_steps[~line_steps["warmup"].astype(bool)]
            waits = np.sort(np.maximum(timed["data_wait_ns"].to_numpy(np.float64) / 1e6, 1e-4))
            shares = np.arange(1, len(waits) + 1) / len(waits)
            keep = np.unique(np.linspace(0, len(waits) - 1, min(len(waits), MOST_POINTS)).astype(np.int64))
            ax.step(
                waits[keep],
                shares[keep],
                where="post",
                color=style.colour,
                linestyle=style.line,
                marker=style.marker,
                markersize=4,
                markevery=some_points(len(keep)),
                label=label,
            )
        ax.set_xscale("log")
        plain_numbers(ax.xaxis)
        ax.set_ylim(0, 1.02)
        ax.set_xlabel("data wait at most (ms)")
        ax.set_ylabel("share of steps")
        legend_below(ax)
        title(ax, QUESTION, note)
    return ax
