"""How many bytes the device delivers for the bytes that were asked for."""

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.report.cells import CellSummary, as_cells
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection, drawable, ranked, with_count
from storebench.report.plots.style import (
    Look,
    bar,
    beside,
    look,
    name_rows,
    new_axes,
    plain_numbers,
    styled,
    title,
)
from storebench.report.texts.labels import backend_label, common_setting, number
from storebench.settings.words import CacheState

QUESTION = "How much is read to get what was asked for?"

_ASKED = Look(colour="#BBBBBB", hatch="", marker="o", line="-")


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot of the cold cells, else of the panel's, where a device delivered anything."""
    cold = [cell for cell in selection.alike("cache") if cell.cell.cache == CacheState.COLD]
    cells = reads_from_disk(cold or selection.measured)
    if any(cell.median("device_read_bytes") for cell in cells):
        answer = with_count(read_answer(cells), cells)
        ax = plot_amplification(drawable(cells))
        yield Plot(name="read-amplification", question=QUESTION, answer=answer, ax=ax)


def read_answer(cells: Sequence[CellSummary]) -> str:
    """Return between how many times the bytes that were asked for the device delivered."""
    times = ranked(cells, "read_amplification")
    (low, first), (high, last) = times[0], times[-1]
    return (
        f"The device delivered between {number(low, 2)} times ({backend_label(first.backend)})"
        f" and {number(high, 2)} times ({backend_label(last.backend)}) the bytes that were asked for."
    )


def reads_from_disk(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """Return the cells whose epoch reads from a device, as far as that was counted; warm ones do not."""
    return [
        cell
        for cell in cells
        if cell.usable
        and not cell.is_null
        and cell.cell.cache != CacheState.WARM
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
        title(ax, QUESTION, note, cells)
    return ax
