"""Throughput and efficiency against the number of ranks."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from storebench.report.cells import CellSummary
from storebench.report.claims import Claim, Kind
from storebench.report.decisions import Topic, jobs_beside
from storebench.report.facts import Facts
from storebench.report.intervals import Interval
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import MOST_LINES, Selection
from storebench.report.plots.style import (
    companion,
    legend_below,
    look,
    new_axes,
    plain_numbers,
    plain_ticks,
    styled,
    title,
    whiskers,
)
from storebench.report.texts.labels import backend_label, common_setting, with_interval
from storebench.report.texts.sentence import Sentence
from storebench.settings.words import Fill, Share, Sync

QUESTION = "What do more ranks on this machine deliver?"

_NOTE = "All ranks share one machine and its cores. Dotted: as many times one process as there are ranks"
_LINES = ("-", "--", "-.")


@dataclass(frozen=True, kw_only=True, eq=False)
class RankLine:
    """The jobs of one backend with 2 and more ranks, beside the process that they are held against.

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
    jobs: tuple[CellSummary, ...]
    efficiencies: tuple[Interval | None, ...]

    @property
    def label(self) -> str:
        """The backend, and how its ranks share their work where that is not the usual way."""
        cell = self.jobs[0].cell
        words = [backend_label(self.alone.backend)]
        words += ["global batch"] if cell.global_batch_size is not None else []
        words += [f"gradients {cell.sync}"] if cell.sync is not Sync.OVERLAPPED else []
        words += [f"share {cell.share}"] if cell.share is not Share.NONE else []
        words += ["filled in the first epoch"] if cell.store_fill is Fill.FIRST_EPOCH else []
        return ", ".join([*words, *(["padded"] if cell.pad else [])])


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot if stores of the panel were also read by jobs of several ranks."""
    lines = rank_lines(selection.facts)
    if lines:
        told = ranks_answer(selection.facts)
        yield Plot(
            name="ranks",
            question=QUESTION,
            answer=told.text,
            claims=told.claims,
            draw=functools.partial(plot_ranks, lines[:MOST_LINES]),
        )


def rank_lines(facts: Facts) -> list[RankLine]:
    """Return one line for each store of the main panel and each way in which its ranks share their work."""
    lines = []
    for alone in facts.main.stored if facts.main else ():
        ways: dict[object, list[CellSummary]] = {}
        for job in jobs_beside(alone, facts.ordered):
            cell = job.cell
            shared = (cell.share, cell.store_fill)
            ways.setdefault((cell.global_batch_size is not None, cell.sync, cell.pad, shared), []).append(job)
        for jobs in ways.values():
            efficiencies = tuple(_efficiency(facts, job, alone) for job in jobs)
            lines.append(RankLine(alone=alone, jobs=tuple(jobs), efficiencies=efficiencies))
    return lines


def _efficiency(facts: Facts, job: CellSummary, alone: CellSummary) -> Interval | None:
    decision = facts.decisions.between(job, alone, Topic.RANKS)
    return None if decision is None else decision.ratio.scaled(1 / job.cell.ranks)


def ranks_answer(facts: Facts) -> Sentence:
    """Return the number of backends that are proven to deliver more with several ranks, and the largest gain with its efficiency."""
    asked = {
        alone.backend: [
            claim
            for job in jobs_beside(alone, facts.ordered)
            if (claim := facts.claims.between(job, alone, Topic.RANKS)) is not None
        ]
        for alone in (facts.main.stored if facts.main else ())
    }
    asked = {backend: found for backend, found in asked.items() if found}
    if not asked:
        return Sentence(text="No backend was measured with several numbers of ranks in the same rounds.")
    said = tuple(claim for found in asked.values() for claim in found)
    gains = [claim for claim in said if claim.kind is Kind.FASTER and claim.subject.cell.ranks > 1]
    if not gains:
        return Sentence(
            text="No backend is proven to deliver more with several ranks on this machine than with one.",
            claims=said,
        )
    most = max(gains, key=_times)
    helped = len({claim.subject.backend for claim in gains})
    verb, ranks = "is" if helped == 1 else "are", most.subject.cell.ranks
    share = most.figure.scaled(100 / ranks) if most.figure else None
    text = (
        f"{helped} of {len(asked)} backends {verb} proven to deliver more with several ranks on this machine; the"
        f" largest gain is {with_interval(most.figure)} times with {ranks} ranks instead of 1"
        f" ({backend_label(most.subject.backend)}), an efficiency of {with_interval(share, '%')}."
    )
    return Sentence(text=text, claims=(most, *(claim for claim in gains if claim is not most)))


def _times(claim: Claim) -> float:
    return claim.figure.mid if claim.figure else 0.0


def plot_ranks(lines: Sequence[RankLine], *, ax: Axes | None = None) -> Axes:
    """Draw throughput against the number of ranks, and below it the efficiency, one line per backend.

    Parameters
    ----------
    lines
        The lines, at least one.
    ax
        Axes to draw on; None makes a new figure. Only a new figure has axes for the efficiency.
    """
    counts = sorted({1, *(job.cell.ranks for line in lines for job in line.jobs)})
    with styled():
        ax, below = companion(new_axes(4.8, ax), own=ax is None)
        for number, line in enumerate(lines):
            _draw(ax, below, line, counts, _LINES[number % len(_LINES)])
        for axes in (ax, below):
            if axes is not None:
                axes.set_xscale("log", base=2)
                axes.set_xticks(counts)
                plain_ticks(axes.xaxis)
        ax.set_yscale("log")
        plain_numbers(ax.yaxis)
        ax.set_ylabel("throughput (samples/s)")
        (below or ax).set_xlabel("ranks")
        if below is not None:
            below.axhline(100, color="black", linewidth=0.9, linestyle=":")
            below.set_ylim(bottom=0)
            below.set_ylabel("efficiency (%)")
        legend_below(ax)
        cells = [line.alone for line in lines]
        title(ax, QUESTION, f"{common_setting(cells)}. {_NOTE}", cells)
    return ax


def _draw(ax: Axes, below: Axes | None, line: RankLine, counts: Sequence[int], pattern: str) -> None:
    """Draw the rates of a line with the ideal beside them, and its efficiencies."""
    style, cells = look(line.alone), (line.alone, *line.jobs)
    rates = [cell.interval("samples_per_s") or Interval(mid=0.0) for cell in cells]
    ax.plot(
        counts, [count * rates[0].mid for count in counts], color=style.colour, linestyle=":", linewidth=0.9
    )
    ax.errorbar(
        [cell.cell.ranks for cell in cells],
        [rate.mid for rate in rates],
        yerr=whiskers(rates),
        color=style.colour,
        marker=style.marker,
        linestyle=pattern,
        capsize=3,
        markersize=5,
        label=line.label,
    )
    shares = [
        (job.cell.ranks, one.scaled(100))
        for job, one in zip(line.jobs, line.efficiencies, strict=True)
        if one
    ]
    if below is None or not shares:
        return
    below.errorbar(
        [1, *(ranks for ranks, _ in shares)],
        [100.0, *(share.mid for _, share in shares)],
        yerr=whiskers([Interval(mid=100.0), *(share for _, share in shares)]),
        color=style.colour,
        marker=style.marker,
        linestyle=pattern,
        capsize=3,
        markersize=5,
    )
