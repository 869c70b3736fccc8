"""Advice on which store to use; each piece puts claims of the page into words, by a named rule."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storebench.report.cells import CellSummary, Panel, ceiling_key
from storebench.report.claims import Claim, Claims, Kind, leading
from storebench.report.decisions import FED_FRAC, Topic, siblings
from storebench.report.facts import Facts
from storebench.report.texts.headline import asked_pairs, more_rounds
from storebench.report.texts.labels import (
    agreed,
    backend_label,
    dataset_label,
    panel_label,
    percent,
    setting_label,
    size,
    state_label,
    store_label,
    with_interval,
)
from storebench.report.texts.verdicts import doubt_words, limit_sentence
from storebench.report.verdict import Bound, mending_reader
from storebench.settings.words import ComputeKind
from storebench.stats import PRACTICAL_FRAC

RULES = {
    "R0 cannot be told yet": "some pair of stores that could be the fastest is neither proven different nor proven equal; the rounds are those that would tell a difference of 1.25 with a probability of 80%",
    "R1 it does not matter": "every two stores are proven to differ by less than 10%, or the loop is proven to wait less than 10% of its time with each",
    "R2 fastest": "the store that is proven faster than every other; stores that lose pixels stand apart",
    "R3 equals": "of the stores that are proven to be within 10% of the fastest, the smallest on disk",
    "R4 break-even": "seconds of the measured conversion over the seconds per epoch that it is proven to save, where the interval spans less than a factor of 3 and training is not proven to gain nothing",
    "R5 bottleneck": "the verdict of the advised cell names the part to work on next",
    "R6 workers": "the advised backend with more workers against the fewest, where that is decided",
    "R7 keep it warm": "warm rate over cold rate of the advised backend, the same setting, where warm is proven faster",
    "R8 read amplification": "the device is proven to have delivered more than twice the bytes that were asked for",
    "R9 another setting": "where the first setting decides nothing: the first comparison that another one decides",
}

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
    claims
        What it asserts, in the order of the text.
    """

    rule: str
    text: str
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """The store to use in a panel (None where it cannot be told), and the advice that says so."""

    advice: Advice
    cell: CellSummary | None = None

    @property
    def indifferent(self) -> bool:
        """Whether it does not matter which store is used."""
        return self.advice.rule.startswith("R1")


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
    chosen = _choice(panel, facts.claims)
    reading = list(_amplified(panel, facts.claims))
    if chosen.cell is None:
        decided = any(one.decided for one in chosen.advice.claims)
        return [*([] if decided else _elsewhere(facts)), chosen.advice, *reading]
    rules = [_bottleneck] if chosen.indifferent else [_break_even, _bottleneck, _workers, _warm]
    return [chosen.advice, *(one for rule in rules for one in rule(facts, chosen.cell)), *reading]


def _choice(panel: Panel, claims: Claims) -> _Choice:
    """Return the store to use in a panel: among those that lose no pixels, where there are two of them."""
    where = f"{dataset_label(panel.first)}, {panel_label(panel)}"
    exact = [cell for cell in panel.stored if not cell.lossy]
    stored = exact if len(exact) > 1 else list(panel.stored)
    known = {
        frozenset((one.key, other.key)): claims.between(one, other)
        for one, other in itertools.combinations(stored, 2)
    }
    found = [one for one in known.values() if one is not None]
    if len(found) == len(known):
        fed = claims.each(Kind.FED, stored)
        if len(fed) == len(stored):
            return _indifferent(where, panel, stored, fed, claims)
        if all(one.kind is Kind.EQUAL for one in found):
            return _indifferent(where, panel, stored, found, claims)
    for best in stored:
        rivals = [known[frozenset((best.key, other.key))] for other in stored if other is not best]
        sure = [one for one in rivals if one is not None and _is_unbeaten(best, one)]
        if len(sure) == len(stored) - 1:
            return _decided(where, panel, stored, best, sure, claims)
    return _Choice(advice=_undecided(where, stored, found, claims))


def _is_unbeaten(best: CellSummary, one: Claim) -> bool:
    return one.kind is Kind.EQUAL or (one.kind is Kind.FASTER and one.subject is best)


def _indifferent(
    where: str, panel: Panel, stored: Sequence[CellSummary], proof: Sequence[Claim], claims: Claims
) -> _Choice:
    """Return that it does not matter, because of every loop that is fed or every two stores that are equal."""
    smallest = _smallest(stored)
    kind = "store" if len(stored) == len(panel.stored) else "lossless store"
    if proof[0].kind is Kind.FED:
        why = f"the loop waits less than {percent(FED_FRAC)} of its time with every {kind}"
    else:
        why = f"every two {kind}s are proven to differ by less than {percent(PRACTICAL_FRAC)}"
    name = store_label(smallest, stored)
    text = f"{where}: it does not matter here: {why}. Choose by size or by what your tools read; {name} is the smallest on disk.{_lossy_among(stored)}"
    faster, said = ("", ()) if proof[0].kind is Kind.FED else _lossy_gain(panel, stored, smallest, claims)
    advice = Advice(rule="R1 it does not matter", text=text + faster, claims=(*proof, *said))
    return _Choice(advice=advice, cell=smallest)


def _lossy_among(stored: Sequence[CellSummary]) -> str:
    """Return which of some stores lose pixels, as a sentence; "" where all do or none does."""
    names = ", ".join(backend_label(cell.backend) for cell in stored if cell.lossy)
    return f" Lossy among them: {names}." if names and not all(cell.lossy for cell in stored) else ""


def _decided(
    where: str,
    panel: Panel,
    stored: Sequence[CellSummary],
    best: CellSummary,
    sure: Sequence[Claim],
    claims: Claims,
) -> _Choice:
    """Return the advice for a store that is proven faster than, or equal to, every other."""
    equals = [one for one in sure if one.kind is Kind.EQUAL]
    if equals:
        alike = [best, *(_other(one, best) for one in equals)]
        chosen, names = _smallest(alike), ", ".join(store_label(one, stored) for one in alike)
        rule = "R3 equals"
        text = f"{where}: {names} are proven to differ by less than {percent(PRACTICAL_FRAC)} from the first; of these {store_label(chosen, stored)} is the smallest on disk ({size(chosen.fact('bytes_on_disk'))}). Use it."
    else:
        least = min(sure, key=lambda one: one.figure.mid if one.figure else 0.0)
        chosen, rule = best, "R2 fastest"
        text = f"{where}: use {store_label(best, stored)}. It is {with_interval(least.figure)} times as fast as the next, {store_label(_other(least, best), stored)}."
    if chosen.lossy:
        text += " Its pixels are not those of the originals: the codec loses some."
    faster, said = _lossy_gain(panel, stored, chosen, claims)
    return _Choice(advice=Advice(rule=rule, text=text + faster, claims=(*sure, *said)), cell=chosen)


def _other(one: Claim, cell: CellSummary) -> CellSummary:
    """Return the side of a comparison that is not `cell`."""
    assert one.object is not None
    return one.object if one.subject is cell else one.subject


def _lossy_gain(
    panel: Panel, stored: Sequence[CellSummary], chosen: CellSummary, claims: Claims
) -> tuple[str, tuple[Claim, ...]]:
    """Return how much faster a store that loses pixels is, in words and as claims; nothing where none is proven to be."""
    left = (claims.between(cell, chosen) for cell in panel.stored if cell not in stored)
    gains = [one for one in left if one is not None and one.kind is Kind.FASTER and one.object is chosen]
    if not gains:
        return "", ()
    most = max(gains, key=lambda one: one.figure.mid if one.figure else 0.0)
    sides = (most.subject, chosen)
    names = [store_label(cell, sides) for cell in sides]
    return (
        f" If losing pixels is acceptable: {names[0]}, {with_interval(most.figure)} times as fast as {names[1]}.",
        (most,),
    )


def _undecided(where: str, stored: Sequence[CellSummary], known: Sequence[Claim], claims: Claims) -> Advice:
    """Return which stores are proven slower than another, which could be the fastest, and how many rounds would tell."""
    losses = [one for one in known if one.kind is Kind.FASTER]
    beaten = {one.object.key for one in losses if one.object is not None}
    left = [cell for cell in stored if cell.key not in beaten] or list(stored)
    keys = {cell.key for cell in left}
    pairs = [one for one in known if one.object and {one.subject.key, one.object.key} <= keys]
    open_pairs = [one for one in pairs if one.kind is Kind.UNDECIDED]
    doubts = (one.decision.doubt for one in open_pairs if one.decision is not None)
    doubt = next((one for one in doubts if one), None)
    rounds = (
        more_rounds(claims.decisions, open_pairs)
        if open_pairs
        else "some of them never ran in the same round"
    )
    need = doubt_words(doubt) or rounds
    slower = [store_label(cell, stored) for cell in stored if cell.key not in keys]
    names = ", ".join(store_label(cell, stored) for cell in left)
    out = f"{', '.join(slower)}: proven slower than another. Which" if slower else "which"
    said = [one for one in losses if one.object is not None and one.object.key not in keys]
    return Advice(
        rule="R0 cannot be told yet",
        text=f"{where}: {out} store is the fastest cannot be told yet of {names}: {need}.",
        claims=(*said, *open_pairs),
    )


def _elsewhere(facts: Facts) -> list[Advice]:
    """Return the first comparison that another setting of the dataset decides; nothing where none does."""
    for panel in facts.ordered:
        one = leading(facts.claims.between(*pair) for pair in asked_pairs(panel))
        if one is None or one.object is None or not one.decided:
            continue
        names = [store_label(cell, (one.subject, one.object)) for cell in (one.subject, one.object)]
        where = f"{dataset_label(panel.first)}, {panel_label(panel, facts.varying)}"
        said = f"{names[0]}: {with_interval(one.figure)} times as fast as {names[1]}"
        if one.kind is Kind.EQUAL:
            said = f"{names[0]} and {names[1]} are proven to differ by less than {percent(PRACTICAL_FRAC)}"
        return [Advice(rule="R9 another setting", text=f"{where}: {said}.", claims=(one,))]
    return []


def _smallest(cells: Sequence[CellSummary]) -> CellSummary:
    return min(cells, key=lambda cell: float(cell.fact("bytes_on_disk") or float("inf")))


def _break_even(facts: Facts, chosen: CellSummary) -> Iterator[Advice]:
    for one in facts.paying:
        said = facts.claims.on(Kind.PAYS, one.cell)
        if one.cell.cell.backend != chosen.cell.backend or said is None:
            continue
        names = [store_label(cell, (one.baseline, one.cell)) for cell in (one.baseline, one.cell)]
        alike = (
            ceiling_key(one.cell) == ceiling_key(chosen) and one.cell.cell.compute.kind is ComputeKind.REAL
        )
        where = state_label(one.cell) if alike else setting_label(one.cell)
        text = f"Converting {names[0]} into {names[1]} took {with_interval(one.convert_s)} s and saves {with_interval(one.saved_s)} s per epoch ({where}): it pays after {with_interval(said.figure)} epochs."
        yield Advice(rule="R4 break-even", text=text, claims=(said,))


def _bottleneck(facts: Facts, chosen: CellSummary) -> Iterator[Advice]:
    verdict = facts.verdicts.get(chosen.key)
    if verdict is None:
        return
    reader = mending_reader(chosen) if verdict.bound in (Bound.LATENCY, Bound.FETCH) else ""
    reader = reader if reader and not _is_no_faster(facts, chosen, reader) else ""
    helps = _NEXT_STEP[verdict.bound] + (f" ({backend_label(reader)})" if reader else "")
    are = agreed(chosen, "is", "are")
    text = f"{backend_label(chosen.backend)} {are} {limit_sentence(verdict)}. What would help: {helps}."
    yield Advice(rule="R5 bottleneck", text=text, claims=limits(facts.claims, chosen))


def limits(claims: Claims, cell: CellSummary) -> tuple[Claim, ...]:
    """Return what the sentence on a cell's limit asserts."""
    return tuple(
        one for kind in (Kind.LIMITED, Kind.CONTENTION) if (one := claims.on(kind, cell)) is not None
    )


def _is_no_faster(facts: Facts, chosen: CellSummary, reader: str) -> bool:
    """Whether a reader was measured beside the chosen cell without being proven faster."""
    other = facts.main.of(reader) if facts.main else None
    found = facts.claims.between(chosen, other) if other is not None else None
    return found is not None and not (found.kind is Kind.FASTER and found.object is chosen)


def _workers(facts: Facts, chosen: CellSummary) -> Iterator[Advice]:
    counts = sorted(siblings(chosen, facts.ordered, "workers"), key=lambda cell: cell.cell.workers)
    if len(counts) < 2:
        return
    fewest = counts[0]
    against = [facts.claims.between(cell, fewest, Topic.WORKERS) for cell in counts[1:]]
    known = [one for one in against if one is not None]
    better = [one for one in known if one.kind is Kind.FASTER and one.object is fewest]
    name = backend_label(chosen.backend)
    if better:
        best = max(better, key=lambda one: one.figure.mid if one.figure else 0.0)
        text = f"{name}: with {best.subject.cell.workers} workers it is {with_interval(best.figure)} times as fast as with {fewest.cell.workers}."
    elif known and len(known) == len(counts) - 1 and all(one.kind is Kind.EQUAL for one in known):
        text = f"{name}: more workers than {fewest.cell.workers} change the rate by less than {percent(PRACTICAL_FRAC)}."
    else:
        return
    yield Advice(rule="R6 workers", text=text, claims=tuple(better or known))


def _warm(facts: Facts, chosen: CellSummary) -> Iterator[Advice]:
    states = {cell.state: cell for cell in siblings(chosen, facts.ordered, "cache")}
    cold, warm = states.get("cold"), states.get("warm")
    one = facts.claims.between(warm, cold, Topic.CACHE) if cold and warm else None
    if one is not None and one.kind is Kind.FASTER and one.subject is warm:
        text = f"Memory that holds the whole store makes {backend_label(chosen.backend)} {with_interval(one.figure)} times as fast as reading it cold."
        yield Advice(rule="R7 keep it warm", text=text, claims=(one,))


def _amplified(panel: Panel, claims: Claims) -> Iterator[Advice]:
    for one in claims.each(Kind.AMPLIFIED, panel.stored):
        if one.decided and one.subject.fact("cache_applies_to") == "epoch":
            text = f"{backend_label(one.subject.backend)}: over the whole epoch the device delivered {with_interval(one.figure)} times the bytes that were asked for."
            yield Advice(rule="R8 read amplification", text=text, claims=(one,))
