"""Single steps: their waits over an epoch and as a distribution, and their losses."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from storebench.analysis.labels import backend_label
from storebench.analysis.summary import backend_rank
from storebench.plain_text import plain
from storebench.report.plots.style import MOST_LINES, Look, finish, looks_of, new_axes, plain_numbers, styled
from storebench.settings.backend import NULL_FORMAT

OVER_EPOCH = "Is the wait steady, or are there spikes?"
DISTRIBUTION = "How long does a step wait, and how long at worst?"
LOSS = "Does the format change the training?"

_MOST_POINTS = 2000


def plot_wait_over_epoch(steps: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the data wait of every step over one epoch, to see whether it is steady.

    Parameters
    ----------
    steps
        The table that `storebench.load_steps` returned; the first replicate and epoch of each cell is drawn. Of more
        than 2,000 steps the longest wait in each of 2,000 equal pieces is drawn, so that no spike is lost.
    ax
        Axes to draw on; None makes a new figure.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/answer")
    >>> steps = storebench.load_steps(results.query("dataset == 'cifar10' and cache == 'cold'"))
    >>> ax = storebench.plot_wait_over_epoch(steps)
    """
    with styled():
        ax = new_axes(3.6, ax)
        for label, look, waits in _waits(steps):
            places = np.unique(np.linspace(0, len(waits), _MOST_POINTS, endpoint=False).astype(np.int64))
            ax.plot(places, np.maximum.reduceat(waits, places), **look.stroke, linewidth=0.9, label=label)
        ax.set_yscale("log")
        plain_numbers(ax.yaxis)
        ax.set_ylabel("data wait (ms)")
        ax.set_xlabel("step of the epoch")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        finish(ax, OVER_EPOCH)
    return ax


def plot_wait_distribution(steps: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the share of steps that waited at most a given time (ECDF, logarithmic), without warm-up steps.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/answer")
    >>> steps = storebench.load_steps(results.query("dataset == 'cifar10' and cache == 'cold'"))
    >>> ax = storebench.plot_wait_distribution(steps)
    """
    with styled():
        ax = new_axes(3.6, ax)
        for label, look, waits in _waits(steps[~steps["warmup"].astype(bool)]):
            ordered = np.sort(waits)
            kept = _spread(len(ordered))
            ax.step(ordered[kept], (kept + 1) / len(ordered), where="post", **look.stroke, label=label)
        ax.set_xscale("log")
        plain_numbers(ax.xaxis)
        ax.set_ylim(0, 1.02)
        ax.set_xlabel("data wait at most (ms)")
        ax.set_ylabel("share of steps")
        finish(ax, DISTRIBUTION)
    return ax


def plot_loss(steps: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the loss of every step, thick lines below thin ones, so that equal curves remain visible.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/paper")
    >>> steps = storebench.load_steps(results.query("dataset == 'cifar10' and compute == 'real'"))
    >>> ax = storebench.plot_loss(steps)
    """
    with styled():
        ax = new_axes(3.6, ax)
        trained = steps[(steps["format"] != NULL_FORMAT) & steps["loss"].notna()]
        lines = list(_lines(trained))
        for place, (label, look, rows) in enumerate(lines):
            loss = rows["loss"].to_numpy(np.float64)
            kept = _spread(len(loss))
            width = 1.0 + 1.1 * (len(lines) - 1 - place)
            ax.plot(kept, loss[kept], color=look.colour, linewidth=width, label=label)
        ax.set_xlabel("step")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylabel("training loss")
        finish(ax, LOSS)
    return ax


def _spread(count: int) -> npt.NDArray[np.int64]:
    """Return the positions of at most 2,000 of `count` values, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, _MOST_POINTS)).astype(np.int64))


def _waits(steps: pd.DataFrame) -> Iterator[tuple[str, Look, npt.NDArray[np.float64]]]:
    for label, look, rows in _lines(steps):
        yield label, look, np.maximum(rows["data_wait_ns"].to_numpy(np.float64) / 1e6, 1e-4)


def _lines(steps: pd.DataFrame) -> Iterator[tuple[str, Look, pd.DataFrame]]:
    """Yield (label, look, steps) for the first replicate and epoch of each cell; of a job, the steps of its rank 0."""
    several = len(steps["cache"].unique()) > 1
    groups = [group for _, group in steps.groupby("cell_id", sort=False)]
    groups = sorted(groups, key=lambda group: backend_rank(group["backend"].iloc[0]))[:MOST_LINES]
    firsts = [group.iloc[0] for group in groups]
    styles = looks_of([(first["backend"], first["format"], first["codec"]) for first in firsts])
    for group, first, style in zip(groups, firsts, styles, strict=True):
        same = [group[name] == first[name] for name in ("replicate", "epoch", "run_id")]
        epoch = group[same[0] & same[1] & same[2]]
        ranks = "rank" in epoch and bool(epoch["rank"].notna().any())
        label = backend_label(first["backend"]) + (f", {plain(first['cache'])}" if several else "")
        yield (f"{label}, rank 0" if ranks else label), style, epoch[epoch["rank"] == 0] if ranks else epoch
