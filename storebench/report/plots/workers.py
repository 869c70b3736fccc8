"""Samples per second against the number of workers."""

import functools
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.plain_text import plain
from storebench.report.cells import CellSummary, as_cells
from storebench.report.claims import Claim, ClaimKind, Claims
from storebench.report.decisions import Topic
from storebench.report.intervals import Estimate
from storebench.report.plots.arrows import mark_cut, mark_limits
from storebench.report.plots.looks import backend_looks
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection, drawable, with_count
from storebench.report.plots.style import (
    legend_below,
    new_axes,
    noted,
    plain_numbers,
    styled,
    title,
    whiskers,
)
from storebench.report.texts.labels import backend_label, common_setting, with_interval
from storebench.report.texts.sentence import Sentence
from storebench.report.texts.verdicts import bounded
from storebench.units import number_of

QUESTION = "Do more workers help?"

_AROUND = 3.0
"""An axis extends this far beyond the points; wider intervals are cut here, but complete in the table."""


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot if the panel's cells were measured with several numbers of workers."""
    cells = selection.alike("workers")
    if len({cell.cell.workers for cell in cells}) > 1:
        sentence = workers_answer(cells, selection.facts.claims)
        yield Plot(
            name="workers",
            question=QUESTION,
            answer=with_count(sentence.text, cells),
            claims=sentence.claims,
            draw=functools.partial(plot_workers, drawable(cells)),
        )


def workers_answer(cells: Sequence[CellSummary], claims: Claims) -> Sentence:
    """Return a sentence on the backends proven to gain from more workers, and on the largest gain."""
    fewest = min(cell.cell.workers for cell in cells)
    first = [cell for cell in cells if cell.cell.workers == fewest]
    compared = [(cell, found_claims) for cell in first if (found_claims := _against(cell, cells, claims))]
    gains = [
        claim
        for cell, found_claims in compared
        for claim in found_claims
        if claim.kind is ClaimKind.FASTER and claim.object is cell
    ]
    helped = len({claim.subject.backend for claim in gains})
    if not compared:
        return Sentence(text="No backend was measured with several numbers of workers in the same rounds.")
    if not helped:
        asserted = tuple(claim for _, found_claims in compared for claim in found_claims)
        return Sentence(
            text=f"No backend is proven to gain from more workers than {fewest}.", claims=asserted
        )
    most = max(gains, key=lambda claim: claim.figure.mid if claim.figure else 0.0)
    verb = "is" if helped == 1 else "are"
    text = (
        f"{helped} of {number_of(len(compared), 'backend')} {verb} proven to gain from more workers; the largest gain is"
        f" {bounded(most)}{with_interval(most.figure)} times with {most.subject.cell.workers} workers instead of {fewest}"
        f" ({backend_label(most.subject.backend)})."
    )
    return Sentence(text=text, claims=(most, *(claim for claim in gains if claim is not most)))


def _against(cell: CellSummary, cells: Sequence[CellSummary], claims: Claims) -> list[Claim]:
    """Return the claims about a cell and each cell of its backend with more workers."""
    compared = (claims.between(more, cell, Topic.WORKERS) for more in cells if more.backend == cell.backend)
    return [claim for claim in compared if claim is not None]


def plot_workers(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw samples per second against the number of workers, one line per backend."""
    cells = [cell for cell in as_cells(results) if cell.usable]
    lines: dict[tuple[str, str, str], list[CellSummary]] = {}
    for cell in cells:
        lines.setdefault((cell.backend, cell.cell.cache, cell.cell.loader), []).append(cell)
    looks = backend_looks(cells)
    several = [{key[part] for key in lines} for part in (1, 2)]
    with styled():
        ax = new_axes(3.9, ax)
        drawn_lines: list[tuple[str, list[int], list[Estimate]]] = []
        limits: list[str] = []
        for (backend, cache, loader), group in lines.items():
            group.sort(key=lambda cell: cell.cell.workers)
            rates = [cell.interval("samples_per_s") or Estimate(mid=0.0) for cell in group]
            extra = [word for word, known in ((cache, several[0]), (loader, several[1])) if len(known) > 1]
            style, counts = looks[backend], [cell.cell.workers for cell in group]
            drawn_lines.append((style.colour, counts, rates))
            middles = [rate.mid for rate in rates]
            are_bounds = [cell.at_most for cell in group]
            limits.append(
                mark_limits(
                    ax, zip(counts, middles, strict=True), are_bounds, upright=True, colour=style.colour
                )
            )
            ax.errorbar(
                counts,
                middles,
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
        all_rates = [rate for cell in cells if (rate := cell.median("samples_per_s"))]
        if all_rates:
            ax.set_ylim(min(all_rates) / _AROUND, max(all_rates) * _AROUND)
        cut = [
            mark_cut(ax, counts, rates, ax.get_ylim(), upright=True, colour=colour)
            for colour, counts, rates in drawn_lines
        ]
        plain_numbers(ax.yaxis)
        legend_below(ax)
        title(ax, QUESTION, noted(common_setting(cells), *cut, *limits), cells)
    return ax
