"""Seconds adjusted by their calibration: slow-downs behind a restless machine are seen, and nothing is made up."""

import math
from dataclasses import replace

import numpy as np
import pytest

from storebench.check.adjustment import Adjustment, adjustment
from storebench.check.confirm import confirmed
from storebench.check.judge import CellState, judge
from storebench.check.policy import Policy
from storebench.check.sides.model import CellData, MachineAndStorage, Replicate, Side

CELLS = tuple(f"read/{number}" for number in range(20))
RESTLESS, OWN = 0.25, 0.03
"""How much the machine differs from process to process, and the cell beyond that, as standard deviations of logarithms."""


def cell(
    name: str, rng: np.random.Generator, *, slower: float = 1.0, slope: float = 1.0, drift: float = 0.0
) -> CellData:
    """Return five sessions of a cell on a machine that is `drift` slower, in logarithms, than it was."""
    machine = rng.normal(drift, RESTLESS, 5)
    logs = slope * machine + rng.normal(0, OWN, 5) + math.log(slower)
    replicates = tuple(
        Replicate(
            number=number, seconds=float(seconds), relative=float(seconds / beside), machine_s=float(beside)
        )
        for number, (seconds, beside) in enumerate(zip(np.exp(logs), np.exp(machine), strict=True))
    )
    here = MachineAndStorage(key="here")
    return CellData(
        cell_id=name, label=name, calibration="memory", environment=here, replicates=replicates, rerun=name
    )


def side(rng: np.random.Generator, slower: dict[str, float] | None = None) -> Side:
    cells = {name: cell(name, rng, slower=(slower or {}).get(name, 1.0)) for name in CELLS}
    return Side(source="planted", kind="pytest-benchmark", cells=cells)


def adjusted(first: CellData, second: CellData) -> Adjustment:
    found = adjustment(first, second)
    assert found is not None
    return found


@pytest.mark.parametrize("drift", [0.0, 1.3 * RESTLESS])
def test_the_interval_covers_the_true_ratio_and_is_narrow(drift: float) -> None:
    rng = np.random.default_rng(3)
    covered, widths = 0, []
    for _ in range(1500):
        pair = cell("a", rng, slope=0.7), cell("a", rng, slope=0.7, slower=1.3, drift=drift)
        found = adjustment(*pair)
        if found is None:
            continue
        one = found.compare(practical_frac=0.08, alpha=0.05)
        assert one.low is not None
        assert one.high is not None
        covered += one.low <= 1.3 <= one.high
        widths.append(math.log(one.high / one.low))
    assert len(widths) > 500
    assert covered / len(widths) == pytest.approx(0.95, abs=0.015)
    assert np.median(widths) < RESTLESS * math.sqrt(2 / 5), "a quarter of what plain seconds would have"


def test_a_calibration_that_explains_nothing_removes_nothing() -> None:
    rng = np.random.default_rng(4)
    slopes = [
        found.slope for _ in range(200) if (found := adjustment(*(cell("a", rng, slope=0) for _ in "ab")))
    ]
    assert np.mean(slopes) == pytest.approx(0, abs=0.02)


def test_the_slope_is_that_of_the_machine() -> None:
    rng = np.random.default_rng(5)
    assert adjusted(cell("a", rng, slope=0.5), cell("a", rng, slope=0.5)).slope == pytest.approx(0.5, abs=0.2)


def test_a_slope_is_not_extrapolated_to_another_state_of_the_machine() -> None:
    rng = np.random.default_rng(6)
    assert adjustment(cell("a", rng), cell("a", rng, drift=4 * RESTLESS)) is None


def test_three_sessions_are_too_few_for_a_slope() -> None:
    rng = np.random.default_rng(7)
    first, second = cell("a", rng), cell("a", rng)
    few = CellData(cell_id="a", label="a", calibration="memory", replicates=first.replicates[:3])
    assert adjustment(few, second) is None


def verdicts(baseline: Side, contender: Side, again: Side) -> tuple[set[str], set[str]]:
    """Return the cells that are worse before and after a second run of the suspected ones."""
    policy = Policy()
    first = judge(baseline, contender, policy)
    second = confirmed(first, (baseline, contender), (baseline, again), policy)
    found = [
        {result.cell_id for result in results if result.state is CellState.WORSE}
        for results in (first, second)
    ]
    return found[0], found[1]


def test_a_slow_down_of_a_third_is_confirmed_on_a_restless_machine() -> None:
    rng, slower = np.random.default_rng(8), {CELLS[3]: 1.3}
    found = [verdicts(side(rng), side(rng, slower), side(rng, slower))[1] for _ in range(20)]
    assert sum(one == {CELLS[3]} for one in found) >= 18


def test_a_second_run_proves_what_one_could_not() -> None:
    rng, slower = np.random.default_rng(8), {CELLS[3]: 1.12}
    found = [verdicts(side(rng), side(rng, slower), side(rng, slower)) for _ in range(20)]
    first, second = (sum(bool(one[part]) for one in found) for part in (0, 1))
    assert second >= 15
    assert second > first


def test_a_second_run_that_is_not_slow_confirms_nothing() -> None:
    rng, policy = np.random.default_rng(11), Policy()

    def alone(slower: float) -> Side:
        one = cell("a", rng, slower=slower)
        return Side(source="planted", kind="pytest-benchmark", cells={"a": one})

    baseline, contender, again = alone(1.0), alone(1.25), alone(1.05)
    [first] = judge(baseline, contender, policy)
    [second] = confirmed([first], (baseline, contender), (baseline, again), policy)
    assert first.state is CellState.WORSE
    assert second.state is CellState.INCONCLUSIVE
    assert "a second run does not confirm" in second.reason


def test_the_same_code_is_hardly_ever_worse_and_never_confirmed() -> None:
    rng = np.random.default_rng(9)
    found = [verdicts(side(rng), side(rng), side(rng)) for _ in range(40)]
    assert sum(bool(first) for first, _ in found) <= 4
    assert not any(second for _, second in found)


def test_a_slow_first_run_alone_is_not_a_regression() -> None:
    rng = np.random.default_rng(10)
    first, second = verdicts(side(rng), side(rng, {CELLS[0]: 1.5}), side(rng))
    assert first == {CELLS[0]}
    assert second == set()


def test_a_change_that_slows_its_calibration_too_is_never_within_noise() -> None:
    rng, found = np.random.default_rng(12), []
    for _ in range(60):
        cells = cell("a", rng), cell("a", rng, slower=1.0, drift=math.log(1.3))  # both take 1.3 times as long
        first, second = (Side(source="planted", kind="pytest-benchmark", cells={"a": one}) for one in cells)
        [result] = judge(first, second, Policy())
        found.append(result)
    slower = [one for one in found if one.machine_ratio is not None and one.machine_ratio > 1.1]
    assert len(slower) > 30
    assert not {CellState.WITHIN_NOISE, CellState.BETTER} & {one.state for one in slower}


def test_a_second_run_that_cannot_be_compared_says_so() -> None:
    rng = np.random.default_rng(13)
    baseline, contender = (
        Side(source="planted", kind="pytest-benchmark", cells={"a": one})
        for one in (cell("a", rng), cell("a", rng, slower=1.5))
    )
    elsewhere = replace(cell("a", rng, slower=1.5), environment=MachineAndStorage(key="elsewhere"))
    again = Side(source="planted", kind="pytest-benchmark", cells={"a": elsewhere})
    [result] = confirmed(
        judge(baseline, contender, Policy()), (baseline, contender), (baseline, again), Policy()
    )
    assert result.state is CellState.NOT_COMPARABLE
    assert "when it was run again" in result.reason
