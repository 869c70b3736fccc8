"""LMDBIO's ladder: what each optimisation gains, with one and with several reader processes."""

import itertools
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes

from storebench.formats.lmdb.ladder import RUNGS
from storebench.plain_text import plain
from storebench.report.ladder import Ladder, by_state, top_gain
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection
from storebench.report.plots.style import (
    legend_below,
    new_axes,
    plain_numbers,
    styled,
    title,
    whiskers,
)
from storebench.report.texts.labels import common_setting, number, with_interval
from storebench.settings.words import CacheState
from storebench.stats import Verdict

QUESTION = "What does each of LMDBIO's optimisations gain"
_LOOKS = {
    "#332288": "o", "#44AA99": "s", "#CC6677": "^", "#882255": "D", "#117733": "v", "#999933": "P", "#88CCEE": "X",
}  # fmt: skip
"""Colour -> marker of a series; Tol's muted scheme, which colour-blind people can tell apart."""


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield one plot per cache state in which the ladder was climbed."""
    for state, climbed in by_state(selection.facts.ladders).items():
        name = "ladder" if state == "cold" else f"ladder-{state}"
        answer = ladder_answer(climbed)
        yield Plot(name=name, question=_question(state), answer=answer, ax=plot_ladder(climbed))


def _question(state: str) -> str:
    return f"{QUESTION}, {state}?"


def plot_ladder(ladders: Sequence[Ladder], *, ax: Axes | None = None) -> Axes:
    """Draw samples per second on each rung with intervals, one series for each number of processes.

    All ladders are of one dataset and one cache state. Filled markers are cold, hollow ones warm.
    """
    shown = {step.rung.key for ladder in ladders for step in ladder.steps}
    rungs = [rung for rung in RUNGS if rung.key in shown]
    place = {rung.key: position for position, rung in enumerate(rungs)}
    ordered = sorted(ladders, key=lambda ladder: ladder.first.cell.workers)
    looks = dict(zip(dict.fromkeys(map(_processes, ordered)), itertools.cycle(_LOOKS.items()), strict=False))
    with styled():
        ax = new_axes(1.5 + 0.42 * len(rungs), ax)
        for ladder in ordered:
            colour, marker = looks[_processes(ladder)]
            shift = 0.14 * (ordered.index(ladder) - (len(ordered) - 1) / 2)
            rates = [step.rate for step in ladder.steps]
            ax.errorbar(
                [rate.mid for rate in rates],
                [place[step.rung.key] + shift for step in ladder.steps],
                xerr=whiskers(rates),
                color=colour,
                marker=marker,
                fillstyle="none" if ladder.first.cell.cache == CacheState.WARM else "full",
                linestyle="none",
                capsize=2,
                linewidth=1,
                markersize=5,
                label=_processes(ladder),
            )
        ax.set_yticks(range(len(rungs)), [rung.label for rung in rungs])
        ax.set_ylim(len(rungs) - 0.45, -0.55)
        ax.set_xscale("log")
        ax.set_xlabel("throughput (samples/s)")
        plain_numbers(ax.xaxis)
        legend_below(ax)
        cells = [step.cell for ladder in ladders for step in ladder.steps]
        title(ax, _question(plain(ordered[0].first.cell.cache)), common_setting(cells), cells)
    return ax


def ladder_answer(ladders: Sequence[Ladder]) -> str:
    """Return the proven gains of the ladder with the fewest processes, in one sentence."""
    one = min(ladders, key=lambda ladder: ladder.first.cell.workers)
    tried = [(step.rung.key.upper(), step.gain) for step in one.steps if step.rung.trouble and step.gain]
    gains = [
        f"{name} gains {number(gain.mid)} times" for name, gain in tried if gain.verdict is Verdict.FASTER
    ]
    losses = [f"{name} loses ({number(gain.mid)})" for name, gain in tried if gain.verdict is Verdict.SLOWER]
    unproven = [name for name, gain in tried if not gain.proven]
    where = f"{one.first.cell.cache.capitalize()}, {_processes(one)}, each held against the rung below"
    said = [f"{where}: {', '.join([*gains, *losses]) or 'no single step is proven'}"]
    if unproven:
        said.append(f"of {', '.join(unproven)} neither gain nor loss is proven")
    total = top_gain(one)
    if total is not None:
        said.append(f"all reading together {with_interval(total)} times plain LMDB")
    return "; ".join(said) + "."


def _processes(ladder: Ladder) -> str:
    workers = max(1, ladder.first.cell.workers)
    return f"{workers} reader process{'es' if workers > 1 else ''}"
