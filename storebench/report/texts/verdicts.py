"""Verdicts in words: what was decided about two cells, why it was not, and what limits a cell."""

from collections.abc import Sequence

from storebench.report.cells import FEWEST_TRAINING_STEPS, CellSummary
from storebench.report.claims import Claim, ClaimKind
from storebench.report.decisions import Decision, Decisions, Doubt, DoubtKind, rounds_to_tell
from storebench.report.texts.labels import backend_label, duration, number, percent, with_interval
from storebench.report.verdict import Bound, CellVerdict
from storebench.units import number_of

_PARTS = {
    Bound.READER: "fetch (warm)",
    **dict.fromkeys((Bound.STORAGE, Bound.LATENCY, Bound.FETCH), "fetch from the device"),
}
"""Limit -> the part of feeding the loop that it is in; any other limit is named after its part."""


WIDE = 10.0
"""An interval of a proven ratio whose ends differ by a larger factor tells the direction, but hardly the size."""


def decision_words(decision: Decision) -> str:
    """Return a decision in words: "faster", "slower", "no difference" (within 10%) or "cannot be told"."""
    if decision.faster or decision.slower:
        return str(decision.verdict)
    return "no difference" if decision.equal else "cannot be told"


def doubt_words(doubt: Doubt | None) -> str:
    """Return why an interval must not be used; "" if it may."""
    if doubt is None:
        return ""
    if doubt.kind is DoubtKind.FEW_STEPS:
        steps = number_of(doubt.cells[0].steps, "step")
        return f"training of {steps} ranks nothing, {FEWEST_TRAINING_STEPS} are needed"
    if doubt.kind is DoubtKind.UNSTEADY:
        unsteady = " and ".join(backend_label(cell.backend) for cell in doubt.cells)
        return f"not shown to be steady: {unsteady}"
    names = [backend_label(cell.backend) for cell in doubt.cells]
    if doubt.kind is DoubtKind.CUT_OFF:
        killed = number_of(sum(cell.cut_off for cell in doubt.cells), "replicate")
        return f"{killed} of {' and '.join(names)} ran out of time; the others are the faster ones"
    why = "because memory may have served a part of it"
    if len(names) == 1:
        return f"the rate of {names[0]} is only an upper bound, {why}; it could prove {names[0]} slower, not faster"
    return f"the rates of {names[0]} and {names[1]} are only upper bounds, {why}"


def bounded(claim: Claim) -> str:
    """Return "at least " if the rate of the slower side is an upper bound, so the ratio is a lower bound."""
    slower = claim.object if claim.kind is ClaimKind.FASTER else None
    return "at least " if slower is not None and slower.at_most else ""


def bound_words(cell: CellSummary, base: CellSummary) -> str:
    """Return words before the rate of a cell over that of a base where one of the two is an upper bound; "" elsewhere."""
    return {(True, False): "at most ", (False, True): "at least "}.get((cell.at_most, base.at_most), "")


def more_rounds(decisions: Decisions, undecided: Sequence[Claim]) -> str:
    """Return words for the number of further rounds that would detect a difference of 1.25 times."""
    return rounds_words(decisions, [one.decision for one in undecided if one.decision is not None])


def rounds_words(decisions: Decisions, asked: Sequence[Decision]) -> str:
    """Return words for the number of further rounds in which comparisons would detect a difference of 1.25 times."""
    if min((one.ratio.n for one in asked), default=0) < 2:
        return "one round shows no spread, so at least 3 are needed"
    rounds = rounds_to_tell(decisions, asked)
    if rounds is None:
        return "with this spread, 200 rounds would not detect a difference of 1.25 times"
    return f"{number_of(rounds, 'more round')} would detect a difference of 1.25 times"


def verdict_notes(decisions: Decisions, compared: Sequence[Decision]) -> list[str]:
    """Return what the ratios of a table lack: why a verdict cannot be told, and that of a proven one the size is uncertain."""
    named: dict[str, list[str]] = {}
    for one in compared:
        if lack := _lack(decisions, one):
            named.setdefault(lack, []).append(backend_label(one.cell.backend))
    return [f"{', '.join(names)}: {lack}." for lack, names in named.items()]


def _lack(decisions: Decisions, decision: Decision) -> str:
    """Return what a ratio lacks; "" if it is told."""
    ratio = decision.ratio
    if not (decision.faster or decision.slower or decision.equal):
        return f"cannot be told; {doubt_words(decision.doubt) or rounds_words(decisions, [decision])}"
    if ratio.lo and ratio.hi and ratio.hi > WIDE * ratio.lo:
        return (
            f"proven {decision.verdict}, but {number_of(ratio.n, 'round')} hardly tell by how much;"
            f" {rounds_words(decisions, [decision])}"
        )
    return ""


def limit_sentence(verdict: CellVerdict) -> str:
    """Return a line on the limit of a cell: the limit, the figure behind it, and the possible gain from fixing it."""
    figure = limit_figure(verdict)
    if verdict.bound is Bound.COMPUTE:
        gain = number(verdict.feed_gain)
        return f"{verdict.bound}: {figure}; without any loading it would be at most {gain} times as fast"
    lead = "slowed down by " if verdict.bound is Bound.CONTENTION else ""
    gain = number(verdict.gain)
    return f"{lead}{verdict.bound}: {figure}; without that it would be at most {gain} times as fast"


def limit_figure(verdict: CellVerdict) -> str:
    """Return the figure that a verdict rests on, in words."""
    waits = percent(verdict.wait_frac)
    if verdict.bound is Bound.COMPUTE:
        return f"compute is {percent(verdict.compute_frac)} of the loop's time and waiting {waits}"
    if verdict.bound is Bound.CONTENTION:
        times = with_interval(verdict.inflation.ratio if verdict.inflation else None)
        return f"with it, the network computes {times} times as long as with nothing to load, and the loop waits {waits} of its time"
    part = _PARTS.get(verdict.bound, str(verdict.bound).removesuffix("-bound"))
    figure = (
        f"the loop waits {waits} of its time, and {part} is {percent(verdict.feeding_frac)} of feeding it"
        f" ({duration(verdict.batch_s)} per batch)"
    )
    if verdict.arriving_frac is None:
        return figure
    return f"{figure}; bytes arrive at {percent(verdict.arriving_frac)} of the device's best rate"
