"""Plots of single steps: data wait over an epoch, its distribution, and the loss curves."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from storebench.plain_text import plain
from storebench.report.cells import NULL_FORMAT, backend_rank
from storebench.report.plots.style import (
    Look,
    backend_look,
    legend_below,
    new_axes,
    plain_numbers,
    styled,
    title,
)
from storebench.report.texts.labels import backend_label

MOST_POINTS = 2000
"""Points drawn a line: more cannot be seen and make the file large."""

Waits = npt.NDArray[np.float64]


def _lines(steps: pd.DataFrame) -> Iterator[tuple[str, Look, pd.DataFrame]]:
    """Yield (label, look, steps) for the first replicate and epoch of each cell."""
    several = len(steps["cache"].unique()) > 1
    groups = [group for _, group in steps.groupby("cell_id", sort=False)]
    for group in sorted(groups, key=lambda group: backend_rank(group["backend"].iloc[0])):
        first = group.iloc[0]
        one = group[
            (group["replicate"] == first["replicate"])
            & (group["epoch"] == first["epoch"])
            & (group["run_id"] == first["run_id"])
        ]
        label = backend_label(first["backend"]) + (f", {plain(first['cache'])}" if several else "")
        yield label, backend_look(first["backend"], first["format"], first["codec"]), one


def plot_wait_over_epoch(steps: pd.DataFrame, *, ax: Axes | None = None, note: str = "") -> Axes:
    """Draw the data wait of every step over one epoch, to see whether it is steady.

    Parameters
    ----------
    steps
        What `storebench.load_steps` returned; the first replicate and epoch of
        each cell is drawn. Of more than 2,000 steps the longest wait in each of
        2,000 equal pieces is drawn, so that no spike is lost.
    """
    with styled():
        ax = new_axes(3.9, ax)
        for label, style, one in _lines(steps):
            waits = np.maximum(one["data_wait_ns"].to_numpy(np.float64) / 1e6, 1e-4)
            places, highest = _thinned(waits)
            ax.plot(places, highest, color=style.colour, linestyle=style.line, linewidth=0.9, label=label)
        ax.set_yscale("log")
        plain_numbers(ax.yaxis)
        ax.set_xlabel("step of the epoch")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylabel("data wait (ms)")
        legend_below(ax)
        title(ax, "Is the wait steady, or are there spikes?", note)
    return ax


def _thinned(waits: Waits) -> tuple[npt.NDArray[np.int64], Waits]:
    if len(waits) <= MOST_POINTS:
        return np.arange(len(waits)), waits
    starts = np.linspace(0, len(waits), MOST_POINTS, endpoint=False).astype(np.int64)
    return starts, np.maximum.reduceat(waits, starts)


def plot_wait_distribution(steps: pd.DataFrame, *, ax: Axes | None = None, note: str = "") -> Axes:
    """Draw the share of steps that waited at most so long (ECDF, logarithmic), warm-up steps left out."""
    with styled():
        ax = new_axes(3.9, ax)
        for label, style, one in _lines(steps):
            timed = one[~one["warmup"].astype(bool)]
            waits = np.sort(np.maximum(timed["data_wait_ns"].to_numpy(np.float64) / 1e6, 1e-4))
            shares = np.arange(1, len(waits) + 1) / len(waits)
            keep = np.unique(np.linspace(0, len(waits) - 1, min(len(waits), MOST_POINTS)).astype(np.int64))
            ax.step(
                waits[keep], shares[keep], where="post", color=style.colour, linestyle=style.line, label=label
            )
        ax.set_xscale("log")
        plain_numbers(ax.xaxis)
        ax.set_ylim(0, 1.02)
        ax.set_xlabel("data wait at most (ms)")
        ax.set_ylabel("share of steps")
        legend_below(ax)
        title(ax, "How long does a step wait, and how long at worst?", note)
    return ax


def plot_loss(steps: pd.DataFrame, *, ax: Axes | None = None, note: str = "") -> Axes:
    """Draw the loss of every step, one line a backend, thick below thin: equal curves lie on top of each other."""
    with styled():
        ax = new_axes(3.9, ax)
        trained = steps[(steps["format"] != NULL_FORMAT) & steps["loss"].notna()]
        lines = list(_lines(trained))
        for position, (label, style, one) in enumerate(lines):
            loss = one["loss"].to_numpy(np.float64)
            keep = np.unique(np.linspace(0, len(loss) - 1, min(len(loss), MOST_POINTS)).astype(np.int64))
            width = 1.0 + 1.1 * (len(lines) - 1 - position)
            ax.plot(keep, loss[keep], color=style.colour, linewidth=width, label=label, solid_capstyle="butt")
        ax.set_xlabel("step")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylabel("training loss")
        legend_below(ax)
        title(ax, "Does the format change the training?", note)
    return ax
