"""Throughput and efficiency against the number of ranks."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes

from storebench.plain_text import plain
from storebench.report.cells import CellSummary, as_cells
from storebench.report.decisions import Topic
from storebench.report.facts import Facts, derive
from storebench.report.intervals import Estimate
from storebench.report.jobs import jobs_beside
from storebench.report.panels import Panel
from storebench.report.plots.arrows import mark_limits
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import MOST_LINES, MOST_PLOTS, Selection
from storebench.report.plots.style import (
    companion,
    legend_below,
    look,
    new_axes,
    noted,
    plain_numbers,
    plain_ticks,
    styled,
    title,
    whiskers,
)
from storebench.report.texts.labels import (
    MODELS,
    backend_label,
    common_setting,
    state_label,
)
from storebench.report.texts.rank_answers import rank_panels, ranks_answer
from storebench.settings.words import ComputeKind, Fill, Share, Sync

QUESTION = "What do more ranks deliver?"

_IDEAL = "ideal: the first point times the number of ranks"
_LINES = ("-", "--", "-.")


@dataclass(frozen=True, kw_only=True, eq=False)
class RankLine:
    """The jobs of one backend with 2 and more ranks, beside the process that they are compared with.

    Attributes
    ----------
    alone
        The cell of one process.
    jobs
        Cells of jobs, in the order of their ranks.
    efficiencies
        For each job its rate over that of one process times its ranks; None if no round has both.
    """

    alone: CellSummary
    jobs: tuple[CellSummary, ...] = ()
    efficiencies: tuple[Estimate | None, ...] = ()

    @property
    def cells(self) -> tuple[CellSummary, ...]:
        """All cells of the line."""
        return (self.alone, *self.jobs)

    @property
    def label(self) -> str:
        """The backend, and how its ranks share their work where that is not the usual way."""
        cell = self.cells[-1].cell
        words = [backend_label(self.alone.backend)]
        words += ["global batch"] if cell.global_batch_size is not None else []
        words += [f"gradients {cell.sync}"] if cell.sync is not Sync.OVERLAPPED else []
        words += [f"share {cell.share}"] if cell.share is not Share.NONE else []
        words += ["filled in the first epoch"] if cell.store_fill is Fill.FIRST_EPOCH else []
        return ", ".join([*words, *(["padded"] if cell.pad else [])])


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield one plot per setting in which stores were read by one process and by jobs of several ranks."""
    facts = selection.facts
    for number, panel in enumerate(rank_panels(facts)[:MOST_PLOTS]):
        sentence = ranks_answer(facts, panel)
        question = QUESTION if number == 0 else f"{QUESTION[:-1]}, {_setting(panel)}?"
        yield Plot(
            name="ranks" if number == 0 else f"ranks-{number + 1}-{panel.first.cell.cache}",
            question=question,
            answer=sentence.text,
            claims=sentence.claims,
            draw=functools.partial(_draw, rank_lines(facts, panel)[:MOST_LINES], question),
        )


def _setting(panel: Panel) -> str:
    """Return the cache state and the work of a panel, which distinguish its plot from the others."""
    cell = panel.first.cell
    emulated = cell.compute.kind is ComputeKind.EMULATED
    work = (
        f"emulated steps of {cell.compute.duration} ms" if emulated else MODELS.get(cell.model, "loader only")
    )
    return plain(f"{state_label(panel.speaker)}, {work}")


def rank_lines(facts: Facts, panel: Panel) -> list[RankLine]:
    """Return one line per store of a one-process panel and per way in which ranks share its work."""
    lines = []
    for alone in panel.stored:
        ways: dict[object, list[CellSummary]] = {}
        for job in jobs_beside(alone, facts.ordered):
            cell = job.cell
            shared = (cell.share, cell.store_fill)
            way = (cell.global_batch_size is not None, cell.sync, cell.pad, shared)
            ways.setdefault(way, []).append(job)
        for jobs in ways.values():
            efficiencies = tuple(_efficiency(facts, job, alone) for job in jobs)
            lines.append(RankLine(alone=alone, jobs=tuple(jobs), efficiencies=efficiencies))
    return lines


def _efficiency(facts: Facts, job: CellSummary, alone: CellSummary) -> Estimate | None:
    decision = facts.decisions.between(job, alone, Topic.RANKS)
    return None if decision is None else decision.ratio.scaled(1 / job.cell.ranks)


def plot_ranks(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw throughput against the number of ranks, and below it the efficiency, one line per backend.

    Parameters
    ----------
    results
        The table that `storebench.load_results` returned, filtered to one setting. Of several settings, the first one in
        the report's order is drawn that has a process and jobs of ranks. Intervals hold together for this table.
    ax
        Axes to draw on; None makes a new figure. Only a new figure has axes for the efficiency.
    """
    facts = derive(as_cells(results))
    panels = rank_panels(facts)
    if panels:
        lines = rank_lines(facts, panels[0])
    else:
        lines = [RankLine(alone=cell) for cell in (facts.main.measured if facts.main else ())]
    return _draw(lines[:MOST_LINES], QUESTION, ax)


def _draw(lines: Sequence[RankLine], question: str, ax: Axes | None = None) -> Axes:
    counts = sorted({cell.cell.ranks for line in lines for cell in line.cells})
    shares = any(efficiency is not None for line in lines for efficiency in line.efficiencies)
    with styled():
        ax, below = companion(new_axes(4.8 if shares else 3.6, ax), own=ax is None and shares)
        limits = [
            _draw_line(ax, below, line, counts, _LINES[number % len(_LINES)])
            for number, line in enumerate(lines)
        ]
        for axes in (ax, below):
            if axes is not None:
                axes.set_xscale("log", base=2)
                axes.set_xticks(counts)
                plain_ticks(axes.xaxis)
        if any(line.jobs for line in lines):
            ax.plot([], [], color="black", linestyle=":", linewidth=0.9, label=_IDEAL)
        ax.set_yscale("log")
        plain_numbers(ax.yaxis)
        ax.set_ylabel("throughput (samples/s)")
        (below or ax).set_xlabel("ranks")
        if below is not None:
            below.axhline(100, color="black", linewidth=0.9, linestyle=":")
            below.set_ylim(0, 1.1 * below.get_ylim()[1])
            below.set_ylabel("efficiency (%)")
        legend_below(ax)
        cells = [line.alone for line in lines]
        title(ax, question, noted(common_setting(cells), _where(lines), *limits), cells)
    return ax


def _where(lines: Sequence[RankLine]) -> str:
    nodes = max((int(job.fact("job_nodes") or 1) for line in lines for job in line.jobs), default=1)
    return "All ranks share one machine and its cores" if nodes == 1 else f"Ranks on up to {nodes} nodes"


def _draw_line(ax: Axes, below: Axes | None, line: RankLine, counts: Sequence[int], pattern: str) -> str:
    """Draw the rates of a line with the ideal beside them, and its efficiencies; return the note on its arrows, or ""."""
    style = look(line.alone)
    rates = [cell.interval("samples_per_s") or Estimate(mid=0.0) for cell in line.cells]
    first = rates[0].mid / line.alone.cell.ranks
    if line.jobs:
        ideal = [count * first for count in counts]
        ax.plot(counts, ideal, color=style.colour, linestyle=":", linewidth=0.9)
    ax.errorbar(
        [cell.cell.ranks for cell in line.cells],
        [rate.mid for rate in rates],
        yerr=whiskers(rates),
        color=style.colour,
        marker=style.marker,
        linestyle=pattern,
        capsize=3,
        markersize=5,
        label=line.label,
    )
    note = mark_limits(
        ax,
        [(cell.cell.ranks, rate.mid) for cell, rate in zip(line.cells, rates, strict=True)],
        [cell.at_most for cell in line.cells],
        upright=True,
        colour=style.colour,
    )
    shares = [
        (job.cell.ranks, efficiency.scaled(100))
        for job, efficiency in zip(line.jobs, line.efficiencies, strict=True)
        if efficiency
    ]
    if below is None or not shares:
        return note
    below.errorbar(
        [1, *(ranks for ranks, _ in shares)],
        [100.0, *(share.mid for _, share in shares)],
        yerr=whiskers([Estimate(mid=100.0), *(share for _, share in shares)]),
        color=style.colour,
        marker=style.marker,
        linestyle=pattern,
        capsize=3,
        markersize=5,
    )
    return note
