"""The verdict on each cell of two sides: first missing cells, then different work, then counters, then time."""

import enum
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from storebench.analysis.comparison import (
    MIN_ROUNDS,
    MOST_ROUNDS,
    PRACTICAL_FRAC,
    Ratio,
    Verdict,
    compare,
    rounds_needed,
)
from storebench.check.sides import CellData, Side, label_of, name_of
from storebench.units import Better, number_of

_MOST_NUMBERS = 5


@dataclass(frozen=True, kw_only=True)
class CounterGate:
    """Tolerance of a counter relative to the baseline."""

    band_frac: float = 0.0
    """Allowed difference as a share of the baseline's median."""
    slack: float = 0.0
    """Allowed difference in the counter's own unit, added to the band."""
    is_work: bool = False
    """Whether it counts what was read: equal on any machine, and a smaller value is wrong, too."""


# The gated counters and their tolerances: wide ones for durations beside the timed steps, because they vary.
COUNTERS = {
    "samples_served": CounterGate(is_work=True),
    "payload_bytes": CounterGate(is_work=True),
    "bytes_on_disk": CounterGate(band_frac=0.01),
    "device_read_bytes": CounterGate(band_frac=0.02, slack=64 * 1024),
    "read_calls": CounterGate(band_frac=0.01, slack=16),
    "major_faults": CounterGate(band_frac=0.10, slack=16),
    "open_s": CounterGate(band_frac=1.0, slack=0.5),
}


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
    """Its counters are as good, and times are not compared."""
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
    name: str
    """The cell in words."""
    state: CellState
    reason: str = ""
    ratio: Ratio | None = None
    """Time of the contender over that of the baseline, or that of the quickest batches where only these decide; without
    an interval where the sides were not interleaved. None if not compared."""
    time: Ratio | None = None
    quickest: Ratio | None = None
    """The ratio of all batches, and that of each round's quickest one."""
    replicates: tuple[int, int] = (0, 0)
    """The baseline's and the contender's."""
    counters: tuple[CounterResult, ...] = ()

    @property
    def is_apart(self) -> bool:
        """Whether its times were compared although they are not of interleaved rounds."""
        return self.state is CellState.INCONCLUSIVE and self.ratio is not None and not self.ratio.rounds

    @property
    def perhaps_slower(self) -> bool:
        """Whether nothing is proven, but the ratio is above the threshold or has no interval."""
        ratio = self.ratio
        shows = ratio is None or ratio.low is None or (ratio.mid or 0.0) > 1 + PRACTICAL_FRAC
        return self.state is CellState.INCONCLUSIVE and shows

    @property
    def is_quiet(self) -> bool:
        """Whether it shows no sign of change."""
        quiet = (CellState.WITHIN_NOISE, CellState.NOT_GATED, CellState.INCONCLUSIVE)
        return self.state in quiet and not self.perhaps_slower


def judge(baseline: Side, contender: Side, *, counters_only: bool = False) -> list[CellResult]:
    """Return a verdict for every cell of either side, in the baseline's order and then the contender's."""
    paired = bool(baseline.pairing) and baseline.pairing == contender.pairing
    among = list(dict.fromkeys(data.cell for side in (baseline, contender) for data in side.cells.values()))
    results = []
    for cell_id in dict.fromkeys([*baseline.cells, *contender.cells]):
        first, second = baseline.cells.get(cell_id), contender.cells.get(cell_id)
        state, reason = CellState.NOT_GATED, ""
        if second is None:
            state, reason = CellState.MISSING, "the baseline has it, the contender has not"
        elif second.failure:
            state, reason = CellState.FAILED, second.failure
        elif first is None:
            state, reason = CellState.NEW, "the baseline lacks it"
        elif first.failure:
            state, reason = CellState.NOT_COMPARABLE, f"it failed in the baseline: {first.failure}"
        elif first.samples != second.samples:
            state, reason = CellState.NOT_COMPARABLE, "the two sides read different samples"
        cell = (second or baseline.cells[cell_id]).cell
        result = CellResult(
            cell_id=cell_id, label=label_of(cell), name=name_of(cell, among), state=state, reason=reason
        )
        if state is CellState.NOT_GATED and first is not None and second is not None:
            has_ended = paired and cell_id in contender.ended
            result = _compared(result, first, second, paired=paired, counters_only=counters_only or has_ended)
            if has_ended and result.state is CellState.NOT_GATED:
                result = replace(result, reason="the budget had no time for it")
        results.append(result)
    return results


def _compared(
    result: CellResult, first: CellData, second: CellData, *, paired: bool, counters_only: bool
) -> CellResult:
    """Return the result of a cell that both sides measured."""
    elsewhere = _other_environment(first, second)
    counters, lost = _compare_counters(first, second, elsewhere=bool(elsewhere))
    result = replace(result, counters=tuple(counters), replicates=(len(first.seconds), len(second.seconds)))
    if lost:
        reason = f"the baseline counted {', '.join(lost)}, the contender did not"
        return replace(result, state=CellState.FAILED, reason=reason)
    if not counters_only:
        why_not = elsewhere or (_apart(first, second) if paired else "")
        result = (
            replace(result, state=CellState.NOT_COMPARABLE, reason=why_not)
            if why_not
            else _timed(result, first, second, paired=paired)
        )
    worse = "; ".join(counter.sentence for counter in counters if counter.worse)
    if not worse:
        return result
    if result.state is CellState.NOT_COMPARABLE:
        worse += f"; time not comparable: {result.reason}"
    return replace(result, state=CellState.WORSE, reason=worse)


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
    common = first.seconds.keys() & second.seconds.keys()
    if not common:
        has, other_has = (
            ", ".join(map(str, sorted(side.seconds)[:_MOST_NUMBERS])) for side in (first, second)
        )
        return f"no replicate ran on both sides: the baseline has {has}, the contender {other_has}"
    left_out = first.left_out | second.left_out
    for name, side, other in (("baseline", first, second), ("contender", second, first)):
        lost = sorted(other.seconds.keys() - side.seconds.keys() - left_out)
        if lost and lost[0] < max(common):
            return f"the {name} lacks replicate {lost[0]}, although it has later ones"
    return ""


def _compare_counters(
    first: CellData, second: CellData, *, elsewhere: bool
) -> tuple[list[CounterResult], list[str]]:
    """Compare every counter of the baseline; also return those that the contender lacks."""
    results: list[CounterResult] = []
    lost: list[str] = []
    for name, gate in COUNTERS.items():
        before, after = (
            [counters[name] for counters in side.counters if name in counters] for side in (first, second)
        )
        if len(before) < len(first.counters) or (elsewhere and not gate.is_work):
            continue
        if len(after) < len(second.counters):
            lost.append(name)
            continue
        old, new = statistics.median(before), statistics.median(after)
        # The tolerance cannot be smaller than the variation among the baseline's own replicates.
        allowed = gate.band_frac * old + gate.slack + max(before) - min(before)
        worse = (abs(new - old) if gate.is_work else new - old) > allowed
        results.append(CounterResult(name=name, baseline=old, contender=new, allowed=allowed, worse=worse))
    return results, lost


def _timed(result: CellResult, first: CellData, second: CellData, *, paired: bool) -> CellResult:
    """Return the result with its ratio of times; only interleaved rounds get an interval and a verdict."""
    before, after = first.seconds, second.seconds
    if not paired:
        first_s, second_s = (statistics.geometric_mean(side.values()) for side in (before, after))
        ratio = Ratio(mid=second_s / first_s, rounds=0)
        return replace(result, state=CellState.INCONCLUSIVE, reason="not interleaved", ratio=ratio)
    common = sorted(before.keys() & after.keys())
    time = _ratio(before, after, common)
    quickest = None
    if len(first.quickest.keys() & second.quickest.keys() & set(common)) == len(common):
        quickest = _ratio(first.quickest, second.quickest, common)
    ratio, state, reason = _deciding(time, quickest)
    return replace(result, state=state, reason=reason, ratio=ratio, time=time, quickest=quickest)


def _ratio(before: Mapping[int, float], after: Mapping[int, float], rounds: Sequence[int]) -> Ratio:
    return compare(
        [before[number] for number in rounds], [after[number] for number in rounds], better=Better.LOWER
    )


def _deciding(time: Ratio, quickest: Ratio | None) -> tuple[Ratio, CellState, str]:
    """Return the ratio that decides, with state and reason: a slower one, else a decided one, else the quickest."""
    state, reason = _decided(time)
    if quickest is None or quickest.mid is None:
        return time, state, reason
    quick_state, quick_reason = _decided(quickest)
    undecided, worse = CellState.INCONCLUSIVE, CellState.WORSE
    if state is worse and quick_state not in (worse, undecided):
        reason += "; its quickest batches are not: a wait, or some slow batches"
    if state is worse or (state is not undecided and quick_state is not worse):
        return time, state, reason
    if quick_state is worse and state is not undecided:
        quick_reason += " in its quickest batches; all of its time is not"
    return quickest, quick_state, quick_reason


def _decided(ratio: Ratio) -> tuple[CellState, str]:
    """Return state and reason, with the further rounds that would decide an undecided cell."""
    if ratio.verdict is Verdict.EQUAL:
        return CellState.WITHIN_NOISE, ""
    assert ratio.mid is not None
    if ratio.verdict is Verdict.SLOWER:
        return CellState.WORSE, f"{ratio.mid - 1:.0%} slower"
    if ratio.verdict is Verdict.FASTER:
        return CellState.BETTER, f"{1 - ratio.mid:.0%} less time"
    if ratio.rounds >= MIN_ROUNDS and ratio.high is not None and ratio.high <= 1 + PRACTICAL_FRAC:
        return CellState.WITHIN_NOISE, f"no slow-down of {PRACTICAL_FRAC:.0%}; it may be faster"
    sign = f"probably slower: {ratio.mid:.2f}" if ratio.mid > 1 + PRACTICAL_FRAC else "no sign of change"
    if ratio.rounds < MIN_ROUNDS:
        sign += f"; {number_of(ratio.rounds, 'replicate')}, a verdict needs {MIN_ROUNDS}"
        needed: int | None = MIN_ROUNDS
    else:
        needed = None if ratio.spread is None else rounds_needed(ratio.spread, PRACTICAL_FRAC)
    if needed is None:
        return (
            CellState.INCONCLUSIVE,
            f"{sign}; {MOST_ROUNDS} replicates on each side would not decide it here",
        )
    more = max(0, needed - ratio.rounds)
    advice = f"; {number_of(more, 'more replicate')} on each side would decide it" if more else ""
    return CellState.INCONCLUSIVE, sign + advice
