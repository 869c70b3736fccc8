"""Samples per second against the number of workers and of ranks."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.analysis.comparison import Estimate
from storebench.analysis.labels import backend_label, state_label
from storebench.analysis.summary import CellSummary, as_cells
from storebench.report.plots.style import (
    MOST_LINES,
    finish,
    looks,
    new_axes,
    plain_numbers,
    styled,
    whiskers,
)

WORKERS = "Do more workers help?"
RANKS = "What do more ranks deliver?"


def plot_workers(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw samples per second against the number of workers, one line per backend, cache state and loader.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/roofline")
    >>> ax = storebench.plot_workers(results.query("dataset == 'imagenet' and compute == 'none'"))
    """
    cells = [cell for cell in as_cells(results) if cell.usable and not cell.is_null]
    return _lines(cells, "workers", "worker processes", WORKERS, ax)


def plot_ranks(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw samples per second against the number of ranks, one line per backend and way to share the work.

    The dotted lines are the ideal: the first point times the number of ranks.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/ranks")
    >>> ax = storebench.plot_ranks(results.query("compute == 'emulated:20'"))
    """
    cells = [cell for cell in as_cells(results) if cell.usable and not cell.is_null]
    return _lines(cells, "ranks", "ranks", RANKS, ax)


def _lines(cells: Sequence[CellSummary], field: str, axis: str, question: str, ax: Axes | None) -> Axes:
    groups: dict[tuple[str, ...], list[CellSummary]] = {}
    for cell in cells:
        groups.setdefault(_line_key(cell, field), []).append(cell)
    lines = {key: group for key, group in groups.items() if len(group) > 1} or groups
    varying = [len({key[place] for key in lines}) > 1 for place in range(4)]
    counts = sorted({int(cell.fields[field]) for group in lines.values() for cell in group})
    with styled():
        ax = new_axes(3.6, ax)
        styles = looks([group[0] for group in lines.values()])
        for (key, same), look in list(zip(lines.items(), styles, strict=True))[:MOST_LINES]:
            by_count = {int(cell.fields[field]): cell for cell in reversed(same)}
            measured = sorted(by_count)
            rates = [by_count[count].interval("samples_per_s") or Estimate(mid=0.0) for count in measured]
            words = [word for word, varies in zip(key[1:], varying[1:], strict=True) if varies and word]
            label, style = ", ".join([backend_label(key[0]), *words]), {**look.stroke, "marker": look.marker}
            mids = [rate.mid for rate in rates]
            ax.errorbar(measured, mids, yerr=whiskers(rates), **style, capsize=3, label=label)
            if field == "ranks" and measured[0]:
                ideal = [rates[0].mid * count / measured[0] for count in measured]
                ax.plot(measured, ideal, color=look.colour, linestyle=":", linewidth=0.9)
        ax.set_xticks(counts, [f"{count:,}" for count in counts])
        ax.set_xlabel(axis)
        ax.set_ylabel("samples/s")
        ax.set_yscale("log")
        plain_numbers(ax.yaxis)
        finish(ax, question, cells)
    return ax


def _line_key(cell: CellSummary, field: str) -> tuple[str, ...]:
    settings = cell.cell
    shared = "" if settings.share == "none" else f"share {settings.share}"
    ways = [
        shared,
        "global batch" if settings.global_batch_size else "",
        "" if settings.sync == "overlapped" else settings.sync,
    ]
    loader = (
        settings.loader.removeprefix("none") if field == "workers" else ", ".join(way for way in ways if way)
    )
    model = "" if settings.compute.kind == "none" else str(settings.model)
    return cell.backend, state_label(cell), loader, model
