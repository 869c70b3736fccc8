"""LMDBIO's ladder: the gain of each optimisation, with one and several reader processes, and with ranks that train."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

from matplotlib.axes import Axes

from storebench.formats.lmdb.direct import RUNGS
from storebench.plain_text import plain
from storebench.report.claims import Claim, ClaimKind, Claims
from storebench.report.decisions import Topic
from storebench.report.intervals import Estimate
from storebench.report.ladder import BASES, Ladder, MeasuredRung, by_state
from storebench.report.plots.arrows import mark_limits
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection
from storebench.report.plots.style import (
    legend_below,
    new_axes,
    noted,
    plain_numbers,
    styled,
    title,
    whiskers,
)
from storebench.report.texts.labels import common_setting, number, with_interval
from storebench.report.texts.papers import decision_on
from storebench.report.texts.sentence import Sentence
from storebench.report.texts.verdicts import TWO_BOUNDS, bound_words, told_ratio
from storebench.settings.words import CacheState, Compute, ComputeKind
from storebench.units import number_of

QUESTION = "What does each of LMDBIO's optimisations gain"
_LOOKS = {
    "#332288": "o", "#44AA99": "s", "#CC6677": "^", "#882255": "D", "#117733": "v", "#999933": "P", "#88CCEE": "X",
}  # fmt: skip
"""Colour -> marker of a series; Tol's muted scheme, which colour-blind people can tell apart."""


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield one plot for each cache state and compute with which the ladder was measured."""
    for state, climbed in by_state(selection.facts.ladders).items():
        for compute, alike in _by_compute(climbed).items():
            words = [
                "ladder",
                *_if(compute.kind is not ComputeKind.NONE, compute),
                *_if(state != "cold", state),
            ]
            sentence = ladder_answer(alike, selection.facts.claims)
            yield Plot(
                name="-".join(words),
                question=_question(alike[0]),
                answer=sentence.text,
                claims=sentence.claims,
                draw=functools.partial(plot_ladder, alike),
            )


def _if(holds: bool, word: str) -> list[str]:
    return [word] if holds else []


def _by_compute(ladders: Iterable[Ladder]) -> dict[Compute, list[Ladder]]:
    """Return the ladders of each compute; reading alone first."""
    groups: dict[Compute, list[Ladder]] = {}
    for ladder in sorted(ladders, key=lambda ladder: ladder.trains):
        groups.setdefault(ladder.first.cell.compute, []).append(ladder)
    return groups


def _question(ladder: Ladder) -> str:
    kind = ladder.first.cell.compute.kind
    where = {
        ComputeKind.NONE: "",
        ComputeKind.REAL: " in training",
        ComputeKind.EMULATED: " in emulated training",
    }
    return f"{QUESTION}{where[kind]}, {plain(ladder.first.cell.cache)}?"


def plot_ladder(ladders: Sequence[Ladder], *, ax: Axes | None = None) -> Axes:
    """Draw samples per second per rung with intervals, one series per number of processes or ranks.

    All ladders have the same dataset, compute and cache state. Filled markers are cold, hollow ones warm.
    """
    shown = {step.rung.key for ladder in ladders for step in ladder.steps}
    rungs = [rung for rung in RUNGS if rung.key in shown]
    place = {rung.key: position for position, rung in enumerate(rungs)}
    ordered = sorted(ladders, key=lambda ladder: (ladder.first.cell.ranks, ladder.first.cell.workers))
    looks = dict(zip(dict.fromkeys(map(_processes, ordered)), itertools.cycle(_LOOKS.items()), strict=False))
    with styled():
        ax = new_axes(1.5 + 0.42 * len(rungs), ax)
        notes: list[str] = []
        for ladder in ordered:
            colour, marker = looks[_processes(ladder)]
            shift = 0.14 * (ordered.index(ladder) - (len(ordered) - 1) / 2)
            rates = [step.rate for step in ladder.steps]
            middles = [rate.mid for rate in rates]
            heights = [place[step.rung.key] + shift for step in ladder.steps]
            are_bounds = [step.cell.at_most for step in ladder.steps]
            notes.append(
                mark_limits(ax, zip(middles, heights, strict=True), are_bounds, upright=False, colour=colour)
            )
            ax.errorbar(
                middles,
                heights,
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
        title(ax, _question(ordered[0]), noted(common_setting(cells), *notes), cells)
    return ax


def ladder_answer(ladders: Sequence[Ladder], claims: Claims) -> Sentence:
    """Return a sentence on the proven gains of the ladder with the fewest processes; for training, see `training_answer`."""
    if ladders[0].trains:
        return training_answer(max(ladders, key=lambda ladder: ladder.first.cell.ranks), claims)
    ladder = min(ladders, key=lambda ladder: ladder.first.cell.workers)
    tried = [
        (step, claim)
        for step in ladder.steps
        if step.rung.trouble and (claim := _claim(ladder, step, claims))
    ]
    gains = [
        f"{_name(step)} gains {_gained(step, claim)} times" for step, claim in tried if _is_gain(step, claim)
    ]
    losses = [
        f"{_name(step)} loses ({_gained(step, claim)})" for step, claim in tried if _is_loss(step, claim)
    ]
    unproven = [_name(step) for step, claim in tried if claim.kind is not ClaimKind.FASTER]
    where = f"{ladder.first.cell.cache.capitalize()}, {_processes(ladder)}, each compared with the rung below"
    clauses = [f"{where}: {', '.join([*gains, *losses]) or 'no single step is proven'}"]
    if unproven:
        clauses.append(f"of {', '.join(unproven)} neither gain nor loss is proven")
    asserted = [claim for _, claim in tried]
    plain_lmdb, coal = ladder.of("plain"), ladder.of("coal")
    total = claims.between(coal.cell, plain_lmdb.cell, Topic.RUNG) if coal and plain_lmdb else None
    if total is not None and coal is not None:
        told = told_ratio(decision_on(total, coal.cell))
        clauses.append(f"all reading together {f'{told} times plain LMDB' if told else f'has {TWO_BOUNDS}'}")
        asserted.append(total)
    return Sentence(text="; ".join(clauses) + ".", claims=tuple(asserted))


def training_answer(ladder: Ladder, claims: Claims) -> Sentence:
    """Return a sentence on the data-wait fraction with plain LMDB, and the gain of the best rung in steps of training."""
    lowest, best = ladder.of("plain"), ladder.best
    where = f"{ladder.first.cell.cache.capitalize()}, {_processes(ladder)}, complete steps"
    share = None if lowest is None else claims.decisions.waiting(lowest.cell)
    waits = "" if share is None else with_interval(_in_percent(share), "%")
    clauses = [f"with plain LMDB, the loop waits for data {waits} of the time"] if waits else []
    gains = [] if best is None else _gains_of_best(ladder, best, claims)
    if best is not None and gains:
        unproven = "" if all(_is_gain(best, claim) for _, claim in gains) else " (not proven)"
        gained = " and ".join(_trained(best, claim, name) for name, claim in gains)
        clauses.append(f"the best rung ({best.rung.name}) trains {gained}{unproven}")
    return Sentence(
        text=f"{where}: {'; '.join(clauses) or 'plain LMDB was not measured'}.",
        claims=tuple(claim for _, claim in gains),
    )


_BASE_NAMES = dict(zip(BASES, ("as fast as plain LMDB", "as fast as LMDB without read-ahead"), strict=True))


def _gains_of_best(ladder: Ladder, best: MeasuredRung, claims: Claims) -> list[tuple[str, Claim]]:
    """Return the claims about the best rung and the two readers of LMDB itself, with the names of these readers."""
    bases = ((name, ladder.of(key)) for key, name in _BASE_NAMES.items())
    named_claims = (
        (name, claims.between(best.cell, base.cell, Topic.RUNG)) for name, base in bases if base is not None
    )
    return [(name, claim) for name, claim in named_claims if claim is not None]


def _trained(best: MeasuredRung, claim: Claim, name: str) -> str:
    """Describe the best rung's training rate as a multiple of that of a base."""
    told = told_ratio(decision_on(claim, best.cell))
    if not told:
        return f"an unknown number of times {name} (both rates are only upper bounds)"
    return f"{told} times {name}"


def _in_percent(share: Estimate) -> Estimate:
    """Return a share in percent; its interval ends at 0 and 100."""
    lo, hi = (None if end is None else min(max(end, 0.0), 1.0) for end in (share.lo, share.hi))
    return dataclasses.replace(share, lo=lo, hi=hi).scaled(100)


def _claim(ladder: Ladder, step: MeasuredRung, claims: Claims) -> Claim | None:
    """Return the claim about a rung and the one below; None if the lower one was not measured."""
    below = ladder.of(step.rung.below or "")
    return None if below is None else claims.between(step.cell, below.cell, Topic.RUNG)


def _is_gain(step: MeasuredRung, claim: Claim) -> bool:
    return claim.kind is ClaimKind.FASTER and claim.subject is step.cell


def _is_loss(step: MeasuredRung, claim: Claim) -> bool:
    return claim.kind is ClaimKind.FASTER and claim.subject is not step.cell


def _gained(step: MeasuredRung, claim: Claim) -> str:
    decision = decision_on(claim, step.cell)
    return bound_words(decision.cell, decision.base) + number(decision.ratio.mid)


def _name(step: MeasuredRung) -> str:
    return step.rung.name


def _processes(ladder: Ladder) -> str:
    cell = ladder.first.cell
    if ladder.trains:
        suffix = f", {number_of(cell.workers, 'worker')} each" if cell.workers else ""
        return f"{number_of(cell.ranks, 'rank')}{suffix}"
    workers = max(1, cell.workers)
    return f"{workers} reader process{'es' if workers > 1 else ''}"
