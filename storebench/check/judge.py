"""A verdict for each cell of two sides: counters by their bands, time by ratio, interval, noise floor and Holm."""

import dataclasses
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from storebench import stats
from storebench.check.counters import CounterResult, compare_counters
from storebench.check.policy import CellPolicy, Policy
from storebench.check.sides import CellData, Side
from storebench.units import Better


class State(enum.StrEnum):
    """What a check says of one cell."""

    BETTER = "better"
    WORSE = "worse"
    WITHIN_NOISE = "within noise"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"
    MISSING = "missing"
    """The baseline has it and the contender does not."""
    NEW = "new"
    """The contender has it and the baseline does not."""
    FAILED = "failed"
    """The contender's cell could not be measured as it was asked for."""


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What a check says of one cell, and why.

    Attributes
    ----------
    ratio
        Time of the contender over time of the baseline; above 1 is slower. Null where not compared.
    low, high
        Interval of `ratio` for this cell alone.
    p_adjusted
        Of "the ratio is 1", corrected for the number of cells.
    floor_frac
        The cell's own noise floor: the smallest difference that its spread lets anybody call.
    threshold_frac
        What the ratio had to exceed: the policy's threshold or the floor, whichever is larger.
    practical_frac
        The policy's threshold for this cell.
    basis
        What was compared ("ratio to gather", "seconds", "seconds, interleaved"), or "".
    replicates
        (baseline's, contender's).
    confirmed
        Whether a second run of a suspected cell showed it again; null where there was none.
    """

    cell_id: str
    label: str
    state: State
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_adjusted: float | None = None
    floor_frac: float | None = None
    threshold_frac: float | None = None
    practical_frac: float | None = None
    basis: str = ""
    replicates: tuple[int, int] = (0, 0)
    counters: tuple[CounterResult, ...] = ()
    reason: str = ""
    confirmed: bool | None = None
    rerun: str = ""

    @property
    def worse_counters(self) -> tuple[CounterResult, ...]:
        """The counters that left their band to the wrong side."""
        return tuple(one for one in self.counters if one.worse)

    @property
    def suspected(self) -> bool:
        """Whether time alone says worse: what a second run can confirm."""
        return self.state is State.WORSE and not self.worse_counters


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A cell that both sides have."""

    baseline: CellData
    contender: CellData
    paired: bool
    policy: Policy

    @property
    def cell_policy(self) -> CellPolicy:
        return self.policy.cell(self.contender.cell_id, self.contender.label)

    @property
    def same_environment(self) -> bool:
        keys = self.baseline.environment.key, self.contender.environment.key
        return keys[0] == keys[1] != ""

    @property
    def practical_frac(self) -> float:
        policy = self.policy
        wanted = [policy.practical(self.cell_policy)]
        wanted += [policy.one_process_frac] * (self.baseline.one_process or self.contender.one_process)
        wanted += [policy.other_environment_frac] * (not self.same_environment)
        return max(wanted)


def judge(
    baseline: Side, contender: Side, policy: Policy, *, only: Sequence[str] | None = None
) -> list[CellResult]:
    """Return a verdict for every cell of either side, in the baseline's order and then the contender's.

    Parameters
    ----------
    only
        Cell ids to look at; null looks at all.
    """
    names = [name for name in dict.fromkeys([*baseline.cells, *contender.cells]) if not only or name in only]
    paired = bool(baseline.pairing) and baseline.pairing == contender.pairing
    results: dict[str, CellResult] = {}
    compared: dict[str, tuple[_Pair, str, stats.Comparison]] = {}
    for name in names:
        found = _match(baseline.cells.get(name), contender.cells.get(name))
        if isinstance(found, CellResult):
            results[name] = found
            continue
        pair = _Pair(baseline=found[0], contender=found[1], paired=paired, policy=policy)
        results[name], basis = _counted(pair)
        if basis:
            compared[name] = (pair, basis, _compare(pair, basis))
    corrected = stats.corrected([comparison for _, _, comparison in compared.values()])
    for (name, (pair, basis, _)), comparison in zip(compared.items(), corrected, strict=True):
        results[name] = _timed(results[name], pair, basis, comparison)
    return list(results.values())


def _match(first: CellData | None, second: CellData | None) -> CellResult | tuple[CellData, CellData]:
    """Return both sides of a cell, or the verdict on a cell that only one side has or could measure."""
    known = second or first
    assert known is not None
    blank = CellResult(cell_id=known.cell_id, label=known.label, state=State.FAILED, rerun=known.rerun)
    if second is None:
        reason = "the baseline has it, the contender has not"
        return dataclasses.replace(blank, state=State.MISSING, reason=reason)
    if second.failure:
        return dataclasses.replace(blank, reason=second.failure)
    if first is None:
        return dataclasses.replace(blank, state=State.NEW, reason="the baseline lacks it")
    if first.failure:
        reason = f"it failed in the baseline: {first.failure}"
        return dataclasses.replace(blank, state=State.NOT_COMPARABLE, reason=reason)
    return first, second


def _counted(pair: _Pair) -> tuple[CellResult, str]:
    """Return the verdict of the counters alone, and on what basis time can be compared ("" for not at all)."""
    first, second, rules = pair.baseline, pair.contender, pair.cell_policy
    result = CellResult(
        cell_id=second.cell_id,
        label=second.label,
        state=State.WITHIN_NOISE,
        replicates=(len(first.replicates), len(second.replicates)),
        rerun=second.rerun,
    )
    if first.samples_of and second.samples_of and first.samples_of != second.samples_of:
        return _not_comparable(result, "the two sides read other samples"), ""
    if rules.gate_counters:
        counters = compare_counters(first, second, pair.policy, same_environment=pair.same_environment)
        result = dataclasses.replace(result, counters=tuple(counters))
    if result.worse_counters:
        reason = "; ".join(one.sentence for one in result.worse_counters)
        result = dataclasses.replace(result, state=State.WORSE, reason=reason)
    if not rules.gate_time:
        return result, ""
    basis, why_not = _basis(pair)
    return (result, basis) if basis else (_not_comparable(result, why_not), "")


def _not_comparable(result: CellResult, reason: str) -> CellResult:
    """Return `result` as not comparable in time; a counter that is worse stays worse."""
    if result.worse_counters:
        return dataclasses.replace(result, reason=f"{result.reason}; time not comparable: {reason}")
    return dataclasses.replace(result, state=State.NOT_COMPARABLE, reason=reason)


def _basis(pair: _Pair) -> tuple[str, str]:
    """Return what of the two is compared, or "" and why nothing can be."""
    first, second, wanted = pair.baseline, pair.contender, pair.policy.basis
    if pair.paired and pair.same_environment and wanted != "ratio":
        return "seconds, interleaved", ""
    if wanted != "seconds" and first.calibration and first.calibration == second.calibration:
        return f"ratio to {first.calibration}", ""
    if pair.same_environment and wanted != "ratio":
        return "seconds", ""
    lacks = "seconds were asked for" if wanted == "seconds" else "no calibration on both sides"
    return "", f"{lacks}, and {_difference(first, second)}"


def _difference(first: CellData, second: CellData) -> str:
    """Say in which way two environments differ."""
    before, after = first.environment, second.environment
    if not before.key or not after.key:
        return "the environment of one side is not known or not one"
    if before.key == after.key:
        return "the policy allows ratios only"
    names = [
        name for name in {**before.match, **after.match} if before.match.get(name) != after.match.get(name)
    ]
    changes = [f"{name} {before.match.get(name)} -> {after.match.get(name)}" for name in names]
    return "another environment: " + ("; ".join(changes) or f"{before.key} -> {after.key}")


def _compare(pair: _Pair, basis: str) -> stats.Comparison:
    first, second = _costs(pair, basis)
    return stats.compare(
        first,
        second,
        better=Better.LOWER,
        paired=basis == "seconds, interleaved",
        practical_frac=pair.practical_frac,
        alpha=pair.policy.alpha,
    )


def _costs(pair: _Pair, basis: str) -> tuple[list[float], list[float]]:
    """Return a cost for each replicate of both sides; rounds that only one side has are left out of pairs."""
    field = "relative" if basis.startswith("ratio") else "seconds"
    sides = [
        {one.number: getattr(one, field) for one in side.replicates}
        for side in (pair.baseline, pair.contender)
    ]
    if basis == "seconds, interleaved":
        both = sorted(sides[0].keys() & sides[1].keys())
        return [sides[0][number] for number in both], [sides[1][number] for number in both]
    first, second = (
        [float(getattr(one, field)) for one in side.replicates] for side in (pair.baseline, pair.contender)
    )
    return first, second


def _timed(result: CellResult, pair: _Pair, basis: str, comparison: stats.Comparison) -> CellResult:
    costs = _costs(pair, basis)
    floor = _floor(pair, basis, costs)
    result = dataclasses.replace(
        result,
        ratio=comparison.ratio,
        low=comparison.low,
        high=comparison.high,
        p_adjusted=comparison.p_adjusted,
        floor_frac=floor,
        practical_frac=pair.practical_frac,
        threshold_frac=None if floor is None else max(pair.practical_frac, floor),
        basis=basis,
    )
    if result.worse_counters:
        return result
    few = min(map(len, costs)) < pair.policy.min_replicates
    if few:
        reason = f"{min(map(len, costs))} replicates, the policy asks for {pair.policy.min_replicates}"
        return dataclasses.replace(result, state=State.INCONCLUSIVE, reason=reason)
    state, reason = _time_state(result, pair.policy.alpha, comparison.reason)
    return dataclasses.replace(result, state=state, reason=reason)


def _floor(pair: _Pair, basis: str, costs: tuple[list[float], list[float]]) -> float | None:
    """Return the larger noise floor of the two sides; of interleaved ones, that of their rounds' ratios."""
    if basis == "seconds, interleaved":
        ratios = [second / first for first, second in zip(*costs, strict=True)]
        floor = stats.noise_floor_frac(ratios, pair.policy.alpha)
        # Two independent sides would have the square root of two of what the rounds' ratios show.
        return None if floor is None else math.expm1(math.log1p(floor) / math.sqrt(2))
    floors = [stats.noise_floor_frac(side, pair.policy.alpha) for side in costs]
    known = [one for one in floors if one is not None]
    return max(known) if known else None


def _time_state(result: CellResult, alpha: float, reason: str) -> tuple[State, str]:
    ratio, low, high, threshold = result.ratio, result.low, result.high, result.threshold_frac
    if ratio is None or low is None or high is None or threshold is None or result.p_adjusted is None:
        return State.INCONCLUSIVE, reason
    practical = result.practical_frac or 0.0
    if result.p_adjusted < alpha and low > 1 and ratio > 1 + threshold:
        return State.WORSE, f"{ratio - 1:.0%} slower"
    if result.p_adjusted < alpha and high < 1 and ratio < 1 / (1 + threshold):
        return State.BETTER, f"{1 - ratio:.0%} less time"
    if low >= 1 / (1 + practical) and high <= 1 + practical:
        return State.WITHIN_NOISE, ""
    return State.INCONCLUSIVE, f"the interval is wider than {practical:.0%} on a side"
