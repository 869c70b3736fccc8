"""Advice on which store to use; each piece follows from the page's decisions by a named rule."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storebench.report.cells import CellSummary, Panel
from storebench.report.decisions import Decision, Decisions, Topic, siblings
from storebench.report.facts import Facts
from storebench.report.intervals import Ratio
from storebench.report.texts.conclusions import Conclusion, Says
from storebench.report.texts.headline import more_rounds
from storebench.report.texts.labels import (
    backend_label,
    dataset_label,
    panel_label,
    percent,
    size,
    state_label,
    with_interval,
)
from storebench.report.texts.verdicts import doubt_words, limit_sentence
from storebench.report.verdict import BOUND_FRAC, Bound, mending_reader
from storebench.stats import PRACTICAL_FRAC

RULES = {
    "R0 cannot be told yet": "some pair of stores that could be the fastest is neither proven different nor proven equal; the rounds are those that would tell a difference of 1.25 with a probability of 80%",
    "R1 it does not matter": "every two stores are proven to differ by less than 10%, or the loop is proven to wait less than 10% of its time with each",
    "R2 fastest": "the store that is proven faster than every other",
    "R3 equals": "of the stores that are proven to be within 10% of the fastest, the smallest on disk",
    "R4 break-even": "seconds of the measured conversion over the seconds per epoch that it is proven to save",
    "R5 bottleneck": "the verdict of the advised cell names the part to work on next",
    "R6 workers": "the advised backend with more workers against the fewest, where that is decided",
    "R7 keep it warm": "warm rate over cold rate of the advised backend, the same setting, where warm is proven faster",
    "R8 read amplification": "the device is proven to have delivered more than twice the bytes that were asked for",
}
AMPLIFIED = 2.0

_NEXT_STEP = {
    Bound.COMPUTE: "a faster accelerator or a smaller network",
    Bound.CONTENTION: "fewer producers or a reader that takes less of the processor, so that the network has its cores back",
    Bound.STORAGE: "fewer bytes (an encoded codec), a faster device or enough memory to keep the store warm",
    Bound.LATENCY: "a reader that keeps several requests in flight",
    Bound.FETCH: 'measuring the device beside it (compute = "none"), which tells a slow device from a reader that waits for it',
    Bound.READER: "a leaner reader or larger batches: the data is in memory already",
    Bound.DECODE: "raw pixels, or more workers if there are idle cores",
    Bound.PREP: "cheaper augmentation or more workers",
    Bound.HANDOVER: "fewer workers, larger batches or another loader",
}


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One recommendation.

    Attributes
    ----------
    rule
        Key of `RULES`.
    text
        The advice with its figures.
    conclusions
        What it asserts.
    """

    rule: str
    text: str
    conclusions: tuple[Conclusion, ...] = ()


def recommend(facts: Facts) -> list[Advice]:
    """Return the advice for one dataset on one machine.

    Parameters
    ----------
    facts
        Of all cells of one dataset on one machine whose records validate.
    """
    panel = facts.main
    if panel is None or len(panel.stored) < 2:
        return []
    chosen, advice = _choice(panel, facts.decisions)
    if chosen is None:
        return [*advice, *_amplified(panel, facts.decisions)]
    rest = (
        _break_even(facts, chosen),
        _bottleneck(facts, chosen),
        _workers(facts, chosen),
        _warm(facts, chosen),
    )
    return [*advice, *(one for rule in rest for one in rule), *_amplified(panel, facts.decisions)]


def _choice(panel: Panel, decisions: Decisions) -> tuple[CellSummary | None, list[Advice]]:
    """Return the store to use in a panel (None where it cannot be told), and why."""
    where = f"{dataset_label(panel.first)}, {panel_label(panel)}"
    stored = panel.stored
    against = {
        (one.key, other.key): decisions.between(one, other)
        for one, other in itertools.permutations(stored, 2)
    }
    known = [one for one in against.values() if one is not None]
    if len(known) == len(against):
        if all(decisions.fed(cell) for cell in stored):
            return _smallest(stored), [_fed(where, stored)]
        if all(one.equal for one in known):
            return _smallest(stored), [_all_equal(where, stored, known)]
    for best in stored:
        rivals = [against[best.key, other.key] for other in stored if other is not best]
        sure = [one for one in rivals if one is not None and (one.faster or one.equal)]
        if len(sure) == len(stored) - 1:
            return _decided(where, best, sure)
    return None, [_undecided(where, stored, known, decisions)]


def _fed(where: str, stored: Sequence[CellSummary]) -> Advice:
    return Advice(
        rule="R1 it does not matter",
        text=f"{where}: it does not matter here: the loop waits less than {percent(BOUND_FRAC)} of its time with every store. {_by_size(stored)}",
        conclusions=tuple(Conclusion(says=Says.FED, subject=cell) for cell in stored),
    )


def _all_equal(where: str, stored: Sequence[CellSummary], known: Sequence[Decision]) -> Advice:
    return Advice(
        rule="R1 it does not matter",
        text=f"{where}: it does not matter here: every two stores are proven to differ by less than {percent(PRACTICAL_FRAC)}. {_by_size(stored)}",
        conclusions=tuple(_concluded(one) for one in known),
    )


def _by_size(stored: Sequence[CellSummary]) -> str:
    name = backend_label(_smallest(stored).backend)
    return f"Choose by size or by what your tools read; {name} is the smallest on disk."


def _concluded(one: Decision) -> Conclusion:
    says = Says.EQUAL if one.equal else Says.FASTER if one.faster else Says.UNDECIDED
    return Conclusion(says=says, subject=one.cell, object=one.base, figure=one.ratio)


def _decided(where: str, best: CellSummary, sure: Sequence[Decision]) -> tuple[CellSummary, list[Advice]]:
    """Return the advice for a store that is proven faster than, or equal to, every other."""
    equals = [one for one in sure if one.equal]
    conclusions = tuple(_concluded(one) for one in sure)
    if equals:
        chosen = _smallest([best, *(one.base for one in equals)])
        names = ", ".join(backend_label(one.backend) for one in (best, *(two.base for two in equals)))
        text = f"{where}: {names} are proven to differ by less than {percent(PRACTICAL_FRAC)} from the first; of these {backend_label(chosen.backend)} is the smallest on disk ({size(chosen.fact('bytes_on_disk'))}). Use it.{_lossy(chosen)}"
        return chosen, [Advice(rule="R3 equals", text=text, conclusions=conclusions)]
    least = min(sure, key=lambda one: one.ratio.mid)
    text = f"{where}: use {backend_label(best.backend)}. It is {with_interval(least.ratio)} times as fast as the next, {backend_label(least.base.backend)}.{_lossy(best)}"
    return best, [Advice(rule="R2 fastest", text=text, conclusions=conclusions)]


def _lossy(cell: CellSummary) -> str:
    lossy = cell.fact("store_lossless") is False
    return " Its pixels are not those of the originals: the codec loses some." if lossy else ""


def _undecided(
    where: str, stored: Sequence[CellSummary], known: Sequence[Decision], decisions: Decisions
) -> Advice:
    """Return which stores could be the fastest, which are proven slower, and how many rounds would tell."""
    beaten = {one.base.key for one in known if one.faster and not one.equal}
    left = [cell for cell in stored if cell.key not in beaten] or list(stored)
    names = ", ".join(backend_label(cell.backend) for cell in left)
    keys = {cell.key for cell in left}
    open_pairs = [
        one
        for one in known
        if {one.cell.key, one.base.key} <= keys and not (one.faster or one.slower or one.equal)
    ]
    doubt = next((one.doubt for one in open_pairs if one.doubt), None)
    need = doubt_words(doubt) or more_rounds(decisions, open_pairs)
    slower = [backend_label(cell.backend) for cell in stored if cell.key in beaten and cell not in left]
    out = f" Proven slower than another: {', '.join(slower)}." if slower else ""
    losses = tuple(_concluded(one) for one in known if one.faster and one.base.key not in keys)
    return Advice(
        rule="R0 cannot be told yet",
        text=f"{where}: which store is the fastest cannot be told yet of {names}: {need}.{out}",
        conclusions=(*(_concluded(one) for one in open_pairs), *losses),
    )


def _smallest(cells: Sequence[CellSummary]) -> CellSummary:
    return min(cells, key=lambda cell: float(cell.fact("bytes_on_disk") or float("inf")))


def _break_even(facts: Facts, chosen: CellSummary) -> Iterator[Advice]:
    for one in facts.paying:
        if one.cell.backend != chosen.backend or one.epochs is None:
            continue
        name = backend_label(chosen.backend)
        text = f"Converting PNG files into {name} took {with_interval(one.convert_s)} s and saves {with_interval(one.saved_s)} s per epoch ({state_label(one.cell)}): it pays after {with_interval(one.epochs)} epochs."
        said = Conclusion(says=Says.PAYS, subject=one.cell, object=one.baseline, figure=one.epochs)
        yield Advice(rule="R4 break-even", text=text, conclusions=(said,))


def _bottleneck(facts: Facts, chosen: CellSummary) -> Iterator[Advice]:
    verdict = facts.verdicts.get(chosen.key)
    if verdict is not None:
        reader = mending_reader(chosen) if verdict.bound in (Bound.LATENCY, Bound.FETCH) else ""
        helps = _NEXT_STEP[verdict.bound] + (f" ({backend_label(reader)})" if reader else "")
        text = f"{backend_label(chosen.backend)} is {limit_sentence(verdict)}. What would help: {helps}."
        yield Advice(rule="R5 bottleneck", text=text)


def _workers(facts: Facts, chosen: CellSummary) -> Iterator[Advice]:
    counts = sorted(siblings(chosen, facts.ordered, "workers"), key=lambda cell: cell.cell.workers)
    if len(counts) < 2:
        return
    fewest = counts[0]
    against = [facts.decisions.between(cell, fewest, Topic.WORKERS) for cell in counts[1:]]
    known = [one for one in against if one is not None]
    better = [one for one in known if one.faster and not one.equal]
    name = backend_label(chosen.backend)
    if better:
        best = max(better, key=lambda one: one.ratio.mid)
        text = f"{name}: with {best.cell.cell.workers} workers it is {with_interval(best.ratio)} times as fast as with {fewest.cell.workers}."
    elif known and len(known) == len(counts) - 1 and all(one.equal for one in known):
        text = f"{name}: more workers than {fewest.cell.workers} change the rate by less than {percent(PRACTICAL_FRAC)}."
    else:
        return
    conclusions = tuple(_concluded(one) for one in (better or known))
    yield Advice(rule="R6 workers", text=text, conclusions=conclusions)


def _warm(facts: Facts, chosen: CellSummary) -> Iterator[Advice]:
    states = {cell.state: cell for cell in siblings(chosen, facts.ordered, "cache")}
    cold, warm = states.get("cold"), states.get("warm")
    one = facts.decisions.between(warm, cold, Topic.CACHE) if cold and warm else None
    if one is not None and one.faster:
        ratio: Ratio = one.ratio
        text = f"Memory that holds the whole store makes {backend_label(chosen.backend)} {with_interval(ratio)} times as fast as reading it cold."
        yield Advice(rule="R7 keep it warm", text=text, conclusions=(_concluded(one),))


def _amplified(panel: Panel, decisions: Decisions) -> Iterator[Advice]:
    for cell in panel.stored:
        if cell.fact("cache_applies_to") != "epoch":
            continue
        times = decisions.above(cell, "read_amplification", AMPLIFIED)
        if times is not None:
            text = f"{backend_label(cell.backend)}: over the whole epoch the device delivered {with_interval(times)} times the bytes that were asked for."
            said = Conclusion(says=Says.AMPLIFIED, subject=cell, figure=times)
            yield Advice(rule="R8 read amplification", text=text, conclusions=(said,))
