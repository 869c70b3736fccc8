"""Samples per second of each backend, and against the size of its store."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.accelerators import Accelerator
from storebench.analysis.comparison import Estimate
from storebench.analysis.labels import number, with_interval
from storebench.analysis.summary import CellSummary, as_cells
from storebench.report.plots.style import (
    MOST_CELLS,
    beside,
    finish,
    looks,
    name_rows,
    new_axes,
    plain_numbers,
    row_names,
    styled,
    whiskers,
)

QUESTION = "How many images per second?"


def plot_throughput(
    results: pd.DataFrame | Sequence[CellSummary],
    *,
    accelerators: Sequence[Accelerator] = (),
    ax: Axes | None = None,
) -> Axes:
    """Draw samples per second of each backend with its 95% interval, and the null cell and accelerators as lines.

    Parameters
    ----------
    results
        The table that `storebench.load_results` returned, filtered to the cells to draw.
    accelerators
        Accelerators whose rates are marked, where they are near.
    ax
        Axes to draw on; None makes a new figure.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/answer")
    >>> ax = storebench.plot_throughput(results.query("cache == 'limited' and readahead_kib == 128"))
    """
    cells = [cell for cell in as_cells(results) if cell.usable]
    shown = [cell for cell in cells if not cell.is_null][:MOST_CELLS]
    rates = [cell.interval("samples_per_s") or Estimate(mid=0.0) for cell in shown]
    with styled():
        ax = new_axes(1.5 + 0.34 * len(shown), ax)
        highest = max((rate.high or rate.mid for rate in rates), default=1.0) or 1.0
        for position, (cell, rate, look) in enumerate(zip(shown, rates, looks(shown), strict=True)):
            ax.barh(position, rate.mid, height=0.62, color=look.colour, hatch=look.hatch, edgecolor="white")
            ax.errorbar(rate.mid, position, xerr=whiskers([rate]), color="black", capsize=3, linewidth=1)
            most = "at most " if cell.at_most else ""
            beside(ax, rate.high or rate.mid, position, most + with_interval(rate))
        lines = [("compute alone", cell.median("samples_per_s")) for cell in cells if cell.is_null][:1]
        lines += [(profile.title, profile.images_per_s) for profile in accelerators]
        for (name, value), line in zip(lines, ("-", "--", "-.", ":"), strict=False):
            if value and value < 2 * highest:
                ax.axvline(value, color="#9a4b00", linestyle=line, label=f"{name}: {number(value)}")
        name_rows(ax, row_names(shown))
        ax.set_xlabel("samples/s")
        ax.set_xlim(0, 2.15 * highest)
        plain_numbers(ax.xaxis)
        finish(ax, QUESTION, shown)
    return ax
