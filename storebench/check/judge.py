"""The verdict on each cell of two sides: first missing cells, then different work, then counters, then time."""

import dataclasses
from collections.abc import Sequence

from storebench.check import timing
from storebench.check.counters import compare_counters, uncounted
from storebench.check.pairs import CellPair, basis_of, other_work, resembling
from storebench.check.policy import Policy
from storebench.check.result import CellResult, CellState
from storebench.check.sides.model import CellData, Side

__all__ = ["CellResult", "CellState", "judge"]


def judge(
    baseline: Side, contender: Side, policy: Policy, *, only: Sequence[str] | None = None
) -> list[CellResult]:
    """Return a verdict for every cell of either side, in the baseline's order and then the contender's.

    Parameters
    ----------
    only
        Cell ids to judge; None judges all.
    """
    names = [name for name in dict.fromkeys([*baseline.cells, *contender.cells]) if not only or name in only]
    paired = bool(baseline.pairing) and baseline.pairing == contender.pairing
    results: dict[str, CellResult] = {}
    timings: dict[str, timing.Timing] = {}
    for name in names:
        matched = _match(name, baseline, contender)
        if isinstance(matched, CellResult):
            results[name] = matched
            continue
        pair = CellPair(baseline=matched[0], contender=matched[1], paired=paired, policy=policy)
        results[name], basis = _counted(pair)
        if basis:
            timings[name] = timing.compare_times(pair, basis)
    every = timing.corrected(list(timings.values()))
    family = len(every) + sum(cell_timing.tail is not None for cell_timing in every)
    for name, cell_timing in zip(timings, every, strict=True):
        results[name] = timing.verdict(results[name], cell_timing, family)
    return list(results.values())


def _match(name: str, baseline: Side, contender: Side) -> CellResult | tuple[CellData, CellData]:
    """Return both sides of a cell, or the verdict on a cell that only one side has or could measure."""
    first, second = baseline.cells.get(name), contender.cells.get(name)
    known = second or first
    assert known is not None
    blank = CellResult(cell_id=known.cell_id, label=known.label, state=CellState.FAILED, rerun=known.rerun)
    if second is None:
        return dataclasses.replace(blank, state=CellState.MISSING, reason=_lost(known, baseline, contender))
    if second.failure:
        return dataclasses.replace(blank, reason=second.failure)
    if wrong := second.disagreement or (first.disagreement if first else ""):
        return dataclasses.replace(blank, reason=wrong)
    if first is None:
        return dataclasses.replace(blank, state=CellState.NEW, reason="the baseline lacks it")
    if first.failure:
        reason = f"it failed in the baseline: {first.failure}"
        return dataclasses.replace(blank, state=CellState.NOT_COMPARABLE, reason=reason)
    return first, second


def _lost(cell: CellData, baseline: Side, contender: Side) -> str:
    """Return the result of a cell that only the baseline has."""
    if cell.rerun in contender.skipped:
        return f"it was skipped: {contender.skipped[cell.rerun]}"
    new = [candidate for name, candidate in contender.cells.items() if name not in baseline.cells]
    return resembling(cell, new) or "the baseline has it, the contender has not"


def _counted(pair: CellPair) -> tuple[CellResult, str]:
    """Return the verdict of the counters alone, and the basis for comparing time ("" if there is none)."""
    first, second, rules = pair.baseline, pair.contender, pair.cell_policy
    result = CellResult(
        cell_id=second.cell_id,
        label=second.label,
        state=CellState.WITHIN_NOISE,
        replicates=(len(first.replicates), len(second.replicates)),
        round_s=first.round_s + second.round_s,
        rerun=second.rerun,
        samples=second.samples,
    )
    if why_not := other_work(pair):
        return _not_comparable(result, why_not), ""
    if rules.gate_counters:
        lost = uncounted(first, second, pair.policy, same_environment=pair.same_environment)
        if lost:
            reason = f"the baseline counted {', '.join(lost)}, the contender did not"
            return dataclasses.replace(result, state=CellState.FAILED, reason=reason), ""
        counters = compare_counters(first, second, pair.policy, same_environment=pair.same_environment)
        result = dataclasses.replace(result, counters=tuple(counters))
    if result.worse_counters:
        reason = "; ".join(counter.sentence for counter in result.worse_counters)
        result = dataclasses.replace(result, state=CellState.WORSE, reason=reason)
    if not rules.gate_time:
        return result if result.worse_counters else dataclasses.replace(result, state=CellState.NOT_GATED), ""
    basis, why_not = basis_of(pair)
    return (result, basis) if basis else (_not_comparable(result, why_not), "")


def _not_comparable(result: CellResult, reason: str) -> CellResult:
    """Return `result` as not comparable in time; a counter that is worse stays worse."""
    if result.worse_counters:
        return dataclasses.replace(result, reason=f"{result.reason}; time not comparable: {reason}")
    return dataclasses.replace(result, state=CellState.NOT_COMPARABLE, reason=reason)
