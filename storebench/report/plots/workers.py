"""Samples per second against the number of workers."""

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.plain_text import plain
from storebench.report.cells import CellSummary, as_cells
from storebench.report.intervals import Interval
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection, drawable, ranked, with_count
from storebench.report.plots.style import (
    legend_below,
    look,
    new_axes,
    plain_numbers,
    styled,
    title,
    whiskers,
)
from storebench.report.texts.labels import backend_label, common_setting, number, percent

QUESTION = "Do more workers help?"

_AROUND = 3.0
"""An axis goes so far beyond the points; intervals that are wider are cut, and stand in the table."""

_WORTH_WORKERS = 0.05


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot where the panel's cells were measured with several numbers of workers."""
    cells = selection.alike("workers")
    if len({cell.cell.workers for cell in cells}) > 1:
        answer = with_count(workers_answer(cells), cells)
        yield Plot(name="workers", question=QUESTION, answer=answer, ax=plot_workers(drawable(cells)))


def workers_answer(cells: Sequence[CellSummary]) -> str:
    """Return how many backends gain from more workers, and which one gains most."""
    fewest = min(cell.cell.workers for cell in cells)
    gains = []
    for cell in (cell for cell in cells if cell.cell.workers == fewest):
        same = [other for other in cells if other.backend == cell.backend]
        base, best = cell.median("samples_per_s"), ranked(same, "samples_per_s")[-1]
        gains.append((best[0] / (base or 1.0), backend_label(cell.backend), best[1].cell.workers))
    gain, name, workers = max(gains)
    helped = sum(1 for gained, _, _ in gains if gained > 1 + _WORTH_WORKERS)
    if not helped:
        return f"No backend gains more than {percent(_WORTH_WORKERS)} from more workers."
    return f"{helped} of {len(gains)} backends gain more than {percent(_WORTH_WORKERS)}; {name} gains most: {number(gain)} times with {workers} workers."


def plot_workers(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw samples per second against the number of workers, one line per backend."""
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
        title(ax, QUESTION, common_setting(cells), cells)
    return ax
