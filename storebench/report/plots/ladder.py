"""LMDBIO's ladder: the gain of each optimisation, with one and with several reader processes."""

import functools
import itertools
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes

from storebench.formats.lmdb.ladder import RUNGS
from storebench.plain_text import plain
from storebench.report.claims import Claim, Claims, Kind
from storebench.report.decisions import Topic
from storebench.report.ladder import Ladder, Step, by_state
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
from storebench.report.texts.papers import gain_of
from storebench.report.texts.sentence import Sentence
from storebench.settings.words import CacheState

QUESTION = "What does each of LMDBIO's optimisations gain"
_LOOKS = {
    "#332288": "o", "#44AA99": "s", "#CC6677": "^", "#882255": "D", "#117733": "v", "#999933": "P", "#88CCEE": "X",
}  # fmt: skip
"""Colour -> marker of a series; Tol's muted scheme, which colour-blind people can tell apart."""


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield one plot per cache state in which the ladder was measured."""
    for state, climbed in by_state(selection.facts.ladders).items():
        name = "ladder" if state == "cold" else f"ladder-{state}"
        told = ladder_answer(climbed, selection.facts.claims)
        yield Plot(
            name=name,
            question=_question(state),
            answer=told.text,
            claims=told.claims,
            draw=functools.partial(plot_ladder, climbed),
        )


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


def ladder_answer(ladders: Sequence[Ladder], claims: Claims) -> Sentence:
    """Return the proven gains of the ladder with the fewest processes, in one sentence."""
    ladder = min(ladders, key=lambda one: one.first.cell.workers)
    tried = [
        (step, claim)
        for step in ladder.steps
        if step.rung.trouble and (claim := _claim(ladder, step, claims))
    ]
    gains = [f"{_name(step)} gains {_gained(step, one)} times" for step, one in tried if _is_gain(step, one)]
    losses = [f"{_name(step)} loses ({_gained(step, one)})" for step, one in tried if _is_loss(step, one)]
    unproven = [_name(step) for step, one in tried if one.kind is not Kind.FASTER]
    where = f"{ladder.first.cell.cache.capitalize()}, {_processes(ladder)}, each held against the rung below"
    said = [f"{where}: {', '.join([*gains, *losses]) or 'no single step is proven'}"]
    if unproven:
        said.append(f"of {', '.join(unproven)} neither gain nor loss is proven")
    asserted = [claim for _, claim in tried]
    plain_lmdb, coal = ladder.of("plain"), ladder.of("coal")
    total = claims.between(coal.cell, plain_lmdb.cell, Topic.RUNG) if coal and plain_lmdb else None
    if total is not None and coal is not None:
        said.append(f"all reading together {with_interval(gain_of(total, coal.cell))} times plain LMDB")
        asserted.append(total)
    return Sentence(text="; ".join(said) + ".", claims=tuple(asserted))


def _claim(ladder: Ladder, step: Step, claims: Claims) -> Claim | None:
    """Return the claim about a rung and the one below; None where the lower one was not measured."""
    below = ladder.of(step.rung.below or "")
    return None if below is None else claims.between(step.cell, below.cell, Topic.RUNG)


def _is_gain(step: Step, claim: Claim) -> bool:
    return claim.kind is Kind.FASTER and claim.subject is step.cell


def _is_loss(step: Step, claim: Claim) -> bool:
    return claim.kind is Kind.FASTER and claim.subject is not step.cell


def _gained(step: Step, claim: Claim) -> str:
    return number(gain_of(claim, step.cell).mid)


def _name(step: Step) -> str:
    return step.rung.key.upper()


def _processes(ladder: Ladder) -> str:
    workers = max(1, ladder.first.cell.workers)
    return f"{workers} reader process{'es' if workers > 1 else ''}"
