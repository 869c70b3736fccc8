"""The verdict on a cell's time: ratio, interval, noise floor, tail, and the state of the machine."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from storebench import stats
from storebench.check.pairs import ADJUSTED, INTERLEAVED, SECONDS, UNCALIBRATED, CellPair
from storebench.check.result import CellResult, CellState
from storebench.check.sides.model import CellData, slowest_tenth
from storebench.units import Better

_Costs = tuple[list[float], list[float]]
"""Costs of the baseline's and of the contender's replicates."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The comparisons of one cell: of its time, and of its tail if both sides have one."""

    pair: CellPair
    basis: str
    time: stats.Comparison
    tail: stats.Comparison | None


def compare_times(pair: CellPair, basis: str) -> Timing:
    """Return the comparisons of one cell, not yet corrected for the number of cells."""
    tails = _tails(pair)
    return Timing(
        pair=pair,
        basis=basis,
        time=_compare_means(pair, basis),
        tail=None if tails is None else _compare(tails, pair, _tail_frac(pair), paired=pair.paired),
    )


def corrected(timings: Sequence[Timing]) -> list[Timing]:
    """Return the comparisons with Holm's correction over the times and tails of all cells."""
    every = [timing.time for timing in timings] + [timing.tail for timing in timings if timing.tail]
    adjusted = iter(stats.corrected(every))
    times = [next(adjusted) for _ in timings]
    return [
        dataclasses.replace(timing, time=time, tail=next(adjusted) if timing.tail else None)
        for timing, time in zip(timings, times, strict=True)
    ]


def verdict(result: CellResult, timing: Timing, family: int) -> CellResult:
    """Return the result with figures and verdict of time; counters that are worse stay decisive.

    Parameters
    ----------
    family
        Number of comparisons in the correction.
    """
    pair, time, tail = timing.pair, timing.time, timing.tail
    costs = _costs(pair, timing.basis)
    floor = _floor(costs, timing.basis, pair.policy.alpha)
    result = dataclasses.replace(
        result,
        ratio=time.ratio,
        low=time.low,
        high=time.high,
        p_adjusted=time.p_adjusted,
        floor_frac=floor,
        practical_frac=pair.practical_frac,
        threshold_frac=None if floor is None else max(pair.practical_frac, floor),
        basis=timing.basis,
        seconds=(_seconds(pair.baseline), _seconds(pair.contender)),
        calibrated_ratio=_calibrated_ratio(pair),
        machine_ratio=_machine_ratio(pair),
        tail_of=pair.contender.tail_of if tail else "",
        tail_ratio=tail.ratio if tail else None,
        tail_low=tail.low if tail else None,
        tail_high=tail.high if tail else None,
        rounds_ratio=_rounds_ratio(
            _values(pair, "seconds", paired=False) if timing.basis == ADJUSTED else costs, timing.basis
        ),
        slowest_ratio=_slowest_ratio(costs),
        slowest_frac=_tail_frac(pair),
    )
    if result.worse_counters:
        return result
    more = _more_rounds(costs, timing, family)
    result = _decided(result, timing, min(map(len, costs)))
    if result.state is not CellState.INCONCLUSIVE:
        return result
    if timing.basis == UNCALIBRATED:
        return dataclasses.replace(result, reason=f"{result.reason}{_IN_TURN}")
    return dataclasses.replace(result, more_rounds=more, reason=f"{result.reason}{_advice(more)}")


_IN_TURN = "; 'storebench bench --against' compares both sides in turn"


def _advice(more: int | None) -> str:
    if more is None:
        return f"; {stats.MOST_ROUNDS} replicates on each side would not decide it here"
    return (
        f"; {more} more {'replicate' if more == 1 else 'replicates'} on each side would decide it"
        if more
        else ""
    )


def _decided(result: CellResult, timing: Timing, rounds: int) -> CellResult:
    policy = timing.pair.policy
    if rounds < policy.min_replicates:
        have = f"{rounds} {'replicate' if rounds == 1 else 'replicates'}"
        reason = f"{have}, the policy asks for {policy.min_replicates}"
        return dataclasses.replace(result, state=CellState.INCONCLUSIVE, reason=reason)
    state, reason = _time_state(result, policy.alpha, timing.time.reason)
    state, reason = _with_tail(state, reason, timing)
    state, reason = _with_slowest(state, reason, result)
    if timing.basis in (SECONDS, ADJUSTED, UNCALIBRATED):
        state, reason = _with_machine(state, reason, result, timing.pair)
    undue = state in (CellState.WORSE, CellState.BETTER) or (state is CellState.WITHIN_NOISE and bool(reason))
    if timing.basis == UNCALIBRATED and undue:
        # Two runs of the same code differ by the state of the machine as well, and here nothing shows by how much.
        state, reason = CellState.INCONCLUSIVE, f"{reason}, but nothing calibrated the two runs"
    if timing.basis == ADJUSTED:
        state, reason = _with_calibration(state, reason, result, policy.machine_frac)
    return dataclasses.replace(result, state=state, reason=reason)


def _time_state(result: CellResult, alpha: float, reason: str) -> tuple[CellState, str]:
    ratio, low, high, threshold = result.ratio, result.low, result.high, result.threshold_frac
    if ratio is None or low is None or high is None or threshold is None or result.p_adjusted is None:
        return CellState.INCONCLUSIVE, reason
    practical = result.practical_frac or 0.0
    if result.p_adjusted < alpha and low > 1 and ratio > 1 + threshold:
        return CellState.WORSE, f"{ratio - 1:.0%} slower"
    if result.p_adjusted < alpha and high < 1 and ratio < 1 / (1 + threshold):
        return CellState.BETTER, f"{1 - ratio:.0%} less time"
    slow_down = f"slow-down of {100 * practical:.3g}%"
    if high > 1 + practical:
        return CellState.INCONCLUSIVE, f"a {slow_down} is not ruled out"
    maybe_faster = low < 1 / (1 + practical)
    return CellState.WITHIN_NOISE, f"no {slow_down}; it may be faster" if maybe_faster else ""


def _with_tail(state: CellState, reason: str, timing: Timing) -> tuple[CellState, str]:
    """Return the state with the effect of the tail: a proven slow tail is a regression, a suspected one inconclusive."""
    tail, frac = timing.tail, _tail_frac(timing.pair)
    if (
        tail is None
        or tail.ratio is None
        or tail.low is None
        or state is CellState.WORSE
        or tail.ratio <= 1 + frac
    ):
        return state, reason
    words = f"the {timing.pair.contender.tail_of} took {tail.ratio:.2f} times as long"
    if tail.p_adjusted is not None and tail.p_adjusted < timing.pair.policy.alpha and tail.low > 1:
        return CellState.WORSE, words
    before = f"{reason}; " if state is CellState.INCONCLUSIVE else ""
    return CellState.INCONCLUSIVE, f"{before}{words}, but that may be chance"


def _with_slowest(state: CellState, reason: str, result: CellResult) -> tuple[CellState, str]:
    """Return the state, or inconclusive if a few rounds were slow beyond the tail's threshold."""
    ratio, frac = result.slowest_ratio, result.slowest_frac
    if state is CellState.WORSE or ratio is None or frac is None or ratio <= 1 + frac:
        return state, reason
    before = f"{reason}; " if reason else ""
    words = f"the slowest replicates took {ratio:.2f} times as long, but that may be chance"
    return CellState.INCONCLUSIVE, f"{before}{words}"


def _rounds_ratio(costs: _Costs, basis: str) -> float | None:
    if not all(costs):
        return None
    if basis == INTERLEAVED:
        return statistics.median(second / first for first, second in zip(*costs, strict=True))
    return statistics.median(costs[1]) / statistics.median(costs[0])


def _slowest_ratio(costs: _Costs) -> float | None:
    return slowest_tenth(costs[1]) / slowest_tenth(costs[0]) if all(costs) else None


def _with_machine(state: CellState, reason: str, result: CellResult, pair: CellPair) -> tuple[CellState, str]:
    """Return the state, or inconclusive if a change in the machine's own state could explain it."""
    disturbance = _busier(pair) or _drifted(result, pair.policy.machine_frac)
    if disturbance is None:
        return state, reason
    doubtful = (
        (CellState.WORSE,) if disturbance.beside_contender else (CellState.BETTER, CellState.WITHIN_NOISE)
    )
    calibrated = disturbance.calibrated_ratio
    if state not in doubtful or (calibrated is not None and _agrees(state, calibrated, result)):
        return state, reason
    before = f"{reason}, but " if reason else ""
    return CellState.INCONCLUSIVE, f"{before}{disturbance.sentence}"


def _with_calibration(
    state: CellState, reason: str, result: CellResult, machine_frac: float
) -> tuple[CellState, str]:
    """Return the state, or inconclusive if what was removed may be the change's own work.

    A change that slows its whole process slows the calibration in it, too. The machine may as well.
    """
    machine = result.machine_ratio
    if (
        state not in (CellState.BETTER, CellState.WITHIN_NOISE)
        or machine is None
        or machine <= 1 + machine_frac
    ):
        return state, reason
    words = f"the calibration itself took {machine:.2f} times as long, which the change may have caused"
    return CellState.INCONCLUSIVE, f"{reason}, but {words}" if reason else words


def easier(pair: CellPair, result: CellResult) -> str:
    """Return the reason why the contender's machine may have hidden a slow-down; "" if there is none.

    The baseline's machine was the busier one, or the contender's calibration took less time and the ratio to it is
    above the threshold. An adjusted ratio contains the calibration already.
    """
    if result.basis == INTERLEAVED:
        return ""
    busier = _busier(pair)
    if busier is not None and not busier.beside_contender:
        return busier.sentence
    drifted = None if result.basis == ADJUSTED else _drifted(result, pair.policy.machine_frac)
    if drifted is None or drifted.beside_contender:
        return ""
    calibrated = drifted.calibrated_ratio
    return drifted.sentence if calibrated is None or calibrated > 1 + pair.practical_frac else ""


@dataclass(frozen=True, kw_only=True)
class _Disturbance:
    """A difference between the machine's states beside the two sides.

    Attributes
    ----------
    beside_contender
        Whether the machine was the slower one beside the contender.
    sentence
        The difference in words.
    calibrated_ratio
        `CellResult.calibrated_ratio`, if the calibration shows the difference; else None.
    """

    beside_contender: bool
    sentence: str
    calibrated_ratio: float | None = None


def _busier(pair: CellPair) -> _Disturbance | None:
    """Return the difference in the cores that other processes used; None if it is within the policy's limit."""
    before, after = _busy(pair.baseline), _busy(pair.contender)
    if before is None or after is None or abs(after - before) <= pair.policy.busy_cores:
        return None
    return _Disturbance(
        beside_contender=after > before,
        sentence=f"other processes used {before:.2f} cores beside the baseline and {after:.2f} beside the contender",
    )


def _drifted(result: CellResult, machine_frac: float) -> _Disturbance | None:
    """Return the difference in the time of the calibration; None if it is within the policy's limit or unknown."""
    machine = result.machine_ratio
    if machine is None or abs(math.log(machine)) <= math.log1p(machine_frac):
        return None
    return _Disturbance(
        beside_contender=machine > 1,
        sentence=f"the calibration itself took {machine:.2f} times as long as beside the baseline",
        calibrated_ratio=result.calibrated_ratio,
    )


def _agrees(state: CellState, calibrated: float, result: CellResult) -> bool:
    """Return whether the calibrated ratio alone agrees with the seconds."""
    threshold, practical = result.threshold_frac or 0.0, result.practical_frac or 0.0
    if state is CellState.WORSE:
        return calibrated > 1 + threshold
    if state is CellState.BETTER:
        return calibrated < 1 / (1 + threshold)
    return calibrated <= 1 + practical


def _busy(cell: CellData) -> float | None:
    values = [replicate.busy_cores for replicate in cell.replicates if replicate.busy_cores is not None]
    return statistics.median(values) if values else None


def _compare_means(pair: CellPair, basis: str) -> stats.Comparison:
    if basis == ADJUSTED and pair.adjustment is not None:
        return pair.adjustment.compare(practical_frac=pair.practical_frac, alpha=pair.policy.alpha)
    return _compare(_costs(pair, basis), pair, pair.practical_frac, paired=basis == INTERLEAVED)


def _compare(costs: _Costs, pair: CellPair, frac: float, *, paired: bool) -> stats.Comparison:
    return stats.compare(
        *costs, better=Better.LOWER, paired=paired, practical_frac=frac, alpha=pair.policy.alpha
    )


def _costs(pair: CellPair, basis: str) -> _Costs:
    """Return a cost for each replicate of both sides; unpaired rounds are left out of pairs."""
    if basis == ADJUSTED and pair.adjustment is not None:
        return pair.adjustment.seconds
    field = "relative" if basis.startswith("ratio") else "seconds"
    return _values(pair, field, paired=basis == INTERLEAVED)


def _values(pair: CellPair, field: str, *, paired: bool) -> _Costs:
    """Return a field of each replicate of both sides; with `paired`, of those whose number is on both sides, in order."""
    first, second = (
        [(replicate.number, float(getattr(replicate, field))) for replicate in side.replicates]
        for side in (pair.baseline, pair.contender)
    )
    if not paired:
        return [value for _, value in first], [value for _, value in second]
    baseline, contender = dict(first), dict(second)
    common = sorted(baseline.keys() & contender.keys())
    return [baseline[number] for number in common], [contender[number] for number in common]


def _tails(pair: CellPair) -> _Costs | None:
    """Return the tails of both sides in seconds; None if they are not the same quantity."""
    first, second = pair.baseline, pair.contender
    if not first.tail_of or first.tail_of != second.tail_of or not pair.same_environment:
        return None
    return _values(pair, "tail_s", paired=pair.paired)


def _tail_frac(pair: CellPair) -> float:
    return pair.policy.tail(pair.cell_policy)


def _floor(costs: _Costs, basis: str, alpha: float) -> float | None:
    """Return the larger noise floor of the two sides; for interleaved sides, that of their rounds' ratios."""
    if basis == INTERLEAVED:
        ratios = [second / first for first, second in zip(*costs, strict=True)]
        floor = stats.noise_floor_frac(ratios, alpha)
        # The spread of the rounds' ratios is that of two independent sides: the square root of two times one side's.
        return None if floor is None else math.expm1(math.log1p(floor) / math.sqrt(2))
    floors = [stats.noise_floor_frac(side, alpha) for side in costs]
    known = [floor for floor in floors if floor is not None]
    return max(known) if known else None


def _more_rounds(costs: _Costs, timing: Timing, family: int) -> int | None:
    """Return the number of further replicates per side that detect the practical threshold, at the level of Holm's first step.

    To rule a slow-down of that size out takes no more of them: that needs no correction.
    """
    paired = timing.basis == INTERLEAVED
    if paired:
        spreads = [stats.spread([second / first for first, second in zip(*costs, strict=True)])]
    else:
        spreads = [stats.spread(side) for side in costs]
    known = [spread for spread in spreads if spread is not None]
    have = min(map(len, costs))
    if not known:
        return max(1, timing.pair.policy.min_replicates - have)
    alpha = timing.pair.policy.alpha / max(1, family)
    needed = stats.rounds_needed(max(known), timing.pair.practical_frac, alpha=alpha, paired=paired)
    return None if needed is None else max(0, timing.pair.policy.min_replicates - have, needed - have)


def _seconds(cell: CellData) -> float:
    return statistics.median(replicate.seconds for replicate in cell.replicates)


def _calibrated_ratio(pair: CellPair) -> float | None:
    return _ratio(pair, "relative") if pair.calibrated else None


def _machine_ratio(pair: CellPair) -> float | None:
    return _ratio(pair, "machine_s") if pair.calibrated else None


def _ratio(pair: CellPair, field: str) -> float | None:
    """Return the ratio of the geometric means of a field of the replicates; None if one lacks it."""
    logarithms = []
    for side in (pair.baseline, pair.contender):
        values = [getattr(replicate, field) for replicate in side.replicates]
        if not values or any(value is None for value in values):
            return None
        logarithms.append(statistics.fmean(map(math.log, values)))
    return math.exp(logarithms[1] - logarithms[0])
