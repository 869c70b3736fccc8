"""What the container costs and what the codec costs, and when a conversion pays."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from storebench.plain_text import plain
from storebench.report.cells import CellSummary, as_cells, panels
from storebench.report.decisions import decide
from storebench.report.factors import BreakEven, break_even
from storebench.report.plots.style import look, new_axes, plain_numbers, styled, title, whiskers
from storebench.report.texts.labels import (
    FORMATS,
    backend_label,
    common_setting,
    duration,
    number,
    with_interval,
)

_CODECS = ("raw", "png", "jpeg")


def plot_container_codec(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw milliseconds a sample for every container and codec, with the fastest reader of each."""
    cells = [cell for cell in as_cells(results) if cell.usable and not cell.is_null]
    table = best_times(cells)
    codecs = [name for name in _CODECS if any(key[1] == name for key in table)]
    codecs += sorted({key[1] for key in table} - set(codecs))
    containers = sorted(
        {key[0] for key in table}, key=lambda name: min(table[k] for k in table if k[0] == name)
    )
    grid = np.array([[table.get((c, k), np.nan) * 1000 for k in codecs] for c in containers])
    with styled():
        ax = new_axes(1.9 + 0.5 * len(containers), ax)
        # Values below one millisecond and above ten are both common: colour by the logarithm.
        image = ax.imshow(np.log10(grid), cmap="cividis_r", aspect="auto")
        middle = float(np.nanmean(image.get_clim()))
        for (row, column), value in np.ndenumerate(grid):
            text = "not measured" if np.isnan(value) else duration(value / 1000)
            dark = not np.isnan(value) and np.log10(value) > middle
            ax.text(
                column, row, text, ha="center", va="center", fontsize=9, color="white" if dark else "black"
            )
        ax.set_xticks(range(len(codecs)), [*map(plain, codecs)], parse_math=False)
        names = [plain(FORMATS.get(name, name)) for name in containers]
        ax.set_yticks(range(len(containers)), names, parse_math=False)
        ax.grid(visible=False)
        ax.set_xlabel("codec: across a row is what it costs")
        ax.set_ylabel("container: down a column\nis what it costs")
        note = f"{common_setting(cells)}. Time a sample"
        title(ax, "What does the container cost, and what the codec?", note, cells)
    return ax


def best_times(cells: Sequence[CellSummary]) -> dict[tuple[str, str], float]:
    """Return seconds a sample by (container, codec), of the fastest reader."""
    table: dict[tuple[str, str], float] = {}
    for cell in cells:
        rate = cell.median("samples_per_s")
        if rate:
            key = (cell.cell.format, cell.cell.codec)
            table[key] = min(table.get(key, float("inf")), 1 / rate)
    return table


def plot_break_even(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw after how many epochs the conversion of PNG files into each store has paid for itself."""
    cells = [cell for cell in as_cells(results) if cell.usable]
    decisions = decide(cells)
    found = [one for panel in panels(cells) for one in break_even(panel, decisions)]
    paying = [one for one in found if one.epochs is not None]
    with styled():
        ax = new_axes(1.7 + 0.36 * len(found), ax)
        for position, one in enumerate(found):
            _pay_mark(ax, one, position)
        if not found:
            ax.text(0.5, 0.5, "no conversion was measured", ha="center", transform=ax.transAxes)
        names = [backend_label(one.cell.backend) for one in found]
        ax.set_yticks(range(len(found)), names, parse_math=False)
        ax.set_ylim(max(len(found), 1) - 0.4, -0.6)
        middles = [one.epochs.mid for one in paying if one.epochs] or [1.0]
        ax.set_xscale("log")
        ax.set_xlim(min(middles) / 4, max(middles) * 60)
        plain_numbers(ax.xaxis)
        ax.set_xlabel("epochs until the time of the conversion is won back")
        title(ax, "After how many epochs does converting PNG files pay?", common_setting(cells), cells)
    return ax


def _pay_mark(ax: Axes, one: BreakEven, position: int) -> None:
    saved = f"converted in {duration(one.convert_s.mid)}, saves {duration(one.saved_s.mid)} per epoch"
    if one.epochs is None:
        ax.text(
            0.02,
            position,
            "  no saving is proven",
            va="center",
            fontsize=8,
            transform=ax.get_yaxis_transform(),
        )
        return
    style = look(one.cell)
    ax.errorbar(
        one.epochs.mid,
        position,
        xerr=whiskers([one.epochs]),
        color=style.colour,
        marker=style.marker,
        capsize=3,
        markersize=7,
    )
    end = one.epochs.hi or one.epochs.mid
    ax.text(end, position - 0.02, f"  {with_interval(one.epochs)}", va="bottom", fontsize=8)
    ax.text(end, position + 0.02, f"  {saved}", va="top", fontsize=7, color="#444444")


def codec_answer(cells: Sequence[CellSummary]) -> str:
    """Say which of container and codec makes the larger difference."""
    table = best_times(cells)
    across = [_spread([v for (c, _), v in table.items() if c == name]) for name in {c for c, _ in table}]
    down = [_spread([v for (_, k), v in table.items() if k == name]) for name in {k for _, k in table}]
    codec, container = max(across, default=1.0), max(down, default=1.0)
    return (
        f"Within one container the codec changes the time by up to {number(codec)} times;"
        f" within one codec the container does by up to {number(container)} times."
    )


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values)
