"""What speed costs: space on disk, and bytes read for nothing."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.report.cells import CellSummary, as_cells
from storebench.report.intervals import Interval
from storebench.report.plots.style import (
    Look,
    bar,
    beside,
    legend_below,
    look,
    name_rows,
    new_axes,
    plain_numbers,
    shown_end,
    styled,
    title,
    whiskers,
)
from storebench.report.texts.labels import backend_label, common_setting, number

_ASKED = Look(colour="#BBBBBB", hatch="", marker="o", line="-")


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
        title(ax, "What does speed cost in space?", common_setting(cells), cells)
    return ax


def reads_from_disk(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """Return the cells whose epoch reads from a device, as far as that was counted; warm ones do not."""
    return [
        cell
        for cell in cells
        if cell.usable
        and not cell.is_null
        and cell.cell.cache != "warm"
        and cell.median("read_amplification") is not None
        and cell.fact("cache_applies_to") != "open"
    ]


def plot_amplification(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the bytes that the device delivered beside the bytes that were asked for."""
    cells = reads_from_disk(as_cells(results))
    with styled():
        ax = new_axes(1.6 + 0.42 * len(cells), ax)
        longest = 1.0
        for position, cell in enumerate(cells):
            asked, read = (
                (cell.median(name) or 0.0) / 2**20 for name in ("whole_payload_bytes", "device_read_bytes")
            )
            bar(ax, position - 0.18, asked, _ASKED, height=0.32)
            bar(ax, position + 0.18, read, look(cell), height=0.32)
            beside(ax, max(read, asked), position, f"{number(cell.median('read_amplification'), 2)} times")
            longest = max(longest, read, asked)
        name_rows(ax, cells)
        ax.set_xlim(0, 1.3 * longest)
        ax.set_xlabel("data (MiB per epoch)")
        plain_numbers(ax.xaxis)
        note = f"{common_setting(cells)}. Grey: asked for by the loop. Colour: delivered by the device"
        title(ax, "How much is read to get what was asked for?", note, cells)
    return ax
