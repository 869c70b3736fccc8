"""Samples per second of each backend, with its interval and the ceilings."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.report.ceilings import ceilings
from storebench.report.cells import CellSummary, as_cells
from storebench.report.intervals import Estimate
from storebench.report.plots.arrows import mark_cut
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection, drawable, with_count
from storebench.report.plots.style import (
    bar,
    beside,
    ends_of,
    legend_below,
    look,
    make_room,
    name_rows,
    new_axes,
    noted,
    shown_end,
    spaced_numbers,
    styled,
    title,
    whiskers,
)
from storebench.report.texts.headline import panel_answer
from storebench.report.texts.labels import common_setting, number, with_interval

QUESTION = "How many images per second reach the network?"

_NEAR = 2.5
"""Ceilings above this multiple of the highest rate are not drawn: they would shorten the bars, and the page lists them."""


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot of the dataset's main panel."""
    if selection.panel is None:
        return
    cells = (*selection.measured, *selection.null)
    sentence = panel_answer(selection.panel, selection.facts.claims)
    yield Plot(
        name="throughput",
        question=QUESTION,
        answer=with_count(sentence.text, cells),
        claims=sentence.claims,
        draw=functools.partial(plot_throughput, drawable(cells)),
    )


def plot_throughput(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw samples per second of each backend with its interval, and the ceilings as lines.

    Ceilings: compute alone (the null cell), the gather rate from memory, and the
    device's random reads (1 and 16 at a time) where they were measured in the same run.
    """
    cells = [cell for cell in as_cells(results) if cell.usable]
    shown = [cell for cell in cells if not cell.is_null]
    with styled():
        ax = new_axes(1.7 + 0.32 * len(shown), ax)
        rates = [cell.interval("samples_per_s") or Estimate(mid=0.0) for cell in shown]
        highest = shown_end(rates)
        lines = _ceilings(ax, cells, highest)
        for position, (cell, rate) in enumerate(zip(shown, rates, strict=True)):
            bar(ax, position, rate.mid, look(cell), height=0.62)
            end = min(ends_of(rate)[1], highest)
            drawn = dataclasses.replace(rate, hi=end) if rate.known else rate
            ax.errorbar(rate.mid, position, xerr=whiskers([drawn]), color="black", capsize=3, linewidth=1)
            beside(
                ax,
                end,
                position,
                ("at most " if cell.at_most else "") + with_interval(rate),
            )
        name_rows(ax, shown)
        ax.set_xlabel("throughput (samples/s)")
        ax.set_xlim(0, max([highest * 1.55, *(1.05 * line for line in lines)]))
        cut = mark_cut(ax, range(len(shown)), rates, (0.0, highest), upright=False)
        title(ax, QUESTION, noted(common_setting(cells), cut), cells)
        make_room(ax)
        spaced_numbers(ax)
    return ax


def _ceilings(ax: Axes, cells: Sequence[CellSummary], highest: float) -> list[float]:
    lines = {name: value for name, value in ceilings(cells).items() if value and value < _NEAR * highest}
    for (name, value), dashes in zip(lines.items(), ("-", "--", "-.", ":"), strict=False):
        ax.axvline(value, color="black", linestyle=dashes, linewidth=1.2, label=f"{name}: {number(value)}")
    legend_below(ax, "ceilings and yardsticks, samples per second")
    return list(lines.values())
