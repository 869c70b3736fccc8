"""The number of epochs after which a conversion has paid for itself."""

import functools
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.report.cells import CellSummary, as_cells
from storebench.report.claims import Claim, ClaimKind, refusal
from storebench.report.factors import BreakEven
from storebench.report.facts import Facts, derive
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection, drawable
from storebench.report.plots.style import (
    beside,
    label_rows,
    look,
    make_room,
    new_axes,
    plain_numbers,
    styled,
    title,
    whiskers,
)
from storebench.report.texts.labels import (
    agreed,
    common_setting,
    duration,
    store_label,
    with_interval,
)
from storebench.report.texts.sentence import Sentence

QUESTION = "After how many epochs does converting PNG files pay?"

_BEYOND = 4.0
"""The axis begins and ends at so many times the figures; what stands beside them makes it longer."""


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot of the panel whose rate is that of whole epochs, where it is said of a conversion when it pays."""
    panel, break_evens = selection.facts.paying_panel, selection.facts.paying
    paying = selection.facts.claims.each(ClaimKind.PAYS, [even.cell for even in break_evens])
    if panel is not None and paying:
        cells = drawable(panel.measured)
        sentence = paying_answer(paying)
        shown = [even for even in break_evens if even.cell in cells]
        yield Plot(
            name="break-even",
            question=QUESTION,
            answer=sentence.text,
            claims=sentence.claims,
            draw=functools.partial(_draw, shown, cells, selection.facts, None),
        )


def paying_answer(paying: Sequence[Claim]) -> Sentence:
    """Return a sentence on the conversion that pays off first, and after how many epochs."""
    first = min(paying, key=lambda claim: claim.figure.mid if claim.figure else 0.0)
    assert first.object is not None
    name = store_label(first.subject, (first.subject, first.object))
    has = agreed(first.subject, "has", "have")
    text = (
        f"{name} {has} won back the time of its conversion first, after {with_interval(first.figure)} epochs."
    )
    return Sentence(text=text, claims=(first,))


def plot_break_even(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the number of epochs after which converting PNG files into each store has paid for itself."""
    cells = [cell for cell in as_cells(results) if cell.usable]
    facts = derive(cells)
    return _draw(facts.break_evens, cells, facts, ax)


def _draw(
    break_evens: Sequence[BreakEven], cells: Sequence[CellSummary], facts: Facts, ax: Axes | None
) -> Axes:
    paying = [
        claim.figure
        for claim in facts.claims.each(ClaimKind.PAYS, [even.cell for even in break_evens])
        if claim.figure
    ]
    with styled():
        ax = new_axes(1.7 + 0.36 * len(break_evens), ax)
        middles = [figure.mid for figure in paying] or [1.0]
        ax.set_xscale("log")
        ax.set_xlim(min(middles) / _BEYOND, max(middles) * _BEYOND)
        for position, even in enumerate(break_evens):
            _pay_mark(
                ax,
                even,
                position,
                facts.claims.on(ClaimKind.PAYS, even.cell),
                refusal(even, facts.ordered, facts.claims),
            )
        if not break_evens:
            ax.text(0.5, 0.5, "no conversion was measured", ha="center", transform=ax.transAxes)
        names = [store_label(even.cell, (even.cell, even.baseline)) for even in break_evens]
        label_rows(ax, names)
        ax.set_ylim(max(len(break_evens), 1) - 0.4, -0.6)
        ax.set_xlabel("epochs until the time of the conversion is won back")
        title(ax, QUESTION, common_setting(cells), cells)
        make_room(ax)
        plain_numbers(ax.xaxis)
    return ax


def _pay_mark(ax: Axes, even: BreakEven, position: int, claim: Claim | None, why_not: str) -> None:
    if claim is None or claim.figure is None:
        ax.text(0.02, position, why_not, va="center", fontsize=8, transform=ax.get_yaxis_transform())
        return
    style, epochs = look(even.cell), claim.figure
    ax.errorbar(
        epochs.mid,
        position,
        xerr=whiskers([epochs]),
        color=style.colour,
        marker=style.marker,
        capsize=3,
        markersize=7,
    )
    end, saved = epochs.hi or epochs.mid, duration(even.saved_s.mid)
    beside(ax, end, position, with_interval(epochs), line=1)
    converted = f"converted in {duration(even.convert_s.mid)}, saves {saved} per epoch"
    beside(ax, end, position, converted, line=-1, size=7)
