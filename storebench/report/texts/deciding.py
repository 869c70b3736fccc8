"""What decides a ranking, in one sentence: the parts of the work, and the states of the store that change it."""

import math
from collections.abc import Iterator

from storebench.report.cells import CellSummary, state_key, work_key
from storebench.report.claims import Claim, ClaimKind
from storebench.report.factors import PARTS
from storebench.report.facts import Facts
from storebench.report.panels import Panel, fullest
from storebench.report.texts.labels import agreed, backend_label, percent, state_label, store_label, times
from storebench.report.texts.sentence import Sentence
from storebench.report.texts.verdicts import bounded

_MOST_STATES = 2
"""Other states of the store that are named; the tables have them all."""

_ALL = 1.005
"""A share up to this one reads as the whole difference, "100%", and not as more than that."""


def deciding(facts: Facts, claim: Claim | None) -> Sentence | None:
    """Return a sentence on the reasons for the leading comparison; None if no reason is proven.

    Parameters
    ----------
    facts
        Of the page: panels that differ from the claim's in the state of the store alone are looked at.
    claim
        The one that leads.
    """
    if claim is None or claim.object is None or not claim.decided:
        return None
    # The time that a replicate lacked when it was killed may be in any part of the work: shares are not even bounds.
    parts = () if claim.object.cut_off else facts.claims.shares(claim)
    words, claims = _parts(claim.object, parts), list(parts)
    for panel, other in sorted(_elsewhere(facts, claim), key=lambda pair: -_weight(claim, pair[1]))[
        :_MOST_STATES
    ]:
        words.append(_state(panel, claim, other))
        claims.append(other)
    return Sentence(text=f"What decides: {'; '.join(words)}.", claims=tuple(claims)) if words else None


def _parts(slow: CellSummary, parts: tuple[Claim, ...]) -> list[str]:
    """Return words for the parts of the work that explain a difference; empty if none is proven."""
    costs = [claim for claim in parts if claim.figure and claim.figure.mid > 0]
    gives = [claim for claim in parts if claim.figure and claim.figure.mid < 0]
    of = "difference in the producers' work" if slow.cell.workers else "difference"
    if gives and costs and costs[0].figure and costs[0].figure.mid > _ALL:
        added = [f"{costs[0].part} makes up {_bound(costs[0])}{_share(costs[0])}"]
        added += [f"{claim.part} {_bound(claim)}{_share(claim)}" for claim in costs[1:]]
        taken = [f"{_faster(claim, slow)} takes off {_bound(claim)}{_share(claim, -1)}" for claim in gives]
        return [f"of the {of}, {', '.join((*added, *taken[:-1]))}, and {taken[-1]}"]
    words = [_cost(claim, of) for claim in costs[:1]]
    rest = " of it" if costs and costs[0].figure and costs[0].figure.mid > _ALL else ""
    words += [
        f"{claim.part} {'costs ' if rest else ''}{_bound(claim)}{_share(claim)}{rest}" for claim in costs[1:]
    ]
    for claim in gives:
        whole = "difference" if words else of
        words.append(f"{_faster(claim, slow)} takes off {_bound(claim)}{_share(claim, -1)} of the {whole}")
    if gives and len(words) > 1:
        words[-1] = f"and {words[-1]}"
    return [", ".join(words)] if words else []


def _faster(claim: Claim, slow: CellSummary) -> str:
    """Return words for a part of the work in favour of the store that is slower as a whole."""
    return f"{claim.part}, which is faster with {backend_label(slow.backend)},"


def _cost(claim: Claim, of: str) -> str:
    """Return words for a part that is slower with the slow store: a share of the difference, or more than all of it."""
    assert claim.figure is not None
    if claim.figure.mid > _ALL:
        return f"{claim.part} alone would make the {of} {_bound(claim)}{times(claim.figure)} as large"
    return f"{claim.part} costs {_bound(claim)}{_share(claim)} of the {of}"


def _bound(claim: Claim) -> str:
    """Return "at most " or "at least " before a share if the rate of the slow store is only an upper bound; "" elsewhere.

    What memory served, the device would have served more slowly: fetching takes longer, and so does the whole. The share of
    fetching thereby approaches 1, and that of every other part approaches 0.
    """
    assert claim.figure is not None
    if not claim.subject.at_most:
        return ""
    return "at least " if claim.part == PARTS["fetch_s"] and 0 < claim.figure.mid < 1 else "at most "


def _share(claim: Claim, sign: int = 1) -> str:
    assert claim.figure is not None
    lo, hi = sorted((sign * (claim.figure.lo or 0.0), sign * (claim.figure.hi or 0.0)))
    return f"{percent(sign * claim.figure.mid)} [{percent(lo)}, {percent(hi)}]"


def _elsewhere(facts: Facts, claim: Claim) -> Iterator[tuple[Panel, Claim]]:
    """Yield the panels whose store is in another state and the claim there, where it is decided otherwise."""
    assert claim.object is not None
    work, state = work_key(claim.subject), state_key(claim.subject)
    for panel in fullest(facts.ordered):
        if work_key(panel.first) != work or state_key(panel.first) == state:
            continue
        sides = panel.of(claim.subject.backend), panel.of(claim.object.backend)
        if sides[0] is None or sides[1] is None:
            continue
        other = facts.claims.between(sides[0], sides[1])
        if other is not None and other.decided and _weight(claim, other) > 0:
            yield panel, other


def _weight(claim: Claim, other: Claim) -> float:
    """Return the change of a claim in another state: largest if it is reversed, 0 if it is the same."""
    if claim.kind is ClaimKind.EQUAL and other.kind is ClaimKind.EQUAL:
        return 0.0
    lead, there = _signed(claim, claim), _signed(claim, other)
    if lead is None or there is None:
        return 0.0
    if claim.kind is other.kind and there[0] <= lead[1] and lead[0] <= there[1]:
        return 0.0
    turned = claim.kind is other.kind is ClaimKind.FASTER and there[1] < 0
    return abs(there[0] + there[1] - lead[0] - lead[1]) + (1000.0 if turned else 0.0)


def _signed(claim: Claim, other: Claim) -> tuple[float, float] | None:
    """Return the logarithms of the ends of a ratio, above 0 where the winner of `claim` is the faster one."""
    figure = other.figure
    if figure is None or not figure.lo or not figure.hi:
        return None
    low, high = math.log(figure.lo), math.log(figure.hi)
    return (low, high) if other.subject.backend == claim.subject.backend else (-high, -low)


def _state(panel: Panel, claim: Claim, other: Claim) -> str:
    """Return words for the decision in another state of the store."""
    where = _state_words(panel.speaker, claim.subject)
    assert other.object is not None
    names = [store_label(side, (other.subject, other.object)) for side in (other.subject, other.object)]
    if other.kind is ClaimKind.EQUAL:
        return f"{where}, the two differ by less than 10% ({names[0]} over {names[1]}: {times(other.figure)})"
    verb = agreed(other.subject, "is", "are")
    return f"{where}, {names[0]} {verb} {bounded(other)}{times(other.figure)} as fast as {names[1]}"


def _state_words(there: CellSummary, here: CellSummary) -> str:
    """Return words for the difference in the store's state: "with a read-ahead of 8192 KiB", "warm"."""
    ahead = there.cell.readahead_kib
    words = "the machine's own read-ahead" if ahead is None else f"a read-ahead of {ahead} KiB"
    same = (there.cell.cache, there.cell.memory_bytes) == (here.cell.cache, here.cell.memory_bytes)
    if same:
        return f"with {words}"
    state = state_label(there)
    return state if ahead == here.cell.readahead_kib or ahead is None else f"{state} and with {words}"
