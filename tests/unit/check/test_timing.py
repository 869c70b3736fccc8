"""The comparison of one cell's times: paired or not, by seconds or by ratios, with and without tails."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from storebench.check.judge import judge
from storebench.check.pairs import INTERLEAVED, CellPair
from storebench.check.policy import Policy
from storebench.check.result import CellResult, CellState
from storebench.check.sides.model import CellData, MachineAndStorage, Replicate, Side
from storebench.check.timing import Timing, compare_times, corrected
from storebench.stats import Verdict, holm

HERE = MachineAndStorage(key="here", match={"cpu": "planted"})
TAIL = "slowest tenth of the rounds"


def cell(seconds: Sequence[float], *, machine: float = 1.0, first: int = 0, **changes: Any) -> CellData:
    """Return a cell whose replicates took so long, on a machine that is slower by a factor."""
    replicates = tuple(
        Replicate(number=number, seconds=value * machine, relative=value, tail_s=3 * value * machine)
        for number, value in enumerate(seconds, start=first)
    )
    fields: dict[str, Any] = {
        "cell_id": "a",
        "label": "read/a",
        "environment": HERE,
        "replicates": replicates,
    }
    return CellData(**(fields | changes))


def timing(before: CellData, after: CellData, basis: str = "seconds", *, paired: bool = False) -> Timing:
    return compare_times(CellPair(baseline=before, contender=after, paired=paired, policy=Policy()), basis)


def interleaved(before: Sequence[float], after: Sequence[float]) -> CellResult:
    """Return the verdict on two sides that took turns."""
    first, second = (
        Side(source="planted", kind="records", pairing="one", cells={"a": cell(seconds)})
        for seconds in (before, after)
    )
    [result] = judge(first, second, Policy())
    return result


def test_a_ratio_is_that_of_contender_over_baseline() -> None:
    found = timing(cell([1.0, 1.01, 0.99, 1.0]), cell([2.0, 2.02, 1.98, 2.0]))
    assert found.time.ratio == pytest.approx(2.0)
    assert found.time.verdict is Verdict.SLOWER
    assert found.time.low is not None
    assert found.time.high is not None
    assert 1.9 < found.time.low < 2.0 < found.time.high < 2.1


def test_pairs_leave_out_what_changed_for_both_sides_alike() -> None:
    before, after = cell([1.0, 2.0, 4.0, 8.0]), cell([2.0, 4.04, 7.96, 16.0])
    together, apart = timing(before, after, INTERLEAVED, paired=True), timing(before, after)
    assert together.time.ratio == pytest.approx(2.0, rel=1e-2)
    assert together.time.verdict is Verdict.SLOWER
    assert apart.time.verdict is Verdict.INCONCLUSIVE


def test_rounds_that_one_side_lacks_are_left_out_of_pairs() -> None:
    found = timing(cell([9.0, 1.0, 1.0, 1.0]), cell([1.0, 1.0, 1.0, 9.0], first=1), INTERLEAVED, paired=True)
    assert found.time.ratio == pytest.approx(1.0)
    assert found.time.rounds == 3


def test_a_slower_machine_is_no_slow_down_in_ratios() -> None:
    before, after = cell([1.0, 1.01, 0.99]), cell([1.0, 1.01, 0.99], machine=3.0)
    assert timing(before, after, "ratio to memory").time.ratio == pytest.approx(1.0)
    assert timing(before, after).time.ratio == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("before", "after", "compared"),
    [
        (TAIL, TAIL, True),
        ("", "", False),
        (TAIL, "p95 of the steps", False),
    ],
)
def test_only_tails_of_the_same_quantity_are_compared(before: str, after: str, compared: bool) -> None:
    found = timing(cell([1.0] * 3, tail_of=before), cell([2.0] * 3, tail_of=after))
    assert (found.tail is not None) is compared
    if found.tail is not None:
        assert found.tail.ratio == pytest.approx(2.0)


def test_tails_of_two_machines_are_not_compared() -> None:
    there = MachineAndStorage(key="there", match={"cpu": "another"})
    assert (
        timing(cell([1.0] * 3, tail_of=TAIL), cell([1.0] * 3, tail_of=TAIL, environment=there)).tail is None
    )


def test_a_correction_covers_times_and_tails_of_all_cells() -> None:
    one = timing(cell([1.0, 1.1, 0.9], tail_of=TAIL), cell([1.25, 1.3, 1.2], tail_of=TAIL))
    assert one.tail is not None
    raw = (one.time.p_value, one.tail.p_value)
    assert raw[0] is not None
    assert raw[1] is not None
    for cells in (1, 5):
        found = corrected([one] * cells)
        expected = holm([raw[0]] * cells + [raw[1]] * cells)
        assert [each.time.p_adjusted for each in found] == pytest.approx(expected[:cells])
        assert [each.tail.p_adjusted for each in found] == pytest.approx(expected[cells:])
        assert found[0].time.p_adjusted == pytest.approx(min(1.0, 2 * cells * min(raw)))


def test_a_cell_that_may_only_be_faster_is_within_noise() -> None:
    result = interleaved([1.0] * 5, [0.7, 0.9, 1.0, 0.8, 0.95])
    assert (result.low or 1) < 1 / 1.08 < 1 < (result.high or 2) < 1.08
    assert (result.state, result.reason) == (CellState.WITHIN_NOISE, "no slow-down of 8%; it may be faster")


def test_a_cell_that_may_be_slower_says_that_it_is_not_ruled_out() -> None:
    result = interleaved([1.0] * 5, [1.2, 1.0, 0.98, 1.1, 1.02])
    assert result.state is CellState.INCONCLUSIVE
    assert result.reason.startswith("a slow-down of 8% is not ruled out; ")
    assert result.reason.endswith(" more replicates on each side would decide it")


CALM, NOISY = [1.0, 1.02, 0.98, 1.01, 0.99], [1.05, 1.25, 0.9, 1.15, 1.0]


def more_rounds(before: list[float], after: list[float], *, cells: int = 1, **fields: Any) -> int:
    """Return the number of further replicates that would decide the first of some equal cells of two separate runs."""
    first, second = (
        Side(
            source="planted",
            kind="records",
            cells={f"{n}": cell(seconds, cell_id=f"{n}", **fields) for n in range(cells)},
        )
        for seconds in (before, after)
    )
    result, *_ = judge(first, second, Policy(basis="seconds"))
    assert result.state is CellState.INCONCLUSIVE
    assert result.more_rounds is not None
    return result.more_rounds


def test_the_correction_for_all_cells_and_tails_takes_more_rounds() -> None:
    alone = more_rounds(NOISY, NOISY)
    assert more_rounds(NOISY, NOISY, tail_of=TAIL) == more_rounds(NOISY, NOISY, cells=2) > alone
    assert more_rounds(NOISY, NOISY, cells=8) > more_rounds(NOISY, NOISY, cells=2)


def test_the_noisier_side_decides_how_many_rounds_would_tell() -> None:
    both = more_rounds(NOISY, NOISY)
    assert more_rounds(CALM, NOISY) == both == more_rounds(NOISY, CALM)


@pytest.mark.parametrize("spread", [0.01, 0.05])
def test_a_slow_down_at_the_threshold_is_hardly_ever_within_noise(spread: float) -> None:
    rng, trials = np.random.default_rng(1), 400
    noise = np.exp(rng.normal(0, spread, (2, trials, 5)))
    found = [interleaved(list(a), list(1.08 * b)).state for a, b in zip(*noise, strict=True)]
    # 2.5% of 400 are 10; more than 17 come with a probability of 1%.
    assert found.count(CellState.WITHIN_NOISE) <= 17
