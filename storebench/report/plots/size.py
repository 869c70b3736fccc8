"""Throughput against the size of the store on disk."""

import functools
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.report.cells import CellSummary, as_cells
from storebench.report.claims import Claim, ClaimKind
from storebench.report.intervals import Estimate
from storebench.report.plots.arrows import mark_cut
from storebench.report.plots.looks import cell_looks
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection, drawable, with_count
from storebench.report.plots.style import (
    legend_below,
    new_axes,
    noted,
    plain_numbers,
    shown_end,
    styled,
    title,
    whiskers,
)
from storebench.report.texts.labels import agreed, backend_label, common_setting, number, store_label
from storebench.report.texts.sentence import Sentence

QUESTION = "What does speed cost in space?"


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot where the stores of the panel differ in size."""
    stored = selection.panel.stored if selection.panel else ()
    for claim in selection.facts.claims.each(ClaimKind.LARGER, stored)[:1]:
        cells = (*selection.measured, *selection.null)
        sentence = size_answer(claim)
        yield Plot(
            name="size",
            question=QUESTION,
            answer=with_count(sentence.text, cells),
            claims=sentence.claims,
            draw=functools.partial(plot_size, drawable(cells)),
        )


def size_answer(claim: Claim) -> Sentence:
    """Return a sentence on the size of the largest store over that of the smallest."""
    assert claim.figure is not None
    assert claim.object is not None
    large, small = (
        store_label(side, (claim.subject, claim.object)) for side in (claim.subject, claim.object)
    )
    verb = agreed(claim.subject, "takes", "take")
    text = f"{large} {verb} {number(claim.figure.mid)} times the space of {small}."
    return Sentence(text=text, claims=(claim,))


def plot_size(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw bytes on disk per sample against samples per second."""
    cells = [c for c in as_cells(results) if c.usable and not c.is_null and c.fact("bytes_on_disk")]
    sizes = [float(c.fact("bytes_on_disk")) / int(c.fact("store_count")) / 1024 for c in cells]
    rates = [cell.interval("samples_per_s") or Estimate(mid=0.0) for cell in cells]
    with styled():
        ax = new_axes(3.6, ax)
        looks = cell_looks(cells)
        for cell, each, rate, style in zip(cells, sizes, rates, looks, strict=True):
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
                label=backend_label(cell.backend) + (" (at most)" if cell.at_most else ""),
            )
        ax.set_xlabel("size on disk (KiB per sample)")
        ax.set_ylabel("throughput (samples/s)")
        ax.set_xlim(0, 1.08 * max(sizes, default=1.0))
        ax.set_ylim(0, 1.08 * shown_end(rates))
        cut = [
            mark_cut(ax, [each], [rate], ax.get_ylim(), upright=True, colour=style.colour)
            for each, rate, style in zip(sizes, rates, looks, strict=True)
        ]
        plain_numbers(ax.yaxis)
        legend_below(ax)
        title(ax, QUESTION, noted(common_setting(cells), *cut), cells)
    return ax
