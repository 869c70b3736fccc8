"""A cell that both sides have: whether both did the same work, and the basis for comparing their times."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from storebench.check.adjustment import Adjustment, adjustment
from storebench.check.calibration import carries_over
from storebench.check.policy import CellPolicy, Policy
from storebench.check.sides.model import CellData

INTERLEAVED = "seconds, interleaved"
ADJUSTED = "seconds, adjusted by the calibration"
SECONDS = "seconds"
UNCALIBRATED = "seconds, not calibrated"

_MOST_CHANGES = 3
_MOST_NUMBERS = 5


@dataclass(frozen=True, kw_only=True)
class CellPair:
    """A cell that both sides have.

    Attributes
    ----------
    paired
        Whether replicates of equal number ran next to each other.
    """

    baseline: CellData
    contender: CellData
    paired: bool
    policy: Policy

    @property
    def cell_policy(self) -> CellPolicy:
        """The policy for this cell."""
        return self.policy.cell(self.contender.cell_id, self.contender.label)

    @property
    def same_environment(self) -> bool:
        """Whether seconds are comparable between the sides; two unknown machines are not the same."""
        keys = self.baseline.environment.key, self.contender.environment.key
        return keys[0] == keys[1] != ""

    @property
    def calibrated(self) -> bool:
        """Whether both sides were calibrated by the same kind of work."""
        return bool(self.baseline.calibration) and self.baseline.calibration == self.contender.calibration

    @functools.cached_property
    def adjustment(self) -> Adjustment | None:
        """The seconds of both sides with what their calibration explains removed; None if that cannot be estimated."""
        return adjustment(self.baseline, self.contender) if self.calibrated else None

    @property
    def practical_frac(self) -> float:
        """The smallest slow-down that alarms."""
        policy = self.policy
        wanted = [policy.practical(self.cell_policy)]
        wanted += [policy.one_process_frac] * (self.baseline.one_process or self.contender.one_process)
        wanted += [policy.other_environment_frac] * (not self.same_environment)
        return max(wanted)


def other_work(pair: CellPair) -> str:
    """Return the difference in work that makes the figures of the two sides incomparable, in words, or ""."""
    first, second = pair.baseline, pair.contender
    if first.samples_of != second.samples_of:
        if first.samples_of and second.samples_of:
            return "the two sides read different samples"
        side = "contender" if first.samples_of else "baseline"
        return f"the {side} does not say which samples it read"
    if first.samples is not None and first.samples != second.samples:
        return f"a round of the baseline serves {first.samples} samples, of the contender {second.samples}"
    return ""


def basis_of(pair: CellPair) -> tuple[str, str]:
    """Return the basis of the comparison, or "" and the reason why there is none."""
    policy, kind = pair.policy, pair.baseline.calibration
    if why_not := _other_figures(pair) or _apart(pair):
        return "", why_not
    if pair.same_environment and policy.basis != "ratio":
        return _basis_here(pair), ""
    differs = _difference(pair)
    if policy.basis == "seconds":
        return "", f"seconds were asked for, and {differs}"
    if not pair.calibrated:
        return "", f"no calibration on both sides, and {differs}"
    if pair.same_environment or carries_over(kind, policy.trust_calibration):
        return f"ratio to {kind}", ""
    return "", f"ratios to {kind!r} have not been shown to carry over to another machine, and {differs}"


def _basis_here(pair: CellPair) -> str:
    """Return the basis for two sides of one environment."""
    if pair.paired:
        return INTERLEAVED
    if pair.policy.basis == "auto" and pair.adjustment is not None:
        return ADJUSTED
    return SECONDS if pair.calibrated or pair.policy.basis == "seconds" else UNCALIBRATED


def _apart(pair: CellPair) -> str:
    """Return the reason why the replicates of interleaved sides do not pair, or "".

    The side that ran last may have been interrupted, so it may have fewer. One that lacks an earlier replicate may have
    lost a slow one.
    """
    if not pair.paired:
        return ""
    first, second = (
        sorted({replicate.number for replicate in side.replicates})
        for side in (pair.baseline, pair.contender)
    )
    common = set(first) & set(second)
    if not common:
        before, after = (", ".join(map(str, each[:_MOST_NUMBERS])) or "none" for each in (first, second))
        return f"no replicate ran on both sides: the baseline has {before}, the contender {after}"
    for name, own, other in (("baseline", first, second), ("contender", second, first)):
        lost = [number for number in other if number not in own and number < max(common)]
        if lost:
            return f"the {name} lacks replicate {lost[0]}, although it has later ones"
    return ""


def _other_figures(pair: CellPair) -> str:
    """Return why the times of the two sides are different figures, or ""."""
    first, second = pair.baseline, pair.contender
    if first.figure != second.figure:
        return f"the baseline holds the {first.figure} of each session, the contender the {second.figure}: make a new baseline"
    if first.rounds and second.rounds and second.rounds < first.rounds:
        return f"a session of the baseline has {first.rounds} rounds, of the contender {second.rounds}"
    return ""


def _difference(pair: CellPair) -> str:
    """Return the differences of two environments in words."""
    before, after = pair.baseline.environment, pair.contender.environment
    if not before.key or not after.key:
        return "the environment of one side is unknown or not unique"
    if before.key == after.key:
        return "the policy allows ratios only"
    names = [
        name for name in {**before.match, **after.match} if before.match.get(name) != after.match.get(name)
    ]
    changes = [f"{name} {before.match.get(name)} -> {after.match.get(name)}" for name in names]
    return "another environment: " + ("; ".join(changes) or f"{before.key} -> {after.key}")


def resembling(missing: CellData, others: Iterable[CellData]) -> str:
    """Return the new cell of the contender that a missing one has become, and the changes, or ""."""
    nearest: tuple[int, str] = (_MOST_CHANGES + 1, "")
    for candidate in others:
        if missing.rerun == candidate.rerun and missing.rerun:
            return f"its benchmark is called {candidate.label} now"
        if not missing.asked or not candidate.asked:
            continue
        names = [
            name
            for name in {**missing.asked, **candidate.asked}
            if missing.asked.get(name) != candidate.asked.get(name)
        ]
        if len(names) < nearest[0]:
            changes = ", ".join(
                f"{name} {missing.asked.get(name)} -> {candidate.asked.get(name)}" for name in names
            )
            nearest = len(names), f"the contender has it with {changes}"
    return nearest[1]
