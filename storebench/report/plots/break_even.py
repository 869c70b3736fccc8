"""When a conversion pays."""

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.report.cells import CellSummary, as_cells
from storebench.report.factors import BreakEven
from storebench.report.facts import derive
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection, drawable
from storebench.report.plots.style import look, new_axes, plain_numbers, styled, title, whiskers
from storebench.report.texts.labels import backend_label, common_setting, duration, with_interval

QUESTION = "After how many epochs does converting PNG files pay?"


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot of the panel whose rate is that of whole epochs, where a conversion was measured."""
    panel, found = selection.facts.paying_panel, selection.facts.paying
    if panel is not None and found:
        cells = drawable(panel.measured)
        ax = _draw([one for one in found if one.cell in cells], cells, None)
        yield Plot(name="break-even", question=QUESTION, answer=paying_answer(found), ax=ax)


def paying_answer(found: Sequence[BreakEven]) -> str:
    """Return which conversion has won back its time first, and after how many epochs."""
    paid = [(one.epochs, one.cell.backend) for one in found if one.epochs is not None]
    if not paid:
        return "No store is proven to save time over PNG files, so no conversion is shown to pay."
    epochs, backend = min(paid, key=lambda pair: pair[0].mid)
    doubt = ", in one round and without an interval" if epochs.n < 2 else ""
    return f"{backend_label(backend)} has won back the time of its conversion first, after {with_interval(epochs)} epochs{doubt}."


def plot_break_even(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw after how many epochs the conversion of PNG files into each store has paid for itself."""
    cells = [cell for cell in as_cells(results) if cell.usable]
    return _draw(derive(cells).break_evens, cells, ax)


def _draw(found: Sequence[BreakEven], cells: Sequence[CellSummary], ax: Axes | None) -> Axes:
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
        title(ax, QUESTION, common_setting(cells), cells)
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
