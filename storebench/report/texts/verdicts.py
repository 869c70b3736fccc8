"""Verdicts in words: what was decided about two cells, why it was not, and what limits a cell."""

from collections.abc import Sequence

from storebench.report.cells import FEWEST_TRAINING_STEPS, CellSummary
from storebench.report.claims import Claim, ClaimKind
from storebench.report.decisions import Decision, Decisions, Doubt, DoubtKind, rounds_to_tell
from storebench.report.texts.labels import backend_label, duration, number, percent, with_interval
from storebench.report.verdict import DEVICE_LIMIT_FRAC, Bound, CellVerdict
from storebench.units import number_of

_PARTS = {
    Bound.READER: "fetch (warm)",
    **dict.fromkeys((Bound.STORAGE, Bound.LATENCY, Bound.FETCH), "fetch from the device"),
}
"""Limit -> the part of feeding the loop that it is in; any other limit is named after its part."""


TWO_BOUNDS = "no ratio (both rates are only upper bounds)"
"""In place of a ratio of two rates that are only upper bounds: it is neither an estimate nor a bound."""

COLD_START = (
    'a cold start ranks no stores, because its rate depends on how much is read; cache = "limited" does'
)

WIDE = 10.0
"""An interval of a proven ratio whose ends differ by a larger factor tells the direction, but hardly the size."""


def decision_words(decision: Decision) -> str:
    """Return a decision in words: "faster", "slower", "no difference" (within 10%), "not ranked" or "cannot be told"."""
    if decision.faster or decision.slower:
        return str(decision.verdict)
    if decision.doubt is not None and decision.doubt.kind is DoubtKind.COLD:
        return "not ranked"
    return "no difference" if decision.equal else "cannot be told"


def doubt_words(doubt: Doubt | None) -> str:
    """Return why an interval must not be used; "" if it may."""
    if doubt is None:
        return ""
    if doubt.kind is DoubtKind.FEW_STEPS:
        steps = number_of(doubt.cells[0].steps, "step")
        return f"training of {steps} ranks nothing, {FEWEST_TRAINING_STEPS} are needed"
    if doubt.kind is DoubtKind.UNSTEADY:
        unsteady = [backend_label(cell.backend) for cell in doubt.cells]
        rate = "the rate of {} is" if len(unsteady) == 1 else "the rates of {} are"
        return f"{rate.format(' and '.join(unsteady))} not shown to be steady"
    if doubt.kind is DoubtKind.COLD:
        return COLD_START
    names = [backend_label(cell.backend) for cell in doubt.cells]
    killed = number_of(sum(cell.cut_off for cell in doubt.cells), "replicate")
    return f"{killed} of {' and '.join(names)} ran out of time; the others are the faster ones"


def bounded(claim: Claim) -> str:
    """Return "at least " if the rate of the slower side is an upper bound, so the ratio is a lower bound."""
    slower = claim.object if claim.kind is ClaimKind.FASTER else None
    return "at least " if slower is not None and slower.at_most else ""


def bound_words(cell: CellSummary, base: CellSummary) -> str:
    """Return words before the rate of a cell over that of a base where one of the two is an upper bound; "" elsewhere."""
    return {(True, False): "at most ", (False, True): "at least "}.get((cell.at_most, base.at_most), "")


def told_ratio(decision: Decision) -> str:
    """Return the ratio of two rates with its interval, "at most 3.10 [2.91, 3.32]"; "" if both are upper bounds, so it is no bound."""
    cell, base = decision.cell, decision.base
    if cell.at_most and base.at_most:
        return ""
    return bound_words(cell, base) + with_interval(decision.ratio)


def more_rounds(decisions: Decisions, undecided: Sequence[Claim]) -> str:
    """Return words for the number of further rounds that would be enough to see a difference of 1.25 times."""
    return rounds_words(decisions, [claim.decision for claim in undecided if claim.decision is not None])


def rounds_words(decisions: Decisions, compared: Sequence[Decision]) -> str:
    """Return words for the number of further rounds that would be enough to see a difference of 1.25 times in comparisons."""
    if min((decision.ratio.n for decision in compared), default=0) < 2:
        return "one round shows no spread, so at least 3 are needed"
    rounds = rounds_to_tell(decisions, compared)
    if rounds is None:
        return "with this spread, 200 rounds would not be enough to see a difference of 1.25 times"
    return f"{number_of(rounds, 'more round')} would be enough to see a difference of 1.25 times, if there is one"


def verdict_notes(decisions: Decisions, compared: Sequence[Decision]) -> list[str]:
    """Return what the ratios of a table lack: why a verdict cannot be told, and that of a proven one the size is uncertain."""
    named: dict[str, list[str]] = {}
    for decision in compared:
        if lack := _lack(decisions, decision):
            named.setdefault(lack, []).append(backend_label(decision.cell.backend))
    return [f"{', '.join(names)}: {lack}." for lack, names in named.items()]


def _lack(decisions: Decisions, decision: Decision) -> str:
    """Return what a ratio lacks; "" if it is told."""
    ratio = decision.ratio
    if not (decision.faster or decision.slower or decision.equal):
        return f"{decision_words(decision)}; {doubt_words(decision.doubt) or rounds_words(decisions, [decision])}"
    if ratio.lo and ratio.hi and ratio.hi > WIDE * ratio.lo:
        return (
            f"proven {decision.verdict}, but {number_of(ratio.n, 'round')} hardly tell by how much;"
            f" {_size_words(decisions, decision)}"
        )
    return ""


def _size_words(decisions: Decisions, decision: Decision) -> str:
    """Return words for the number of further rounds after which the interval of a proven ratio is narrow."""
    rounds = rounds_to_tell(decisions, [decision])
    if rounds is None:
        return "with this spread, 200 rounds would not tell the ratio to within a factor of 1.25"
    return f"{number_of(rounds, 'more round')} would tell the ratio to within a factor of 1.25"


def limit_sentence(verdict: CellVerdict) -> str:
    """Return a line on the limit of a cell: the limit, the figure behind it, and the possible gain from fixing it."""
    figure = limit_figure(verdict)
    if verdict.bound is Bound.COMPUTE:
        gain = number(verdict.feed_gain)
        return f"{verdict.bound}: {figure}; without any loading it would be at most {gain} times as fast"
    lead = "slowed down by " if verdict.bound is Bound.CONTENTION else ""
    gain = number(verdict.gain)
    if verdict.bound is Bound.BALANCED:
        return f"{verdict.bound}: {figure}; without any one part it would be at most {gain} times as fast"
    return f"{lead}{verdict.bound}: {figure}; without that it would be at most {gain} times as fast"


def limit_figure(verdict: CellVerdict) -> str:
    """Return the figure that a verdict rests on, in words."""
    waits = percent(verdict.wait_frac)
    part = _PARTS.get(verdict.bound, str(verdict.bound).removesuffix("-bound"))
    if verdict.bound in (Bound.COMPUTE, Bound.COPY):
        return f"{part} is {percent(verdict.loop_frac)} of the loop's time and waiting {waits}"
    if verdict.bound is Bound.BALANCED:
        return f"the loop waits {waits} of its time"
    if verdict.bound is Bound.CONTENTION:
        times = with_interval(verdict.inflation.ratio if verdict.inflation else None)
        return f"with it, the network computes {times} times as long as with nothing to load, and the loop waits {waits} of its time"
    whole = "feeding it" if verdict.bound is Bound.HANDOFF else "the producers' work"
    figure = (
        f"the loop waits {waits} of its time, and {part} is {percent(verdict.feeding_frac)} of {whole}"
        f" ({duration(verdict.batch_s)} per batch)"
    )
    if verdict.arriving_frac is None:
        return figure
    return f"{figure}; bytes arrive at {_arriving(verdict, verdict.arriving_frac)} of the device's best measured rate"


def _arriving(verdict: CellVerdict, frac: float) -> str:
    """Return the share of the device's best rate; one that rounds to the limit of "storage-bound" says that it is below."""
    below = verdict.bound is Bound.LATENCY and percent(frac) == percent(DEVICE_LIMIT_FRAC)
    return f"just under {percent(DEVICE_LIMIT_FRAC)}" if below else percent(frac)
