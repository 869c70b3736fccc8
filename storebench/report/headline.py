"""The question and the answer in one sentence: what the panel that speaks for the results says."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from storebench.report.cells import CellSummary, Panel, panels
from storebench.report.conclusions import Conclusion, Says
from storebench.report.decisions import Decision, Decisions, decide, rounds_to_tell
from storebench.report.factors import Share, shares
from storebench.report.intervals import Ratio
from storebench.report.labels import (
    MODELS,
    backend_label,
    caveats,
    dataset_label,
    number,
    percent,
    state_label,
    with_interval,
)
from storebench.report.main_panel import main_panel

QUESTION = "Does it matter how the training images lie on disk?"

_TOLD_SHARE = 0.05
"""Smaller shares of a difference are not worth a word."""


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


def headline(cells: Sequence[CellSummary], decisions: Decisions | None = None) -> Headline:
    """Return the answer that these cells give, by the page's `decisions`; without, by these cells' own."""
    made = decide(cells) if decisions is None else decisions
    found = panels(cells)
    panel = main_panel(found)
    if panel is None:
        return _nothing(cells)
    first = _of(panel, _where(panel), made)
    bare = _bare(found, panel)
    beside = _of(bare, _bare_words(bare), made) if bare is not None else None
    if beside is None or beside.ratio is None:
        return first
    return dataclasses.replace(
        first,
        answer=f"{first.answer} {beside.answer}",
        conclusions=(*first.conclusions, *beside.conclusions),
    )


def _nothing(cells: Sequence[CellSummary]) -> Headline:
    if not any(cell.usable for cell in cells):
        return Headline(answer="Nothing was measured: every cell failed.")
    return Headline(
        answer="Nothing can be concluded: these records do not show in which steps the requested cache state held."
    )


def _bare(found: Sequence[Panel], main: Panel) -> Panel | None:
    """Return the panel of the same samples and cache state in which nothing was computed, if it is another one."""
    if main.first.cell.compute == "none":
        return None
    cell = main.first.cell
    alike = [
        panel
        for panel in found
        if panel.first.dataset_key == main.first.dataset_key
        and (panel.first.cell.compute, panel.first.cell.cache) == ("none", cell.cache)
    ]
    return main_panel(alike)


def _bare_words(panel: Panel) -> str:
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
    work = drained if panel.first.cell.compute == "none" else ""
    return f"On this machine, {state_label(panel.speaker)}, {dataset_label(panel.first)}{work}{said}"


def _feeds(panel: Panel, name: str) -> str:
    cell = panel.first.cell
    verb = "load" if cell.compute == "none" else "feed"
    verb = verb if name.endswith("files") else f"{verb}s"
    if cell.compute == "none":
        return verb
    return f"{verb} {MODELS.get(cell.model, cell.model) if cell.compute == 'real' else 'an emulated accelerator'}"


def _sentence(
    panel: Panel, decision: Decision, where: str, decisions: Decisions
) -> tuple[str, tuple[Conclusion, ...]]:
    shown = decision if decision.ratio.mid >= 1 else decision.inverted()
    winner, loser, ratio = shown.cell, shown.base, shown.ratio
    names = backend_label(winner.backend), backend_label(loser.backend)
    times = f"{number(ratio.mid, 2)} times" + _ends(ratio)
    if shown.faster:
        because, parts = _because(loser, winner)
        said = Conclusion(says=Says.FASTER, subject=winner, object=loser, figure=ratio)
        feeds = _feeds(panel, names[0])
        return f"{where}: {names[0]} {feeds} {times} as fast as {names[1]}{because}.", (said, *parts)
    says = Says.EQUAL if shown.equal else Says.UNDECIDED
    conclusions = (Conclusion(says=says, subject=winner, object=loser, figure=ratio),)
    if shown.equal:
        text = f"{names[0]} and {names[1]} differ by less than 10% (ratio {times})"
    elif shown.reason:
        text = f"{names[0]} and {names[1]} cannot be ranked: {shown.reason}"
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


def _ends(ratio: Ratio) -> str:
    return "" if ratio.lo is None else f" [{number(ratio.lo, 2)}, {number(ratio.hi, 2)}]"


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
