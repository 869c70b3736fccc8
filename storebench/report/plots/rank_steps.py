"""The parts of a step in jobs of ranks: waiting for data, computing, exposed communication, waiting for the slowest rank."""

import functools
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.report.cells import (
    EPOCHS,
    RANK_COLUMNS,
    STATE_COLUMNS,
    CellSummary,
    as_cells,
    key_without,
)
from storebench.report.facts import Facts
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import MOST_PLOTS, Selection, drawable, with_count
from storebench.report.plots.style import (
    PART_COLOURS,
    BackendStyle,
    bar,
    beside,
    label_rows,
    legend_below,
    make_room,
    new_axes,
    spaced_numbers,
    styled,
    title,
)
from storebench.report.texts.labels import common_setting, duration, percent
from storebench.report.texts.rank_answers import job_name, rank_steps_answer, step_parts, step_s
from storebench.settings.words import ComputeKind, Sync

QUESTION = "Where does a step of several ranks go?"

_NOTE = (
    "Means over ranks, entire epoch. Exposed communication is measured after the epoch, in pairs of steps. It and the wait for"
    " the slowest rank are parts of the loop's compute time, and are subtracted from it here"
)


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield one plot per setting in which jobs of several ranks trained."""
    facts = selection.facts
    for number, cells in enumerate(job_groups(facts)[:MOST_PLOTS]):
        sentence = rank_steps_answer(cells, facts.claims)
        yield Plot(
            name="rank-steps" if number == 0 else f"rank-steps-{number + 1}",
            question=QUESTION,
            answer=with_count(sentence.text, cells),
            claims=sentence.claims,
            draw=functools.partial(plot_rank_steps, drawable(cells)),
        )


def job_groups(facts: Facts) -> list[list[CellSummary]]:
    """Return the training cells of each setting with jobs of ranks: the jobs, and single processes with the same work.

    Settings are in the order of the page. Cells are ordered by backend and number of ranks.
    """
    if not any(panel.first.cell.ranks > 1 for panel in facts.ordered):
        return []
    known = {cell.key: cell for panel in facts.ordered for cell in panel.listed}
    trained = [
        cell for cell in known.values() if cell.usable and cell.cell.compute.kind is not ComputeKind.NONE
    ]
    groups: dict[object, list[CellSummary]] = {}
    for cell in trained:
        if not cell.is_null:
            groups.setdefault(_work(cell), []).append(cell)
    jobs = [group for group in groups.values() if any(cell.cell.ranks > 1 for cell in group)]
    return [
        sorted([*group, *(cell for cell in trained if _loads_nothing_for(cell, group[0]))], key=_place)
        for group in jobs
    ]


def _work(cell: CellSummary, *more: str) -> tuple[object, ...]:
    return key_without(cell, "backend", EPOCHS, *RANK_COLUMNS, *more)


def _loads_nothing_for(cell: CellSummary, stored: CellSummary) -> bool:
    """Return True if a null cell, which has no cache state, does the same work as a stored one."""
    return cell.is_null and _work(cell, *STATE_COLUMNS) == _work(stored, *STATE_COLUMNS)


def _place(cell: CellSummary) -> tuple[object, ...]:
    return (cell.is_null, cell.backend, cell.cell.ranks, list(Sync).index(cell.cell.sync))


def plot_rank_steps(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw the parts of a step, one bar per backend, number of ranks and moment of the exchange.

    Parameters
    ----------
    results
        The table that `storebench.load_results` returned, filtered to the cells to draw.
    ax
        Axes to draw on; None makes a new figure.
    """
    cells = [cell for cell in as_cells(results) if cell.usable]
    with styled():
        ax = new_axes(1.5 + 0.34 * len(cells), ax)
        for position, cell in enumerate(cells):
            _stack(ax, cell, position)
        label_rows(ax, [job_name(cell) for cell in cells])
        ax.set_ylim(len(cells) - 0.45, -0.55)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("time per step (ms)")
        ax.set_xlim(0, 1.05 * max((step_s(cell) * 1000 for cell in cells), default=1.0) or 1.0)
        for name in _drawn_parts(cells):
            ax.barh(0, 0, color=PART_COLOURS[name], label=name)
        legend_below(ax)
        title(ax, QUESTION, f"{common_setting(cells)}. {_NOTE}", cells)
        make_room(ax)
        spaced_numbers(ax)
    return ax


def _drawn_parts(cells: Sequence[CellSummary]) -> list[str]:
    parts = [step_parts(cell) for cell in cells]
    return [name for name in (parts[0] if parts else ()) if any(cell_parts[name] > 0 for cell_parts in parts)]


def _stack(ax: Axes, cell: CellSummary, position: float) -> None:
    left, parts = 0.0, step_parts(cell)
    for name, seconds in parts.items():
        if seconds > 0:
            style = BackendStyle(colour=PART_COLOURS[name], hatch="", marker="", line="-")
            bar(ax, position, seconds * 1000, style, height=0.6, left=left)
        left += seconds * 1000
    waits = parts["data wait"] * 1000 / (left or 1.0)
    beside(ax, left, position, f"{duration(left / 1000)}, {percent(waits)} waiting for data")
