"""The page's question and its answer in one sentence, from the panel that speaks for the results."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from storebench.report.cells import CellSummary, Panel
from storebench.report.decisions import Decision, Decisions, rounds_to_tell
from storebench.report.factors import Share, shares
from storebench.report.facts import Facts
from storebench.report.intervals import Ratio
from storebench.report.texts.conclusions import Conclusion, Says
from storebench.report.texts.labels import (
    MODELS,
    backend_label,
    between,
    caveats,
    dataset_label,
    percent,
    size,
    state_label,
    with_interval,
)
from storebench.report.texts.verdicts import doubt_words
from storebench.settings.words import ComputeKind
from storebench.units import number_of

QUESTION = "Does it matter how you store the training images?"

_TOLD_SHARE = 0.05
"""Smaller shares of a difference are not mentioned."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The first screen.

    Attributes
    ----------
    answer
        One sentence with its interval, and where the loop computed a second one of the same with nothing to compute.
    panel
        The panel that it rests on; None where nothing was measured.
    slow, fast
        The two cells that it compares; None where there are not two.
    ratio
        How many times as fast `fast` is as `slow`.
    conclusions
        What the answer asserts.
    """

    answer: str
    panel: Panel | None = None
    slow: CellSummary | None = None
    fast: CellSummary | None = None
    ratio: Ratio | None = None
    conclusions: tuple[Conclusion, ...] = ()


def headline(facts: Facts) -> Headline:
    """Return the answer that some cells give."""
    asked = [panel_headline(panel, facts.decisions) for panel in facts.ordered]
    if not asked:
        return _nothing(facts.cells)
    # The order of panels, and the two cells that each one compares, are fixed before anything is measured. Going down
    # to the first decided comparison is a choice by the data, and costs nothing: intervals of all comparisons of the
    # page hold at once, whichever of them is read out. What was asked before and is undecided is said as well.
    place = next((n for n, one in enumerate(asked) if _is_decided(one)), 0)
    told = asked[place]
    panel = told.panel
    more = [_undecided(asked[:place])] if place else []
    other = _other(facts, panel) if panel is not None else None
    other = None if other in [one.panel for one in asked[:place]] else other
    beside = _of(other, _beside_words(other), facts.decisions) if other is not None else None
    more += [beside] if beside is not None and beside.ratio is not None else []
    return dataclasses.replace(
        told,
        answer=" ".join([told.answer, *(one.answer for one in more)]),
        conclusions=(*told.conclusions, *(said for one in more for said in one.conclusions)),
    )


def panel_headline(panel: Panel, decisions: Decisions) -> Headline:
    """Return the answer that one panel gives by itself."""
    return _of(panel, _where(panel), decisions)


def _is_decided(answer: Headline) -> bool:
    return any(said.says in (Says.FASTER, Says.EQUAL) for said in answer.conclusions)


def _undecided(asked: Sequence[Headline]) -> Headline:
    """Return the undecided comparisons that precede the one told, in words and as conclusions."""
    first = asked[0].panel
    where = f"{dataset_label(first.first)}, {state_label(first.speaker)}" if first is not None else ""
    more = f", and {number_of(len(asked) - 1, 'further setting')}" if len(asked) > 1 else ""
    return Headline(
        answer=f"Asked before, and undecided: {where}{more}.",
        conclusions=tuple(said for one in asked for said in one.conclusions),
    )


def _nothing(cells: Sequence[CellSummary]) -> Headline:
    if not any(cell.usable for cell in cells):
        return Headline(answer="Nothing was measured: every cell failed.")
    return Headline(
        answer="Nothing can be concluded: these records do not show in which steps the requested cache state held."
    )


def _other(facts: Facts, main: Panel) -> Panel | None:
    """Return the panel of the same samples and cache state without compute, or the one with where `main` has none."""
    cell = main.first.cell
    wanted = ComputeKind.REAL if cell.compute.kind is ComputeKind.NONE else ComputeKind.NONE
    alike = [
        panel
        for panel in facts.panels
        if panel.first.cell.data.name == cell.data.name
        and panel.first.environment_key == main.first.environment_key
        and panel.first.cell.compute.kind is wanted
    ]
    same = [
        panel
        for panel in alike
        if panel.first.dataset_key == main.first.dataset_key and panel.first.cell.cache == cell.cache
    ]
    # Training that was not run in the same cache state still says how much of a difference reaches it.
    chosen = same or (alike if wanted is ComputeKind.REAL else [])
    return next((panel for panel in facts.ordered if panel in chosen), None)


def _beside_words(panel: Panel) -> str:
    cell = panel.first.cell
    if cell.compute.kind is ComputeKind.REAL:
        return f"Training {MODELS.get(cell.model, cell.model)}, {state_label(panel.speaker)}, {dataset_label(panel.first)}"
    return (
        "Reading and decoding alone" if panel.alone else "With nothing to do but the network's augmentation"
    )


def _of(panel: Panel, where: str, decisions: Decisions) -> Headline:
    pair = _pair(panel)
    if pair is None:
        only = panel.measured[0]
        rate = with_interval(only.interval("samples_per_s"))
        sentence = f"{where}: {backend_label(only.backend)} gives {rate} samples/s; there is nothing to compare it with."
        return Headline(answer=sentence, panel=panel)
    slow, fast = pair
    decision = decisions.between(fast, slow)
    if decision is None:
        names = f"{backend_label(fast.backend)} and {backend_label(slow.backend)}"
        return Headline(
            answer=f"{where}: {names} never ran in the same round, so no ratio is given.", panel=panel
        )
    answer, conclusions = _sentence(panel, decision, where, decisions)
    return Headline(
        answer=answer, panel=panel, slow=slow, fast=fast, ratio=decision.ratio, conclusions=conclusions
    )


def _pair(panel: Panel) -> tuple[CellSummary, CellSummary] | None:
    """Return the two cells of the sentence: the fixed base, and LMDB beside PNG files, else the fastest other store."""
    slow = panel.base
    others = [cell for cell in panel.stored if cell is not slow]
    others = others or [cell for cell in panel.measured if cell is not slow]
    if slow is None or not others:
        return None
    fast = panel.of("lmdb") if slow.backend == "png" else None
    return slow, fast or max(others, key=lambda cell: cell.median("samples_per_s") or 0.0)


def _where(panel: Panel) -> str:
    said = "".join(f" ({one})" for one in caveats(panel.cells))
    drained = ", reader and decoder alone" if panel.alone else ", with the network's augmentation alone"
    work = drained if panel.first.cell.compute.kind is ComputeKind.NONE else ""
    named = dataset_label(panel.first)
    state = _beyond_memory(panel)
    place = f"{named}, {state}" if state else f"{state_label(panel.speaker)}, {named}"
    return f"On this machine, {place}{work}{said}"


def _beyond_memory(panel: Panel) -> str:
    """Return in words that every store is larger than the limited page cache; "" where that is not so."""
    cell = panel.speaker.cell
    stored = [one.fact("store_file_bytes") for one in panel.stored]
    if not cell.memory_bytes or not stored or not all(one and one > cell.memory_bytes for one in stored):
        return ""
    ahead = f", read-ahead {cell.readahead_kib} KiB" if cell.readahead_kib is not None else ""
    return f"larger than memory (page cache limited to {size(cell.memory_bytes)}{ahead})"


def _feeds(panel: Panel, name: str) -> str:
    cell = panel.first.cell
    verb = "load" if cell.compute.kind is ComputeKind.NONE else "feed"
    verb = verb if name.endswith("files") else f"{verb}s"
    if cell.compute.kind is ComputeKind.NONE:
        return verb
    return f"{verb} {MODELS.get(cell.model, cell.model) if cell.compute == 'real' else 'an emulated accelerator'}"


def _sentence(
    panel: Panel, decision: Decision, where: str, decisions: Decisions
) -> tuple[str, tuple[Conclusion, ...]]:
    shown = decision if decision.ratio.mid >= 1 else decision.inverted()
    winner, loser, ratio = shown.cell, shown.base, shown.ratio
    names = backend_label(winner.backend), backend_label(loser.backend)
    mid, ends = between(ratio.mid, ratio.lo, ratio.hi, 2)
    times = f"{mid} times{ends}"
    if shown.faster:
        because, parts = _because(loser, winner)
        said = Conclusion(says=Says.FASTER, subject=winner, object=loser, figure=ratio)
        feeds = _feeds(panel, names[0])
        return f"{where}: {names[0]} {feeds} {times} as fast as {names[1]}{because}.", (said, *parts)
    says = Says.EQUAL if shown.equal else Says.UNDECIDED
    conclusions = (Conclusion(says=says, subject=winner, object=loser, figure=ratio),)
    if shown.equal:
        text = f"{names[0]} and {names[1]} differ by less than 10% (ratio {times})"
    elif shown.doubt:
        text = f"{names[0]} and {names[1]} cannot be ranked: {doubt_words(shown.doubt)}"
    else:
        text = f"{names[0]} and {names[1]} cannot be told apart yet (ratio {times}); {more_rounds(decisions, [shown])}"
    return f"{where}: {text}.", conclusions


def more_rounds(decisions: Decisions, undecided: Sequence[Decision]) -> str:
    """Return in words how many further rounds would tell a difference of 1.25."""
    if min((one.ratio.n for one in undecided), default=0) < 2:
        return "one round shows no spread, so it takes at least 3 to tell anything"
    rounds = rounds_to_tell(decisions, undecided)
    if rounds is None:
        return "with this spread, 200 rounds would not tell a difference of 1.25 times"
    return f"{rounds} more round{'s' * (rounds > 1)} would tell a difference of 1.25 times"


def _because(slow: CellSummary, fast: CellSummary) -> tuple[str, tuple[Conclusion, ...]]:
    """Return which parts of the work explain a proven difference, in words, and as conclusions."""
    told = [one for one in shares(slow, fast) if one.proven and abs(one.share.mid) >= _TOLD_SHARE]
    if not told:
        return "", ()
    costs = [one for one in told if one.share.mid > 0]
    gives = [one for one in told if one.share.mid < 0]
    of = "difference in the producers' work" if slow.cell.workers else "difference"
    words = [f"{one.part} costs {_share(one)} of the {of}" for one in costs[:1]]
    words += [f"{one.part} {_share(one)}" for one in costs[1:]]
    words += [f"{one.part} gives {_share(one, -1)} back" for one in gives]
    conclusions = tuple(
        Conclusion(says=Says.SHARE, subject=slow, object=fast, figure=one.share, part=one.part)
        for one in told
    )
    return "; " + ", ".join(words), conclusions


def _share(one: Share, sign: int = 1) -> str:
    lo, hi = sorted((sign * (one.share.lo or 0.0), sign * (one.share.hi or 0.0)))
    return f"{percent(sign * one.share.mid)} [{percent(lo)}, {percent(hi)}]"
