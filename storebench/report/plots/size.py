"""What speed costs in space on disk."""

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.report.cells import CellSummary, as_cells
from storebench.report.intervals import Interval
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection, drawable, with_count
from storebench.report.plots.style import (
    legend_below,
    look,
    new_axes,
    plain_numbers,
    shown_end,
    styled,
    title,
    whiskers,
)
from storebench.report.texts.labels import backend_label, common_setting, number

QUESTION = "What does speed cost in space?"


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot where the stores of the panel differ in size."""
    if len({cell.fact("bytes_on_disk") for cell in selection.measured} - {None}) > 1:
        cells = (*selection.measured, *selection.null)
        answer = with_count(size_answer(selection.measured), cells)
        yield Plot(name="size", question=QUESTION, answer=answer, ax=plot_size(drawable(cells)))


def size_answer(cells: Sequence[CellSummary]) -> str:
    """Return how many times the space of the smallest store the largest one takes."""
    sizes = sorted(
        (float(cell.fact("bytes_on_disk")), cell.backend) for cell in cells if cell.fact("bytes_on_disk")
    )
    (small, first), (large, last) = sizes[0], sizes[-1]
    return f"{backend_label(last)} takes {number(large / small)} times the space of {backend_label(first)}."


def plot_size(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw bytes on disk per sample against samples per second."""
    cells = [c for c in as_cells(results) if c.usable and not c.is_null and c.fact("bytes_on_disk")]
    sizes = [float(c.fact("bytes_on_disk")) / int(c.fact("store_count")) / 1024 for c in cells]
    with styled():
        ax = new_axes(3.6, ax)
        for cell, each in zip(cells, sizes, strict=True):
            style = look(cell)
            rate = cell.interval("samples_per_s") or Interval(mid=0.0)
            ax.errorbar(
                each,
                rate.mid,
                yerr=whiskers([rate]),
                color=style.colour,
                marker=style.marker,
                fillstyle="none" if style.hatch else "full",
                linestyle="none",
                capsize=3,
                markersize=8,
                label=backend_label(cell.backend),
            )
        ax.set_xlabel("size on disk (KiB per sample)")
        ax.set_ylabel("throughput (samples/s)")
        ax.set_xlim(0, 1.08 * max(sizes, default=1.0))
        drawn = [found for cell in cells if (found := cell.interval("samples_per_s"))]
        ax.set_ylim(0, 1.08 * shown_end(drawn))
        plain_numbers(ax.yaxis)
        legend_below(ax)
        title(ax, QUESTION, common_setting(cells), cells)
    return ax
