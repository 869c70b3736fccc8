"""The verdict on each cell of two sides: first missing cells, then different work, then counters, then time."""

import dataclasses
import enum
import math
import statistics
from dataclasses import dataclass

from storebench.analysis.comparison import MIN_ROUNDS, MOST_ROUNDS, Ratio, Verdict, compare, rounds_needed
from storebench.check.policy import COUNTERS, Policy
from storebench.check.sides import CellData, Side
from storebench.units import Better, number_of

_MOST_NUMBERS = 5


class CellState(enum.StrEnum):
    """The verdicts, the worst first."""

    FAILED = "failed"
    """The contender's cell could not be measured as requested."""
    WORSE = "worse"
    MISSING = "missing"
    """The baseline has it and the contender does not."""
    NOT_COMPARABLE = "not comparable"
    INCONCLUSIVE = "inconclusive"
    NEW = "new"
    """The contender has it and the baseline does not."""
    NOT_GATED = "not gated"
    """Its counters are as good; the policy leaves its time uncompared."""
    BETTER = "better"
    WITHIN_NOISE = "within noise"


@dataclass(frozen=True, kw_only=True)
class CounterResult:
    """One counter of one cell: the medians of both sides, and the largest difference that is allowed."""

    name: str
    baseline: float
    contender: float
    allowed: float
    worse: bool

    @property
    def sentence(self) -> str:
        unit = "bytes" if "bytes" in self.name else "s" if "_s_" in f"{self.name}_" else ""
        change = f" ({self.contender / self.baseline - 1:+.1%})" if self.baseline else ""
        figures = (
            f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"
            for value in (self.baseline, self.contender)
        )
        return f"{self.name} {' -> '.join(figures)} {unit}".rstrip() + change


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The verdict on one cell, with figures and reason."""

    cell_id: str
    label: str
    state: CellState
    reason: str = ""
    ratio: float | None = None
    """Time of the contender over that of the baseline, above 1 is slower; None if not compared."""
    low: float | None = None
    high: float | None = None
    """Interval of `ratio`; None where the sides were not interleaved."""
    level: float | None = None
    """0.95, or 0.99 where the rounds' ratios spread."""
    practical_frac: float | None = None
    visible_frac: float | None = None
    """The smallest slow-down that an interval of this width shows."""
    replicates: tuple[int, int] = (0, 0)
    """The baseline's and the contender's."""
    seconds: tuple[float, float] | None = None
    """Likewise seconds per sample, the median of the replicates; None if not compared."""
    counters: tuple[CounterResult, ...] = ()
    more_rounds: int | None = None
    """Further replicates on each side that would decide an inconclusive cell; None if none are needed or none would."""
    round_s: float = 0.0
    """Seconds of one replicate on both sides; 0 if unknown."""

    @property
    def worse_counters(self) -> tuple[CounterResult, ...]:
        """The counters that left their band in the wrong direction."""
        return tuple(counter for counter in self.counters if counter.worse)

    @property
    def perhaps_slower(self) -> bool:
        """Whether nothing is proven, but the ratio is above the threshold."""
        threshold = 1 + (self.practical_frac or 0.0)
        return self.state is CellState.INCONCLUSIVE and self.ratio is not None and self.ratio > threshold


def judge(baseline: Side, contender: Side, policy: Policy) -> list[CellResult]:
    """Return a verdict for every cell of either side, in the baseline's order and then the contender's."""
    paired = bool(baseline.pairing) and baseline.pairing == contender.pairing
    results = []
    for name in dict.fromkeys([*baseline.cells, *contender.cells]):
        first, second = baseline.cells.get(name), contender.cells.get(name)
        one_sided = _one_sided(first, second)
        if one_sided is not None:
            results.append(one_sided)
        elif first is not None and second is not None:
            results.append(_compared(first, second, policy, paired=paired))
    return results


def _one_sided(first: CellData | None, second: CellData | None) -> CellResult | None:
    """Return the verdict on a cell that only one side has or could measure; None for any other."""
    data = second or first
    assert data is not None
    blank = CellResult(cell_id=data.cell_id, label=data.label, state=CellState.FAILED)
    if second is None:
        reason = "the baseline has it, the contender has not"
        return dataclasses.replace(blank, state=CellState.MISSING, reason=reason)
    if second.failure:
        return dataclasses.replace(blank, reason=second.failure)
    if first is None:
        return dataclasses.replace(blank, state=CellState.NEW, reason="the baseline lacks it")
    if first.failure:
        reason = f"it failed in the baseline: {first.failure}"
        return dataclasses.replace(blank, state=CellState.NOT_COMPARABLE, reason=reason)
    return None


def _compared(first: CellData, second: CellData, policy: Policy, *, paired: bool) -> CellResult:
    rules = policy.cell(second.cell_id, second.label)
    result = CellResult(
        cell_id=second.cell_id,
        label=second.label,
        state=CellState.NOT_GATED,
        practical_frac=policy.practical_frac if rules.practical_frac is None else rules.practical_frac,
        replicates=(len(first.replicates), len(second.replicates)),
        round_s=first.round_s + second.round_s,
    )
    if why_not := _other_work(first, second):
        return dataclasses.replace(result, state=CellState.NOT_COMPARABLE, reason=why_not)
    elsewhere = _other_environment(first, second)
    if rules.gate_counters:
        counters, lost = _compare_counters(first, second, policy, elsewhere=bool(elsewhere))
        if lost:
            reason = f"the baseline counted {', '.join(lost)}, the contender did not"
            return dataclasses.replace(result, state=CellState.FAILED, reason=reason)
        result = dataclasses.replace(result, counters=tuple(counters))
    why_not = elsewhere or (_apart(first, second) if paired else "")
    if not why_not:
        result = _timed(result, first, second, paired=paired, gated=rules.gate_time)
    elif rules.gate_time:
        result = dataclasses.replace(result, state=CellState.NOT_COMPARABLE, reason=why_not)
    if not result.worse_counters:
        return result
    reason = "; ".join(counter.sentence for counter in result.worse_counters)
    if result.state is CellState.NOT_COMPARABLE:
        reason += f"; time not comparable: {result.reason}"
    return dataclasses.replace(result, state=CellState.WORSE, reason=reason, more_rounds=None)


def _other_work(first: CellData, second: CellData) -> str:
    """Return the difference in work that makes the figures of the two sides incomparable, or ""."""
    if first.samples_of != second.samples_of:
        if first.samples_of and second.samples_of:
            return "the two sides read different samples"
        side = "contender" if first.samples_of else "baseline"
        return f"the {side} does not say which samples it read"
    if first.samples is not None and first.samples != second.samples:
        return f"a round of the baseline serves {first.samples} samples, of the contender {second.samples}"
    return ""


def _other_environment(first: CellData, second: CellData) -> str:
    """Return the differences of two environments in words, or ""; two unknown machines are not the same."""
    before, after = first.environment, second.environment
    if before is None or after is None or not before.key or not after.key:
        return "the environment of one side is unknown or not unique"
    if before.key == after.key:
        return ""
    changes = [
        f"{name} {before.match.get(name)} -> {after.match.get(name)}"
        for name in {**before.match, **after.match}
        if before.match.get(name) != after.match.get(name)
    ]
    return "another environment: " + ("; ".join(changes) or f"{before.key} -> {after.key}")


def _apart(first: CellData, second: CellData) -> str:
    """Return the reason why the replicates of interleaved sides do not pair, or ""; a side may lack the last."""
    before, after = (sorted({replicate.number for replicate in side.replicates}) for side in (first, second))
    common = {*before} & {*after}
    if not common:
        has, other_has = (", ".join(map(str, each[:_MOST_NUMBERS])) for each in (before, after))
        return f"no replicate ran on both sides: the baseline has {has}, the contender {other_has}"
    left_out = first.left_out | second.left_out
    for name, numbers, other in (("baseline", before, after), ("contender", after, before)):
        lost = [number for number in other if number not in {*numbers, *left_out} and number < max(common)]
        if lost:
            return f"the {name} lacks replicate {lost[0]}, although it has later ones"
    return ""


def _compare_counters(
    first: CellData, second: CellData, policy: Policy, *, elsewhere: bool
) -> tuple[list[CounterResult], list[str]]:
    """Compare every gated counter of the baseline; also return those that the contender lacks."""
    results: list[CounterResult] = []
    lost: list[str] = []
    for name in COUNTERS:
        gate = policy.gate(name)
        before, after = (
            [side.counters[name] for side in cell.replicates if name in side.counters]
            for cell in (first, second)
        )
        if len(before) < len(first.replicates) or (elsewhere and not gate.any_environment):
            continue
        if len(after) < len(second.replicates):
            lost.append(name)
        else:
            old, new = statistics.median(before), statistics.median(after)
            # The tolerance cannot be smaller than the variation among the baseline's own replicates.
            allowed = gate.band_frac * old + gate.slack + max(before) - min(before)
            worse = new - old > allowed or (gate.both_ways and old - new > allowed)
            results.append(
                CounterResult(name=name, baseline=old, contender=new, allowed=allowed, worse=worse)
            )
    return results, lost


def _timed(result: CellResult, first: CellData, second: CellData, *, paired: bool, gated: bool) -> CellResult:
    """Return the result with its ratio of times; only interleaved rounds get an interval and a verdict."""
    before, after = (
        {replicate.number: replicate.seconds for replicate in side.replicates} for side in (first, second)
    )
    means = [statistics.geometric_mean(side.values()) for side in (before, after)]
    result = dataclasses.replace(
        result,
        seconds=(statistics.median(before.values()), statistics.median(after.values())),
        ratio=means[1] / means[0],
    )
    if not gated:
        return result
    if not paired:
        reason = (
            f"a ratio of {result.ratio:.2f}, but the two runs were not interleaved; "
            "'storebench bench --against' compares both sides in turn"
        )
        return dataclasses.replace(result, state=CellState.INCONCLUSIVE, reason=reason)
    common = sorted(before.keys() & after.keys())
    practical = result.practical_frac or 0.0
    ratio = compare(
        [before[number] for number in common],
        [after[number] for number in common],
        better=Better.LOWER,
        practical_frac=practical,
    )
    state, reason, more = _decided(ratio, practical)
    visible = None
    if ratio.low is not None and ratio.high is not None:
        visible = (1 + practical) * math.sqrt(ratio.high / ratio.low) - 1
    return dataclasses.replace(
        result,
        state=state,
        reason=reason,
        ratio=ratio.mid,
        low=ratio.low,
        high=ratio.high,
        level=ratio.level,
        visible_frac=visible,
        more_rounds=more,
    )


def _decided(ratio: Ratio, practical: float) -> tuple[CellState, str, int | None]:
    """Return state, reason, and the further rounds that would decide an undecided cell."""
    slow_down = f"slow-down of {100 * practical:.3g}%"
    if ratio.verdict is Verdict.EQUAL:
        return CellState.WITHIN_NOISE, "", None
    if ratio.verdict is not Verdict.UNDECIDED:
        state = CellState.WORSE if ratio.verdict is Verdict.SLOWER else CellState.BETTER
        assert ratio.mid is not None
        return (
            state,
            f"{ratio.mid - 1:.0%} slower" if ratio.mid >= 1 else f"{1 - ratio.mid:.0%} less time",
            None,
        )
    if ratio.rounds < MIN_ROUNDS:
        missing = MIN_ROUNDS - ratio.rounds
        reason = f"{number_of(ratio.rounds, 'replicate')}, a verdict needs {MIN_ROUNDS}{_advice(missing)}"
        return CellState.INCONCLUSIVE, reason, missing
    assert ratio.high is not None
    assert ratio.spread is not None
    if ratio.high <= 1 + practical:
        return CellState.WITHIN_NOISE, f"no {slow_down}; it may be faster", None
    needed = rounds_needed(ratio.spread, practical)
    more = None if needed is None else max(0, needed - ratio.rounds)
    never = f"; {MOST_ROUNDS} replicates on each side would not decide it here"
    advice = never if more is None else _advice(more)
    return CellState.INCONCLUSIVE, f"a {slow_down} is not ruled out{advice}", more or None


def _advice(more: int) -> str:
    return f"; {number_of(more, 'more replicate')} on each side would decide it" if more else ""
