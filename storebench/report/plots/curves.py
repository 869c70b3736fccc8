"""How the delivered rate changes as the page cache fills: over one cold epoch, and up to the steady state."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes

from storebench.errors import CorruptDataError
from storebench.report.cells import CellSummary, as_cells
from storebench.report.plots.style import (
    companion,
    legend_below,
    look,
    new_axes,
    plain_numbers,
    plain_ticks,
    styled,
    title,
)
from storebench.report.states import Row, bounded
from storebench.report.texts.labels import backend_label, number, panel_state, percent, size
from storebench.results import ResidencyPoint
from storebench.runs.step_files import read_steps

COLD_QUESTION = "How long is a cold epoch cold?"
STEADY_QUESTION = "Has the limited page cache reached a steady state?"

_BINS = 40
_FAINT = 0.35
_SHARES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_LINES = ("-", "--", "-.", ":")

_SPENT = ("data_wait_ns", "h2d_ns", "compute_ns")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The steps of one epoch of one replicate, in pieces.

    Attributes
    ----------
    asked_frac
        Share of the store that had been asked for at the end of each piece.
    samples_per_s
        Rate within each piece.
    portion
        Whether each piece is part of the steps that the cell's rate holds for.
    residency
        What the page cache held meanwhile.
    """

    asked_frac: Floats
    samples_per_s: Floats
    portion: npt.NDArray[np.bool_]
    residency: tuple[ResidencyPoint, ...]


def curve(row: Row, *, growing: bool) -> Curve | None:
    """Return the curve of a record, or None where its step file cannot be read or the size of its store is missing.

    Growing pieces begin with single steps, others are of one length. The portion begins and ends with a piece.
    """
    path, count = row["steps_path"], row["store_count"]
    if path is None or not count or not Path(path).is_file():
        return None
    try:
        steps = read_steps(Path(path), ("samples", *_SPENT))
    except CorruptDataError:
        return None
    if not len(steps["samples"]):
        return None
    samples = steps["samples"].astype(np.float64)
    seconds = sum((steps[name].astype(np.float64) for name in _SPENT), np.zeros(len(samples))) / 1e9
    first, end = _portion(row)
    spaced = np.geomspace if growing else np.linspace
    cuts = spaced(1, len(samples) + 1, _BINS + 1).astype(np.int64) - 1
    cuts = np.unique([*cuts, *(cut for cut in (first, end) if 0 < cut < len(samples)), len(samples)])
    starts = cuts[:-1]
    spent = np.maximum(np.add.reduceat(seconds, starts), 1e-9)
    return Curve(
        asked_frac=np.cumsum(samples)[cuts[1:] - 1] / float(count),
        samples_per_s=np.add.reduceat(samples, starts) / spent,
        portion=(starts >= first) & (cuts[1:] <= end),
        residency=tuple(row["cache_curve"] or ()),
    )


def _portion(row: Row) -> tuple[int, int]:
    if not row["portion_seconds"]:
        return 0, 0
    first = int(row["portion_first_step"])
    return first, first + int(row["portion_steps"])


def reading(results: pd.DataFrame | Sequence[CellSummary], state: str) -> list[CellSummary]:
    """Return the cells that read their store during the epoch with the page cache in this state."""
    return [
        cell
        for cell in as_cells(results)
        if cell.cell.cache == state and any(bounded(row, cell.cell) for row in cell.usable)
    ]


def plot_cold_curve(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the delivered rate against the share of the store that was asked for, and below it what was resident.

    One line per backend, of the first replicate. Its thick part is the cold one and ends with a dot: from there
    on more was resident than had been asked for, so the rest of the epoch is fed by the page cache.

    Parameters
    ----------
    results
        What `storebench.load_results` returned; of its cells the cold ones that read their store are drawn.
    ax
        Where to draw; None makes a new figure, and only there residency has axes of its own.
    """
    cells = reading(results, "cold")
    with styled():
        ax, below = _axes(ax, cells)
        for cell, line in zip(cells, _lines(cells), strict=True):
            for epoch in _first(cell, growing=True)[:1]:
                _draw_cold(ax, below, cell, epoch, line)
        lowest = below or ax
        lowest.set_xscale("log")
        lowest.set_xlabel("share of the store that was asked for (%)")
        _rates(ax)
        low, high = lowest.get_xlim()
        lowest.set_xlim(low, high)
        lowest.set_xticks([tick for tick in _SHARES if low <= tick <= high])
        plain_ticks(lowest.xaxis)
        if below is not None:
            asked = np.geomspace(low, 100.0, 200)
            below.plot(asked, asked, color="black", linewidth=0.9, linestyle=":")
            below.set_ylim(-3, 108)
            below.set_ylabel("resident (%)")
        legend_below(ax)
        note = (
            f"{panel_state(cells)}. Dot: the end of the cold part. Dotted: what was asked for"
            if cells
            else ""
        )
        title(ax, COLD_QUESTION, note, cells)
    return ax


def _draw_cold(ax: Axes, below: Axes | None, cell: CellSummary, epoch: Curve, line: str) -> None:
    style, shares = look(cell), 100 * epoch.asked_frac
    ax.plot(shares, epoch.samples_per_s, color=style.colour, linestyle=line, linewidth=1, alpha=_FAINT)
    cold = np.flatnonzero(epoch.portion)
    ax.plot(
        shares[cold],
        epoch.samples_per_s[cold],
        color=style.colour,
        linestyle=line,
        linewidth=2.2,
        marker="o",
        markevery=[len(cold) - 1] if len(cold) else [],
        markersize=6,
        label=backend_label(cell.backend),
    )
    if below is not None and epoch.residency:
        asked = np.array([100 * point.asked_frac for point in epoch.residency])
        held = np.array([100 * point.resident_frac for point in epoch.residency])
        seen = asked > 0
        below.plot(asked[seen], held[seen], color=style.colour, linestyle=line, linewidth=1.2)
        below.fill_between(
            asked[seen],
            asked[seen],
            held[seen],
            where=held[seen] > asked[seen],
            color=style.colour,
            alpha=0.12,
        )


def plot_steady_state(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the rate over all epochs of cells whose page cache was limited, and below it what was resident.

    One line per backend, of the first replicate. Its thick part is the steady one, which the cell's rate is of.

    Parameters
    ----------
    results
        What `storebench.load_results` returned; of its cells the limited ones that read their store are drawn.
    ax
        Where to draw; None makes a new figure, and only there residency has axes of its own.
    """
    cells = reading(results, "limited")
    with styled():
        ax, below = _axes(ax, cells)
        for cell, line in zip(cells, _lines(cells), strict=True):
            for before, epoch in enumerate(_first(cell, growing=False)):
                _draw_steady(ax, below, cell, epoch, line, before)
        (below or ax).set_xlabel("times that the store was asked for")
        _rates(ax)
        if below is not None:
            for limit in sorted({share for cell in cells if (share := limit_frac(cell)) is not None}):
                below.axhline(100 * limit, color="black", linewidth=0.8, linestyle=":")
            below.set_ylim(-3, 108)
            below.set_ylabel("resident (%)")
        legend_below(ax)
        note = f"{panel_state(cells)}. Thick: the steady part. Dotted: the limit" if cells else ""
        title(ax, STEADY_QUESTION, note, cells)
    return ax


def _draw_steady(
    ax: Axes, below: Axes | None, cell: CellSummary, epoch: Curve, line: str, before: int
) -> None:
    style, asked = look(cell), before + epoch.asked_frac
    ax.plot(asked, epoch.samples_per_s, color=style.colour, linestyle=line, linewidth=1, alpha=_FAINT)
    steady = np.flatnonzero(epoch.portion)
    ax.plot(
        asked[steady],
        epoch.samples_per_s[steady],
        color=style.colour,
        linestyle=line,
        linewidth=2.2,
        label="" if before else backend_label(cell.backend),
    )
    if below is not None and epoch.residency:
        places = [before + point.asked_frac for point in epoch.residency]
        held = [100 * point.resident_frac for point in epoch.residency]
        below.plot(places, held, color=style.colour, linestyle=line, linewidth=1.2)


def limit_frac(cell: CellSummary) -> float | None:
    """Return the page cache's limit as a share of the cell's store, or None where either is not known."""
    stored = cell.fact("store_file_bytes")
    return cell.cell.memory_bytes / stored if cell.cell.memory_bytes and stored else None


def _rates(ax: Axes) -> None:
    ax.set_yscale("log")
    plain_numbers(ax.yaxis)
    ax.set_ylabel("throughput (samples/s)")


def _axes(ax: Axes | None, cells: Sequence[CellSummary]) -> tuple[Axes, Axes | None]:
    """Return the axes of the rate and, in a figure of our own and where it was sampled, those of residency."""
    sampled = any(row["cache_curve"] for cell in cells for row in cell.usable)
    return companion(new_axes(4.6 if sampled else 3.6, ax), own=ax is None and sampled)


def _lines(cells: Sequence[CellSummary]) -> list[str]:
    """Return a line style for each cell: its backend's, or another one where two would look the same."""
    found: list[tuple[str, str]] = []
    for cell in cells:
        style = look(cell)
        free = (line for line in (style.line, *_LINES) if (style.colour, line) not in found)
        found.append((style.colour, next(free, style.line)))
    return [line for _, line in found]


def _first(cell: CellSummary, *, growing: bool) -> list[Curve]:
    """Return the curve of every epoch of the cell's first replicate."""
    rows = cell.usable
    first = min(((row["run_id"], row["replicate"]) for row in rows), default=None)
    ours = sorted(
        (row for row in rows if (row["run_id"], row["replicate"]) == first), key=lambda r: r["epoch"]
    )
    return [epoch for row in ours if (epoch := curve(row, growing=growing)) is not None]


def cold_answer(cells: Sequence[CellSummary]) -> str:
    """Say how long the cells were cold, and whose rate the page cache changed most from there on."""
    told = []
    for cell in reading(cells, "cold"):
        cold, whole = cell.median("samples_per_s"), cell.median("whole_samples_per_s")
        asked = cell.median("portion_asked_frac")
        if cold and whole and asked is not None:
            told.append((whole / cold, asked, cold, whole, backend_label(cell.backend)))
    if not told:
        return "The records do not say in which steps the cells were cold, so no cold rate is given."
    shortest, longest = min(one[1] for one in told), max(one[1] for one in told)
    span = percent(longest) if shortest == longest else f"{percent(shortest)} to {percent(longest)}"
    _, asked, cold, whole, name = max(told, key=lambda one: max(one[0], 1 / one[0]))
    return (
        f"Until {span} of the store had been asked for; {name} gave {number(cold)} samples/s while cold"
        f" (up to {percent(asked)}) and {number(whole)} over the whole epoch."
    )


def steady_answer(cells: Sequence[CellSummary]) -> str:
    """Say which of the limited cells reached a steady state, and how far their rates still moved in it."""
    limited = reading(cells, "limited")
    steady = [cell for cell in limited if not cell.whole_only and not cell.unsteady]
    unsteady = [backend_label(cell.backend) for cell in limited if cell.whole_only or cell.unsteady]
    drifts = [
        (abs(float(row["portion_drift"]) - 1), backend_label(cell.backend))
        for cell in steady
        for row in cell.counted
        if row["portion_drift"] is not None
    ]
    limit = size(limited[0].cell.memory_bytes) if limited else ""
    said = [f"{len(steady)} of {len(limited)} backends are shown to be steady with a page cache of {limit}"]
    if drifts:
        most, name = max(drifts)
        said.append(
            f"the second half of the steady part differs from the first by at most {percent(most)} ({name})"
        )
    if unsteady:
        said.append(f"not shown: {', '.join(unsteady)}")
    return "; ".join(said) + "."
