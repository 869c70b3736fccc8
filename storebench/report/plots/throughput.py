"""Throughput: with intervals and ceilings, and against the number of workers."""

import dataclasses
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from storebench.plain_text import plain
from storebench.report.cells import CellSummary, as_cells
from storebench.report.intervals import Interval
from storebench.report.plots.style import (
    bar,
    beside,
    legend_below,
    look,
    make_room,
    name_rows,
    new_axes,
    plain_numbers,
    shown_end,
    styled,
    title,
    whiskers,
)
from storebench.report.texts.labels import backend_label, common_setting, number, with_interval

_RANDOM = tuple(f"device_random_{depth}_bytes_per_s" for depth in (1, 4, 16, 32))
_NEAR = 2.5
_AROUND = 3.0
"""An axis goes so far beyond the points; intervals that are wider are cut, and stand in the table."""


def plot_throughput(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw samples per second of each backend with its interval, and the ceilings as lines.

    Ceilings: compute alone (the null cell), the gather rate from memory, and the
    device's random reads (1 and 16 at a time) where they were measured in the same run.
    """
    cells = [cell for cell in as_cells(results) if cell.usable]
    shown = [cell for cell in cells if not cell.is_null]
    with styled():
        ax = new_axes(1.7 + 0.32 * len(shown), ax)
        rates = [cell.interval("samples_per_s") or Interval(mid=0.0) for cell in shown]
        highest = shown_end(rates)
        lines = _ceilings(ax, cells, highest)
        for position, (cell, rate) in enumerate(zip(shown, rates, strict=True)):
            bar(ax, position, rate.mid, look(cell), height=0.62)
            cut = dataclasses.replace(rate, hi=None if rate.hi is None else min(rate.hi, highest))
            ax.errorbar(rate.mid, position, xerr=whiskers([cut]), color="black", capsize=3, linewidth=1)
            beside(
                ax,
                min(rate.hi or rate.mid, highest),
                position,
                ("at most " if cell.upper_bound else "") + with_interval(rate),
            )
        name_rows(ax, shown)
        ax.set_xlabel("throughput (samples/s)")
        ax.set_xlim(0, max([highest * 1.55, *(1.05 * line for line in lines)]))
        ax.xaxis.set_major_locator(MaxNLocator(6))
        plain_numbers(ax.xaxis)
        title(ax, "How many images a second reach the network?", common_setting(cells), cells)
        make_room(ax)
    return ax


def _ceilings(ax: Axes, cells: Sequence[CellSummary], highest: float) -> list[float]:
    # A ceiling far away would squeeze the bars; the page lists them all.
    lines = {name: value for name, value in ceilings(cells).items() if value and value < _NEAR * highest}
    for (name, value), dashes in zip(lines.items(), ("-", "--", "-.", ":"), strict=False):
        ax.axvline(value, color="black", linestyle=dashes, linewidth=1.2, label=f"{name}: {number(value)}")
    legend_below(ax, "ceilings and yardsticks, samples per second")
    return list(lines.values())


def ceilings(cells: Sequence[CellSummary]) -> dict[str, float | None]:
    """Return the ceilings and yardsticks that the cells carry, in samples per second, by what they are.

    A ceiling is the highest rate of any replicate: another moment's rate is one that a reader may exceed. The rate of one
    read per sample is a yardstick: a reader that merges reads may exceed it, up to the device at its best.
    """
    null = next((cell.median("samples_per_s") for cell in cells if cell.is_null), None)
    stored = [cell for cell in cells if not cell.is_null]
    raw = [cell for cell in stored if cell.cell.codec == "raw"]
    each = next(
        (b / n for c in raw if (b := c.fact("store_payload_bytes")) and (n := c.fact("store_count"))), None
    )
    device = {
        "device at its best": _highest(raw, ("device_best_bytes_per_s",)),
        "device, one read per sample (a yardstick)": _highest(raw, _RANDOM),
    }
    return {
        "compute alone": null,
        "one copying thread": _highest(stored, ("copy_ceiling_samples_per_s",)),
    } | {name: rate / each if rate and each else None for name, rate in device.items()}


def _highest(cells: Sequence[CellSummary], metrics: Sequence[str]) -> float | None:
    found = (value for cell in cells for metric in metrics for value in cell.values(metric).values())
    return max(found, default=None)


def plot_workers(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw samples per second against the number of workers, one line a backend."""
    cells = [cell for cell in as_cells(results) if cell.usable]
    lines: dict[tuple[str, str, str], list[CellSummary]] = {}
    for cell in cells:
        lines.setdefault((cell.backend, cell.cell.cache, cell.cell.loader), []).append(cell)
    several = [{key[part] for key in lines} for part in (1, 2)]
    with styled():
        ax = new_axes(3.9, ax)
        for (backend, cache, loader), group in lines.items():
            group.sort(key=lambda cell: cell.cell.workers)
            rates = [cell.interval("samples_per_s") or Interval(mid=0.0) for cell in group]
            extra = [word for word, known in ((cache, several[0]), (loader, several[1])) if len(known) > 1]
            style = look(group[0])
            ax.errorbar(
                [cell.cell.workers for cell in group],
                [rate.mid for rate in rates],
                yerr=whiskers(rates),
                color=style.colour,
                marker=style.marker,
                linestyle="--" if cache == "warm" and len(several[0]) > 1 else style.line,
                capsize=3,
                markersize=5,
                label=", ".join([backend_label(backend), *map(plain, extra)]),
            )
        ax.set_xticks(sorted({cell.cell.workers for cell in cells}))
        ax.set_xlabel("worker processes")
        ax.set_ylabel("throughput (samples/s)")
        ax.set_yscale("log")
        middles = [rate for cell in cells if (rate := cell.median("samples_per_s"))]
        if middles:
            ax.set_ylim(min(middles) / _AROUND, max(middles) * _AROUND)
        plain_numbers(ax.yaxis)
        legend_below(ax)
        title(ax, "Do more workers help?", common_setting(cells), cells)
    return ax
