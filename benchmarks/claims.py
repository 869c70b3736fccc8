"""Claims about ratios of rates, and whether the rounds of a benchmark support them."""

from collections.abc import Sequence
from dataclasses import dataclass

from storebench.stats import Comparison, compare_family


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A ratio that is to be reported, and what is asked of it.

    Attributes
    ----------
    contender, baselines
        Rates per round, of the same rounds. Against several baselines a claim must hold for each of them.
    least
        The smallest ratio that is enough; None if there is no requirement.
    """

    words: str
    contender: Sequence[float]
    baselines: Sequence[Sequence[float]]
    least: float | None = None


def ratio_words(found: Comparison) -> str:
    """Return the ratio with its interval; "[-]" where one round shows no spread."""
    if found.ratio is None:
        return "no ratio"
    if found.low is None or found.high is None:
        return f"{found.ratio:.2f} [-]"
    return f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]"


def met(found: Comparison, least: float) -> str:
    """Return "met", "missed" or "undecided": the interval decides, never the ratio alone."""
    if found.low is None or found.high is None:
        return "undecided"
    if found.low >= least:
        return "met"
    return "missed" if found.high < least else "undecided"


def report(claims: Sequence[Claim]) -> list[str]:
    """Return a line per claim; the intervals of all claims hold together in 95 of 100 tables."""
    pairs = [(baseline, claim.contender) for claim in claims for baseline in claim.baselines]
    family = iter(compare_family(pairs))
    lines = []
    for claim in claims:
        found = [next(family) for _ in claim.baselines]
        lines.append(f"{claim.words}: {' and '.join(map(ratio_words, found))}{_asked(claim, found)}")
    return [*lines, f"({len(pairs)} ratios; their intervals hold together with 95%)"] if pairs else lines


def _asked(claim: Claim, found: Sequence[Comparison]) -> str:
    if claim.least is None:
        return ""
    each = {met(one, claim.least) for one in found}
    verdict = next(word for word in ("missed", "undecided", "met") if word in each)
    return f" (asked: {claim.least:g}) {verdict}"
