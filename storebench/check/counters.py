"""Deterministic counters of two sides: equal, or within the policy's band and the baseline's own spread."""

import statistics
from dataclasses import dataclass

from storebench.check.policy import COUNTERS, CounterGate, Policy
from storebench.check.sides.model import CellData
from storebench.units import METRICS


@dataclass(frozen=True, kw_only=True)
class CounterResult:
    """One counter of one cell: medians of both sides and the tolerance.

    Attributes
    ----------
    allowed
        Largest difference from the baseline that is allowed.
    worse
        Whether the difference is larger, in the wrong direction.
    """

    name: str
    baseline: float
    contender: float
    allowed: float
    worse: bool

    @property
    def sentence(self) -> str:
        """Return a sentence about the change."""
        unit = METRICS[self.name].unit if self.name in METRICS else "s" if self.name.endswith("_s") else ""
        unit = "bytes" if self.name.endswith("bytes") else unit
        change = f" ({self.contender / self.baseline - 1:+.1%})" if self.baseline else ""
        figures = (
            f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"
            for value in (self.baseline, self.contender)
        )
        return f"{self.name} {' -> '.join(figures)} {unit}".rstrip() + change


def compare_counters(
    baseline: CellData, contender: CellData, policy: Policy, *, same_environment: bool
) -> list[CounterResult]:
    """Compare every gated counter that both sides have."""
    results = []
    for name in _names(baseline, policy):
        gate = policy.gate(name)
        if name in _names(contender, policy) and (same_environment or gate.any_environment):
            results.append(_compare(name, gate, _values(baseline, name), _values(contender, name)))
    return results


def uncounted(
    baseline: CellData, contender: CellData, policy: Policy, *, same_environment: bool
) -> list[str]:
    """Return the gated counters that the baseline has and the contender lacks."""
    counted = _names(contender, policy)
    return [
        name
        for name in _names(baseline, policy)
        if name not in counted and (same_environment or policy.gate(name).any_environment)
    ]


def _names(cell: CellData, policy: Policy) -> list[str]:
    """Return the counters that every replicate of a cell has."""
    known = {**COUNTERS, **policy.counters}
    return [
        name
        for name in known
        if cell.replicates and all(replicate.counters.get(name) is not None for replicate in cell.replicates)
    ]


def _values(cell: CellData, name: str) -> list[float]:
    return [float(replicate.counters[name]) for replicate in cell.replicates]


def _compare(name: str, gate: CounterGate, before: list[float], after: list[float]) -> CounterResult:
    first, second = statistics.median(before), statistics.median(after)
    # The tolerance cannot be smaller than the variation among the baseline's own replicates.
    spread = max(before) - min(before)
    allowed = gate.band_frac * first + gate.slack + spread
    over = second - first
    return CounterResult(
        name=name,
        baseline=first,
        contender=second,
        allowed=allowed,
        worse=over > allowed or (gate.both_ways and -over > allowed),
    )
