"""Which store to use under one setting: the one choice that both the headline and the advice tell."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from storebench.report.cells import CellSummary
from storebench.report.claims import Claim, ClaimKind, Claims
from storebench.report.decisions import FED_FRAC
from storebench.report.panels import Panel
from storebench.report.texts.labels import (
    agreed,
    backend_label,
    dataset_label,
    panel_label,
    percent,
    size,
    store_label,
    with_interval,
)
from storebench.report.texts.verdicts import bounded, doubt_words, more_rounds
from storebench.stats import PRACTICAL_FRAC


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
class Choice:
    """The store to use in a panel, and the advice that says so.

    Attributes
    ----------
    cell
        The store; None if it cannot be told.
    lead
        The claim that it is faster than the next one; None if it is chosen for another reason.
    """

    advice: Advice
    cell: CellSummary | None = None
    lead: Claim | None = None

    @property
    def indifferent(self) -> bool:
        """Whether it does not matter which store is used."""
        return self.advice.rule.startswith("R1")


def choice_of(panel: Panel, claims: Claims, varying: Collection[str] = ()) -> Choice:
    """Return the store to use in a panel: among those that lose no pixels, where there are two of them.

    `varying` names the fields of a setting that the advice names beside the usual ones.
    """
    where = f"{dataset_label(panel.first)}, {panel_label(panel, varying)}"
    exact = [cell for cell in panel.stored if not cell.lossy]
    stored = exact if len(exact) > 1 else list(panel.stored)
    known = {
        frozenset((first.key, second.key)): claims.between(first, second)
        for first, second in itertools.combinations(stored, 2)
    }
    proven = [claim for claim in known.values() if claim is not None]
    if len(proven) == len(known):
        fed = claims.each(ClaimKind.FED, stored)
        if len(fed) == len(stored):
            return _indifferent(where, panel, stored, fed, claims)
        if all(claim.kind is ClaimKind.EQUAL for claim in proven):
            return _indifferent(where, panel, stored, proven, claims)
    for best in stored:
        rivals = [known[frozenset((best.key, other.key))] for other in stored if other is not best]
        sure = [
            claim
            for claim in rivals
            if claim is not None and (claim.kind is ClaimKind.EQUAL or _beats(best, claim))
        ]
        if len(sure) == len(stored) - 1:
            return _decided(where, panel, stored, best, sure, claims)
    # Intervals hold all at once: who beats a store beats those that this one beats.
    losses = {
        claim.object.key: claim
        for claim in proven
        if claim.kind is ClaimKind.FASTER and claim.object is not None
    }
    unbeaten = [cell for cell in stored if cell.key not in losses]
    if len(unbeaten) == 1 and len(_below(unbeaten[0], proven)) == len(stored):
        (best,) = unbeaten
        direct = {
            claim.object.key: claim for claim in proven if _beats(best, claim) and claim.object is not None
        }
        return _decided(where, panel, stored, best, list((losses | direct).values()), claims)
    left = unbeaten if len(unbeaten) > 1 else stored
    return Choice(advice=_undecided(where, stored, left, proven, claims))


def _below(best: CellSummary, proven: Sequence[Claim]) -> set[tuple[str, str]]:
    """Return the keys of a store and of all that it beats, directly or because those beat others.

    Stores that beat each other in a circle, each pair in rounds of its own, are not among them.
    """
    below, size = {best.key}, 0
    losses = [claim for claim in proven if claim.kind is ClaimKind.FASTER and claim.object is not None]
    while len(below) > size:
        size = len(below)
        below |= {
            claim.object.key for claim in losses if claim.object is not None and claim.subject.key in below
        }
    return below


def _beats(best: CellSummary, claim: Claim) -> bool:
    return claim.kind is ClaimKind.FASTER and claim.subject is best


def _indifferent(
    where: str, panel: Panel, stored: Sequence[CellSummary], proof: Sequence[Claim], claims: Claims
) -> Choice:
    """Return the advice that the choice does not matter, because every loop is fed or all stores are equal."""
    smallest = _smallest(stored)
    kind = "store" if len(stored) == len(panel.stored) else "lossless store"
    if proof[0].kind is ClaimKind.FED:
        why = f"the loop waits less than {percent(FED_FRAC)} of its time with every {kind}"
    else:
        why = f"every two {kind}s are proven to differ by less than {percent(PRACTICAL_FRAC)}"
    name = store_label(smallest, stored)
    text = f"{where}: it does not matter here: {why}. Choose by size or by what your tools read; {name} {agreed(smallest, 'is', 'are')} the smallest on disk.{_lossy_among(stored)}"
    faster, faster_claims = (
        ("", ()) if proof[0].kind is ClaimKind.FED else _lossy_gain(panel, stored, smallest, claims)
    )
    advice = Advice(rule="R1 it does not matter", text=text + faster, claims=(*proof, *faster_claims))
    return Choice(advice=advice, cell=smallest)


def _lossy_among(stored: Sequence[CellSummary]) -> str:
    """Return a sentence that names the lossy ones of some stores, or "" if all or none are lossy."""
    names = ", ".join(backend_label(cell.backend) for cell in stored if cell.lossy)
    return f" Lossy among them: {names}." if names and not all(cell.lossy for cell in stored) else ""


def _decided(
    where: str,
    panel: Panel,
    stored: Sequence[CellSummary],
    best: CellSummary,
    sure: Sequence[Claim],
    claims: Claims,
) -> Choice:
    """Return the advice for a store that is proven faster than, or equal to, every other."""
    equals = [claim for claim in sure if claim.kind is ClaimKind.EQUAL]
    lead: Claim | None = None
    if equals:
        alike = [best, *(_other(claim, best) for claim in equals)]
        chosen, names = _smallest(alike), ", ".join(store_label(cell, stored) for cell in alike)
        rule = "R3 equals"
        text = f"{where}: {names} are proven to differ by less than {percent(PRACTICAL_FRAC)} from the first; {_why_chosen(chosen, alike, stored)}. Use it."
    else:
        direct = [claim for claim in sure if claim.subject is best]
        lead = min(direct, key=lambda claim: claim.figure.mid if claim.figure else 0.0)
        chosen, rule = best, "R2 fastest"
        next_one = store_label(_other(lead, best), stored)
        they = agreed(best, "It is", "They are")
        text = f"{where}: use {store_label(best, stored)}. {they} {bounded(lead)}{with_interval(lead.figure)} times as fast as the next, {next_one}."
    if chosen.lossy:
        text += " Its pixels are not those of the originals: the codec loses some."
    faster, lossy_claims = _lossy_gain(panel, stored, chosen, claims)
    advice = Advice(rule=rule, text=text + faster, claims=(*sure, *lossy_claims))
    return Choice(advice=advice, cell=chosen, lead=lead)


def _other(claim: Claim, cell: CellSummary) -> CellSummary:
    """Return the side of a comparison that is not `cell`."""
    assert claim.object is not None
    return claim.object if claim.subject is cell else claim.subject


def _lossy_gain(
    panel: Panel, stored: Sequence[CellSummary], chosen: CellSummary, claims: Claims
) -> tuple[str, tuple[Claim, ...]]:
    """Return the proven gain of a lossy store in words and as claims; empty if there is none."""
    left = (claims.between(cell, chosen) for cell in panel.stored if cell not in stored)
    gains = [
        claim
        for claim in left
        if claim is not None and claim.kind is ClaimKind.FASTER and claim.object is chosen
    ]
    if not gains:
        return "", ()
    most = max(gains, key=lambda claim: claim.figure.mid if claim.figure else 0.0)
    sides = (most.subject, chosen)
    names = [store_label(cell, sides) for cell in sides]
    return (
        f" If losing pixels is acceptable: {names[0]}, {bounded(most)}{with_interval(most.figure)} times as fast as {names[1]}.",
        (most,),
    )


def _undecided(
    where: str,
    stored: Sequence[CellSummary],
    left: Sequence[CellSummary],
    known: Sequence[Claim],
    claims: Claims,
) -> Advice:
    """Return the stores that are proven slower, those that are `left`, and the number of rounds that would decide."""
    keys = {cell.key for cell in left}
    losses = [claim for claim in known if claim.kind is ClaimKind.FASTER]
    pairs = [claim for claim in known if claim.object and {claim.subject.key, claim.object.key} <= keys]
    open_pairs = [claim for claim in pairs if claim.kind is ClaimKind.UNDECIDED]
    doubts = (claim.decision.doubt for claim in open_pairs if claim.decision is not None)
    doubt = next((doubt for doubt in doubts if doubt), None)
    rounds = (
        more_rounds(claims.decisions, open_pairs)
        if open_pairs
        else "some of them never ran in the same round"
    )
    need = doubt_words(doubt) or rounds
    slower = ", ".join(store_label(cell, stored) for cell in stored if cell.key not in keys)
    names = ", ".join(store_label(cell, stored) for cell in left)
    out = f"another store is proven faster than {slower}. Which" if slower else "which"
    beaten = [claim for claim in losses if claim.object is not None and claim.object.key not in keys]
    return Advice(
        rule="R0 cannot be told yet",
        text=f"{where}: {out} of {names} is the fastest cannot be told yet: {need}.",
        claims=(*beaten, *open_pairs),
    )


def _smallest(cells: Sequence[CellSummary]) -> CellSummary:
    """Return the store that takes the least space; of several readers of one store, the one with the fewest options."""
    return min(cells, key=lambda cell: (_space(cell), len(cell.cell.backend.options)))


def _space(cell: CellSummary) -> float:
    return float(cell.fact("bytes_on_disk") or float("inf"))


def _why_chosen(chosen: CellSummary, alike: Sequence[CellSummary], stored: Sequence[CellSummary]) -> str:
    """Return the reason to prefer a store to the others of about the same rate."""
    name, space = store_label(chosen, stored), size(chosen.fact("bytes_on_disk"))
    if any(_space(cell) != _space(chosen) for cell in alike):
        return f"of these {name} {agreed(chosen, 'is', 'are')} the smallest on disk ({space})"
    fewest = all(
        len(cell.cell.backend.options) > len(chosen.cell.backend.options)
        for cell in alike
        if cell is not chosen
    )
    return f"they take the same space on disk ({space}), and {name} {agreed(chosen, 'is', 'are')} {'the one with the fewest options' if fewest else 'the first'}"
