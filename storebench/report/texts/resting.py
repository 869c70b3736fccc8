"""The comparisons that the first screen and the advice of a page rest on, and how precisely they are known."""

from collections.abc import Iterable, Iterator

from storebench.report.claims import COMPARED, Claim
from storebench.report.facts import Facts
from storebench.report.intervals import Estimate, ratio
from storebench.report.texts.advice import recommend
from storebench.report.texts.headline import headline
from storebench.report.texts.labels import percent, setting_label, store_label, with_interval
from storebench.stats import half_width_frac
from storebench.units import number_of

NARROW_FRAC = 0.15
"""A ratio is called precise if the ends of its interval are at most so far from its middle."""


def told(facts: Facts) -> list[Claim]:
    """Return the claims of the first screen and of the advice, as far as records that validate support them."""
    advice = (one for part in facts.datasets.values() for one in recommend(part))
    return [*headline(facts).claims, *(claim for one in advice for claim in one.claims)]


def rested_on(claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims that compare two cells, each comparison once.

    Parameters
    ----------
    claims
        Those of the first screen and of the advice.
    """
    compared = {
        (claim.topic, frozenset((claim.subject.key, claim.object.key))): claim
        for claim in claims
        if claim.kind in COMPARED and claim.object is not None
    }
    return list(compared.values())


def precision_words(claims: Iterable[Claim]) -> str:
    """Return how many comparisons of the claims are known to within `NARROW_FRAC`; "" if nothing is compared."""
    compared = rested_on(claims)
    if not compared:
        return ""
    decided = sum(claim.decided for claim in compared)
    simultaneous, single = (
        sum(width is not None and width <= NARROW_FRAC for width in map(width_of, compared))
        for width_of in (_width, _single_width)
    )
    return (
        f"The first screen and the advice rest on {number_of(len(compared), 'comparison')}. {decided} of them"
        f" {'is' if decided == 1 else 'are'} decided. {simultaneous} {'has' if simultaneous == 1 else 'have'} a"
        f" simultaneous interval within ±{percent(NARROW_FRAC)}, and {single} a single 95% interval within it."
    )


def precision_lines(claims: Iterable[Claim]) -> Iterator[str]:
    """Yield one line for each comparison of the claims, with the half-widths of its simultaneous and of its single interval."""
    for claim in rested_on(claims):
        if claim.object is None:
            continue
        names = [store_label(cell, (claim.subject, claim.object)) for cell in (claim.subject, claim.object)]
        width, single = _width(claim), _single_width(claim)
        known = "no interval" if width is None else f"±{percent(width)}"
        known += "" if single is None else f" (single: ±{percent(single)})"
        yield f"{setting_label(claim.subject)}: {' over '.join(names)} {with_interval(claim.figure)}, {known}"


def _width(claim: Claim) -> float | None:
    """Return the distance from a ratio to the ends of its simultaneous interval, as a share; None without an interval."""
    return _half_width(claim.figure)


def _single_width(claim: Claim) -> float | None:
    """Return the same for the 95% interval of this comparison alone."""
    if claim.object is None:
        return None
    return _half_width(ratio(*(cell.values("samples_per_s") for cell in (claim.subject, claim.object))))


def _half_width(figure: Estimate | None) -> float | None:
    if figure is None or figure.lo is None or figure.hi is None:
        return None
    return half_width_frac(figure.lo, figure.hi)
