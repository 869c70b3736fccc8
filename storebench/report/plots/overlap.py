"""Exposed communication by moment of the exchange, beside the time of an ideal ring all-reduce."""

import functools
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes

from storebench.report.cells import CellSummary
from storebench.report.claims import ClaimKind, Claims
from storebench.report.decisions import EXPOSED
from storebench.report.intervals import Estimate
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import MOST_CELLS, Selection
from storebench.report.plots.style import (
    beside,
    label_rows,
    legend_below,
    look,
    make_room,
    new_axes,
    spaced_numbers,
    styled,
    title,
    whiskers,
)
from storebench.report.texts.labels import common_setting, number
from storebench.report.texts.rank_answers import exchanging, job_name, overlap_answer

QUESTION = "Does overlapping hide the exchange of gradients?"


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot if jobs exchanged gradients at different moments."""
    groups = exchanging(selection.facts)
    if groups:
        cells = [cell for group in groups for cell in group if cell.median(EXPOSED) is not None]
        sentence = overlap_answer(groups, selection.facts.claims)
        yield Plot(
            name="overlap",
            question=QUESTION,
            answer=sentence.text,
            claims=sentence.claims,
            draw=functools.partial(_draw, cells[:MOST_CELLS], selection.facts.claims),
        )


def _draw(cells: Sequence[CellSummary], claims: Claims, ax: Axes | None = None) -> Axes:
    figures = [_figure(cell, claims) for cell in cells]
    rings = [cell.median("job_ring_bound_s") for cell in cells]
    with styled():
        ax = new_axes(1.6 + 0.4 * len(cells), ax)
        places = range(len(cells))
        for place, cell, figure, ring_s in zip(places, cells, figures, rings, strict=True):
            style = look(cell)
            ax.errorbar(
                [1000 * figure.mid],
                [place],
                xerr=whiskers([figure.scaled(1000)]),
                color=style.colour,
                marker=style.marker,
                linestyle="none",
                capsize=3,
                markersize=6,
            )
            if ring_s is not None:
                ax.plot([1000 * ring_s] * 2, [place - 0.3, place + 0.3], color="black", linewidth=1.5)
            times = cell.median("job_exposed_over_bound")
            end = max(_end(figure), ring_s or 0.0)
            beside(ax, 1000 * end, place, "" if times is None else f"{number(times, 2)} x ideal ring")
        ax.plot([], [], color="black", linewidth=1.5, label="ideal ring all-reduce at the measured bandwidth")
        label_rows(ax, [job_name(cell) for cell in cells])
        ax.set_ylim(len(cells) - 0.45, -0.55)
        ax.grid(visible=False, axis="y")
        ax.axvline(0, color="#888888", linewidth=0.8)
        ax.set_xlabel("exposed communication (ms per step)")
        legend_below(ax)
        note = f"{common_setting(cells)}. Exchange in pairs of steps on the same batch, with and without it"
        title(ax, QUESTION, note, cells)
        make_room(ax)
        spaced_numbers(ax)
    return ax


def _end(figure: Estimate) -> float:
    return figure.hi if figure.known and figure.hi is not None else figure.mid


def _figure(cell: CellSummary, claims: Claims) -> Estimate:
    claim = claims.on(ClaimKind.EXPOSED, cell)
    figure = cell.interval(EXPOSED) if claim is None else claim.figure
    return figure or Estimate(mid=0.0)
