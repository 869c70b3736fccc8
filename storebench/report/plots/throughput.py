"""Samples per second of each backend, and against the size of its store."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.accelerators import Accelerator
from storebench.analysis.comparison import Estimate
from storebench.analysis.labels import backend_label, number, with_interval
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
SIZE_QUESTION = "What does speed cost in space?"


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


def plot_size(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw samples per second against bytes on disk per sample.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/codecs")
    >>> ax = storebench.plot_size(results.query("dataset == 'imagenet'"))
    """
    stored = [cell for cell in as_cells(results) if cell.usable and not cell.is_null]
    cells = [cell for cell in stored if cell.fact("bytes_on_disk")][:MOST_CELLS]
    with styled():
        ax = new_axes(3.4, ax)
        for cell, look in zip(cells, looks(cells), strict=True):
            rate = cell.interval("samples_per_s") or Estimate(mid=0.0)
            ax.errorbar(
                float(cell.fact("bytes_on_disk")) / int(cell.fact("store_count")) / 1024,
                rate.mid,
                yerr=whiskers([rate]),
                color=look.colour,
                marker=look.marker,
                fillstyle="none" if look.hatch else "full",
                linestyle="none",
                capsize=3,
                markersize=8,
                label=backend_label(cell.backend) + (" (at most)" if cell.at_most else ""),
            )
        ax.set_xlabel("size on disk (KiB per sample)")
        ax.set_ylabel("samples/s")
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=0)
        plain_numbers(ax.yaxis)
        finish(ax, SIZE_QUESTION, cells)
    return ax
