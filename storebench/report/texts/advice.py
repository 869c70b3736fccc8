"""Advice on which store to use; each piece puts claims of the page into words, by a named rule."""

from collections.abc import Iterator

from storebench.report.cells import CellSummary, ceiling_key, state_key, work_key
from storebench.report.claims import Claim, ClaimKind, Claims, leading
from storebench.report.decisions import Topic, siblings
from storebench.report.facts import Facts
from storebench.report.panels import Panel, fullest
from storebench.report.texts.choosing import Advice, Choice, choice_of
from storebench.report.texts.headline import asked_pairs
from storebench.report.texts.labels import (
    agreed,
    backend_label,
    dataset_label,
    panel_label,
    percent,
    setting_label,
    state_label,
    store_label,
    with_interval,
)
from storebench.report.texts.verdicts import bounded, limit_sentence
from storebench.report.verdict import PLANNED, Bound, planned_reader
from storebench.settings.words import ComputeKind
from storebench.stats import PRACTICAL_FRAC

RULES = {
    "R0 cannot be told yet": "two stores that could be the fastest are neither proven different nor proven equal; the given rounds would show a difference of 1.25 times, if there is one, with a probability of 80%",
    "R1 it does not matter": "every two stores are proven to differ by less than 10%, or the loop is proven to wait less than 10% of its time with each",
    "R2 fastest": "the store that is proven faster than every other; lossy stores are listed separately",
    "R3 equals": "of the stores that are proven to be within 10% of the fastest, the smallest on disk",
    "R4 break-even": "seconds of the measured conversion over the seconds per epoch that it is proven to save, if the interval spans less than a factor of 3 and training is not proven to gain nothing",
    "R5 bottleneck": "the verdict of the advised cell names the part to work on next",
    "R6 workers": "the advised backend with more workers, compared with the fewest, if that is decided",
    "R7 keep it warm": "warm rate over that of an epoch from a cold start of the advised backend, if warm is proven faster",
    "R8 read amplification": "the device is proven to have delivered more than twice the requested bytes",
    "R9 another setting": "if the first setting decides nothing: the first comparison that another setting decides",
}

_NEXT_STEP = {
    Bound.COMPUTE: "a faster accelerator or a smaller network",
    Bound.COPY: "smaller batches, or pixels that the GPU converts to floats itself",
    Bound.CONTENTION: "fewer producers, or a reader that uses less processor time, which leaves the cores to the network",
    Bound.STORAGE: "fewer bytes (an encoded codec), a faster device or enough memory to keep the store warm",
    Bound.LATENCY: "a reader that keeps several requests in flight",
    Bound.FETCH: 'a measured rate of the device that the cell does not exceed (compute = "none"), which distinguishes a slow device from a reader that waits for it',
    Bound.READER: "a leaner reader or larger batches, because the data is already in memory",
    Bound.DECODE: "raw pixels, or more workers if there are idle cores",
    Bound.PREP: "cheaper augmentation or more workers",
    Bound.HANDOFF: "fewer workers, larger batches or another loader",
    Bound.BALANCED: "several of its parts at once",
}


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
    chosen = choice_of(panel, facts.claims)
    reading = list(_amplified(panel, facts.claims))
    states = list(_other_states(facts, panel, chosen))
    if chosen.cell is None:
        decided = any(claim.decided for claim in chosen.advice.claims)
        first = [chosen.advice, *states] if decided else [*(states or _elsewhere(facts)), chosen.advice]
        return [*first, *reading]
    rules = [_bottleneck] if chosen.indifferent else [_break_even, _bottleneck, _workers, _warm]
    more = [advice for rule in rules for advice in rule(facts, chosen.cell)]
    return [chosen.advice, *states, *more, *reading]


def _other_states(facts: Facts, panel: Panel, chosen: Choice) -> Iterator[Advice]:
    """Yield the choice in other states of the stores, the same work, where it is another one than `chosen`."""
    work, state = work_key(panel.first), state_key(panel.first)
    for other in fullest(facts.ordered):
        if state_key(other.first) == state or work_key(other.first) != work or len(other.stored) < 2:
            continue
        choice = choice_of(other, facts.claims, facts.varying)
        if choice.cell is None or choice.indifferent:
            continue
        if chosen.cell is None or choice.cell.backend != chosen.cell.backend:
            yield choice.advice


def _elsewhere(facts: Facts) -> list[Advice]:
    """Return the first comparison that another setting decides, and the choice in other states; nothing if none does."""
    for panel in facts.ordered:
        claim = leading(facts.claims.between(*pair) for pair in asked_pairs(panel))
        if claim is None or claim.object is None or not claim.decided:
            continue
        names = [store_label(cell, (claim.subject, claim.object)) for cell in (claim.subject, claim.object)]
        where = f"{dataset_label(panel.first)}, {panel_label(panel, facts.varying)}"
        comparison = f"{names[0]}: {bounded(claim)}{with_interval(claim.figure)} times as fast as {names[1]}"
        if claim.kind is ClaimKind.EQUAL:
            comparison = (
                f"{names[0]} and {names[1]} are proven to differ by less than {percent(PRACTICAL_FRAC)}"
            )
        first = Advice(rule="R9 another setting", text=f"{where}: {comparison}.", claims=(claim,))
        return [first, *_other_states(facts, panel, choice_of(panel, facts.claims))]
    return []


def _break_even(facts: Facts, chosen: CellSummary) -> Iterator[Advice]:
    for even in facts.paying:
        claim = facts.claims.on(ClaimKind.PAYS, even.cell)
        if even.cell.cell.backend != chosen.cell.backend or claim is None:
            continue
        names = [store_label(cell, (even.baseline, even.cell)) for cell in (even.baseline, even.cell)]
        alike = (
            ceiling_key(even.cell) == ceiling_key(chosen) and even.cell.cell.compute.kind is ComputeKind.REAL
        )
        where = state_label(even.cell) if alike else setting_label(even.cell)
        text = f"Converting {names[0]} into {names[1]} took {with_interval(even.convert_s)} s and saves {with_interval(even.saved_s)} s per epoch ({where}): it pays after {with_interval(claim.figure)} epochs."
        yield Advice(rule="R4 break-even", text=text, claims=(claim,))


def _bottleneck(facts: Facts, chosen: CellSummary) -> Iterator[Advice]:
    verdict = facts.verdicts.get(chosen.key)
    if verdict is None:
        return
    waits = verdict.bound in (Bound.LATENCY, Bound.FETCH)
    helps = _NEXT_STEP[verdict.bound] + (_reader_words(facts, chosen) if waits else "")
    are = agreed(chosen, "is", "are")
    text = f"{backend_label(chosen.backend)} {are} {limit_sentence(verdict)}. What would help: {helps}."
    yield Advice(rule="R5 bottleneck", text=text, claims=limits(facts.claims, chosen))


def _reader_words(facts: Facts, chosen: CellSummary) -> str:
    """Name the reader of the chosen store that keeps several requests in flight, or return "" if its format has none."""
    reader = planned_reader(chosen)
    if not reader:
        own = PLANNED.get(chosen.cell.backend.format) == chosen.cell.backend.reader
        return f" ({backend_label(chosen.backend)} does so already: more of them)" if own else ""
    if _is_no_faster(facts, chosen, reader):
        return f" ({backend_label(reader)} does so, but was measured here and is not proven faster)"
    return f" ({backend_label(reader)})"


def limits(claims: Claims, cell: CellSummary) -> tuple[Claim, ...]:
    """Return the claims of the sentence on a cell's limit."""
    return tuple(
        claim
        for kind in (ClaimKind.LIMITED, ClaimKind.CONTENTION)
        if (claim := claims.on(kind, cell)) is not None
    )


def _is_no_faster(facts: Facts, chosen: CellSummary, reader: str) -> bool:
    """Whether a reader was measured beside the chosen cell without being proven faster."""
    other = facts.main.of(reader) if facts.main else None
    claim = facts.claims.between(chosen, other) if other is not None else None
    return claim is not None and not (claim.kind is ClaimKind.FASTER and claim.object is chosen)


def _workers(facts: Facts, chosen: CellSummary) -> Iterator[Advice]:
    counts = sorted(siblings(chosen, facts.ordered, "workers"), key=lambda cell: cell.cell.workers)
    if len(counts) < 2:
        return
    fewest = counts[0]
    against = [facts.claims.between(cell, fewest, Topic.WORKERS) for cell in counts[1:]]
    known = [claim for claim in against if claim is not None]
    better = [claim for claim in known if claim.kind is ClaimKind.FASTER and claim.object is fewest]
    name = backend_label(chosen.backend)
    if better:
        best = max(better, key=lambda claim: claim.figure.mid if claim.figure else 0.0)
        text = f"{name}: with {best.subject.cell.workers} workers it is {bounded(best)}{with_interval(best.figure)} times as fast as with {fewest.cell.workers}."
    elif known and len(known) == len(counts) - 1 and all(claim.kind is ClaimKind.EQUAL for claim in known):
        text = f"{name}: more workers than {fewest.cell.workers} change the rate by less than {percent(PRACTICAL_FRAC)}."
    else:
        return
    yield Advice(rule="R6 workers", text=text, claims=tuple(better or known))


def _warm(facts: Facts, chosen: CellSummary) -> Iterator[Advice]:
    states = {cell.state: cell for cell in siblings(chosen, facts.ordered, "cache")}
    cold, warm = states.get("cold"), states.get("warm")
    faster = facts.claims.between(warm, cold, Topic.CACHE) if cold and warm else None
    if faster is not None and faster.kind is ClaimKind.FASTER and faster.subject is warm:
        text = f"Memory that holds the entire store makes {backend_label(chosen.backend)} {bounded(faster)}{with_interval(faster.figure)} times as fast as in an epoch from a cold start."
        yield Advice(rule="R7 keep it warm", text=text, claims=(faster,))


def _amplified(panel: Panel, claims: Claims) -> Iterator[Advice]:
    for claim in claims.each(ClaimKind.AMPLIFIED, panel.stored):
        if claim.decided and claim.subject.fact("cache_applies_to") == "epoch":
            text = f"{backend_label(claim.subject.backend)}: over the entire epoch, the device delivered {with_interval(claim.figure)} times the requested bytes."
            yield Advice(rule="R8 read amplification", text=text, claims=(claim,))
