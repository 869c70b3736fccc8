"""What a check says of planted sides, and with which exit code."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench.check.judge import CellState, judge
from storebench.check.outcome import outcome
from storebench.check.policy import Policy
from storebench.check.sides.read import read_side
from tests.support.checked import check, run
from tests.support.planted_sides import (
    CELLS,
    ELSEWHERE,
    HERE,
    record,
    run_of,
    write_run,
    write_sessions,
)


def test_the_same_code_is_within_noise(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2)
    states = {result.state for result in check(first, second).values()}
    assert CellState.WORSE not in states
    assert CellState.WITHIN_NOISE in states
    code, text = run(first, second)
    assert code == 0
    assert "no regression in 5 cells" in text


@pytest.mark.parametrize("cell", CELLS)
def test_a_slow_down_is_found_in_its_cell_and_in_no_other(tmp_path: Path, cell: str) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2, slower={cell: 1.3})
    found = check(first, second)
    assert [name for name, one in found.items() if one.state is CellState.WORSE] == [cell]
    assert 1.2 < (found[cell].ratio or 0) < 1.4
    code, text = run(first, second)
    assert code == 1
    assert cell in text


def test_a_speed_up_is_no_regression(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2, slower={CELLS[0]: 0.7})
    assert check(first, second)[CELLS[0]].state is CellState.BETTER
    assert run(first, second)[0] == 0


def test_a_tenth_is_never_within_noise_where_the_floor_is_below_it(tmp_path: Path) -> None:
    for seed in range(20):
        first = write_sessions(tmp_path / f"a{seed}", seed=2 * seed)
        second = write_sessions(tmp_path / f"b{seed}", seed=2 * seed + 1, slower={CELLS[2]: 1.1})
        one = check(first, second)[CELLS[2]]
        assert one.floor_frac is not None
        assert one.floor_frac < 0.1
        assert one.state in (CellState.WORSE, CellState.INCONCLUSIVE)


def test_a_slow_down_below_the_noise_floor_is_inconclusive(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=3, noise=0.3)
    second = write_sessions(tmp_path / "b", seed=4, noise=0.3, slower={CELLS[0]: 1.1})
    found = check(first, second)
    assert found[CELLS[0]].state is CellState.INCONCLUSIVE
    assert CellState.WORSE not in {result.state for result in found.values()}
    assert run(first, second)[0] == 4


def test_a_tolerated_slow_down_passes(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2, slower={CELLS[0]: 1.3})
    policy = tmp_path / "policy.toml"
    policy.write_text('[[cells]]\nmatch = "read/lmdb/*"\npractical_frac = 0.5\n')
    assert run(first, second, "--policy", policy)[0] == 0


def test_another_machine_is_refused_unless_its_calibration_is_trusted(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2, scale=2.0, machine=ELSEWHERE)
    code, text = run(first, second)
    assert code == 3
    assert "ratios to 'memory' have not been shown to carry over" in text
    assert "cpu planted -> another" in text
    found = check(first, second, trust_calibration=["memory"])
    assert {result.state for result in found.values()} == {CellState.WITHIN_NOISE}
    assert {result.basis for result in found.values()} == {"ratio to memory"}
    assert {result.state for result in check(first, second, trust_calibration=["inflate"]).values()} == {
        CellState.NOT_COMPARABLE
    }


@pytest.mark.parametrize(("slower", "state"), [(1.15, CellState.WITHIN_NOISE), (1.4, CellState.WORSE)])
def test_another_machine_has_a_threshold_of_its_own(tmp_path: Path, slower: float, state: CellState) -> None:
    first = write_sessions(tmp_path / "a", seed=1, noise=0.001)
    second = write_sessions(tmp_path / "b", seed=2, noise=0.001, machine=ELSEWHERE, slower={CELLS[0]: slower})
    assert check(first, second, trust_calibration=["memory"])[CELLS[0]].state is state
    here = write_sessions(tmp_path / "c", seed=2, noise=0.001, slower={CELLS[0]: slower})
    assert check(first, here)[CELLS[0]].state is CellState.WORSE


def test_only_equal_calibrations_are_compared(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(
        tmp_path / "b", seed=2, machine=ELSEWHERE, change=lambda extra: extra.update(calibration="inflate")
    )
    found = check(first, second, trust_calibration=["memory", "inflate"])
    assert {result.state for result in found.values()} == {CellState.NOT_COMPARABLE}
    assert "no calibration on both sides" in found[CELLS[0]].reason


def test_a_cell_whose_time_is_not_compared_is_not_gated(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[[cells]]\nmatch = "{CELLS[0]}"\ngate_time = false\n', encoding="utf-8")
    first = write_sessions(tmp_path / "a", seed=1)
    slow = write_sessions(tmp_path / "b", seed=2, slower={CELLS[0]: 3})
    code, text = run(first, slow, "--policy", policy)
    assert (code, "1 not gated" in text) == (0, True), text
    assert "within noise" not in next(line for line in text.splitlines() if line.startswith(CELLS[0]))
    calls = {CELLS[0]: {"read_calls": 2048}}
    more = write_sessions(tmp_path / "c", seed=2, counters=calls)
    code, text = run(first, more, "--policy", policy)
    assert (code, "read_calls 1,024 -> 2,048" in text) == (1, True), text


@pytest.mark.parametrize("match", ["*", "read/*"])
def test_a_policy_that_compares_no_time_is_refused(match: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[[cells]]\nmatch = "{match}"\ngate_time = false\n', encoding="utf-8")
    sides = [write_sessions(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    code, text = run(*sides, "--policy", policy)
    assert (code, "compares the time of no cell" in text) == (2, True), text


def test_two_unknown_machines_are_not_one(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1, machine=None)
    second = write_sessions(tmp_path / "b", seed=2, machine=None)
    assert {result.state for result in check(first, second).values()} == {CellState.NOT_COMPARABLE}
    # Bytes on disk may differ between machines: nobody knows whether these two are one.
    disk = {CELLS[1]: {"bytes_on_disk": 8_000_000}}
    third = write_sessions(tmp_path / "c", seed=2, machine=None, counters=disk)
    assert check(first, third)[CELLS[1]].state is CellState.NOT_COMPARABLE


def test_a_machine_that_changed_decides_nothing(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    slower = write_sessions(tmp_path / "b", seed=2, scale=2.0)
    found = check(first, slower)
    assert {result.state for result in found.values()} == {CellState.INCONCLUSIVE}
    assert "the calibration itself took 2.0" in found[CELLS[0]].reason
    assert found[CELLS[0]].ratio == pytest.approx(2, rel=0.1)
    assert found[CELLS[0]].calibrated_ratio == pytest.approx(1, rel=0.1)
    assert run(first, slower)[0] == 4
    # A faster machine must not hide a slow-down: twice the code's time on a machine of twice the speed.
    faster = write_sessions(tmp_path / "c", seed=2, scale=0.5, slower={CELLS[0]: 2.0})
    assert check(first, faster)[CELLS[0]].state is CellState.INCONCLUSIVE
    # What the seconds and the calibrated ratio both show is decided.
    both = write_sessions(tmp_path / "d", seed=2, scale=1.3, slower={CELLS[0]: 2.0})
    assert check(first, both)[CELLS[0]].state is CellState.WORSE


def test_a_busy_machine_is_no_regression_and_hides_none(tmp_path: Path) -> None:
    def beside(cores: float) -> dict[str, Any]:
        return {"change": lambda extra: extra.update(busy_cores=cores)}

    idle = write_sessions(tmp_path / "a", seed=1, noise=0.001, **beside(0.0))
    busy = write_sessions(tmp_path / "b", seed=2, noise=0.001, slower={CELLS[0]: 1.5}, **beside(0.9))
    found = check(idle, busy)
    assert found[CELLS[0]].state is CellState.INCONCLUSIVE
    assert "other processes used 0.00 cores beside the baseline and 0.90" in found[CELLS[0]].reason
    assert found[CELLS[1]].state is CellState.WITHIN_NOISE  # as fast although the machine was busier
    back = check(busy, idle)
    assert back[CELLS[0]].state is CellState.INCONCLUSIVE
    assert (
        back[CELLS[1]].state is CellState.INCONCLUSIVE
    )  # an idle machine could have made up for a slow-down
    both = write_sessions(tmp_path / "c", seed=3, noise=0.001, slower={CELLS[1]: 1.5}, **beside(0.9))
    assert check(busy, both)[CELLS[1]].state is CellState.WORSE


def test_most_rounds_five_times_slower_are_a_regression(tmp_path: Path) -> None:
    def nine_of_twelve(cell: str, seconds: list[float]) -> list[float]:
        return [one * (5 if cell == CELLS[0] and n < 9 else 1) for n, one in enumerate(seconds)]

    first = write_sessions(tmp_path / "a", seed=1, rounds=12)
    second = write_sessions(tmp_path / "b", seed=2, rounds=12, shape=nine_of_twelve)
    found = check(first, second)
    assert found[CELLS[0]].state is CellState.WORSE
    assert found[CELLS[0]].ratio == pytest.approx(5, rel=0.1)
    assert run(first, second)[0] == 1


@pytest.mark.parametrize(
    ("stall", "policy", "state"),
    [
        (5.0, {}, CellState.WORSE),
        (1.3, {}, CellState.WITHIN_NOISE),
        (5.0, {"tail_frac": 9.0}, CellState.WITHIN_NOISE),
        (5.0, {"cells": [{"match": "read/*", "tail_frac": 9.0}]}, CellState.WITHIN_NOISE),
    ],
)
def test_a_stall_in_one_of_ten_rounds_is_seen(
    tmp_path: Path, stall: float, policy: dict[str, Any], state: CellState
) -> None:
    def stalled(cell: str, seconds: list[float]) -> list[float]:
        return [seconds[0] * (stall if cell == CELLS[0] else 1), *seconds[1:]]

    first = write_sessions(tmp_path / "a", seed=1, rounds=10, noise=0.001)
    second = write_sessions(tmp_path / "b", seed=2, rounds=10, noise=0.001, shape=stalled)
    found = check(first, second, **policy)
    assert found[CELLS[0]].state is state
    assert found[CELLS[0]].tail_ratio == pytest.approx(stall, rel=0.1)
    assert found[CELLS[0]].ratio == pytest.approx(1, rel=0.05)
    assert found[CELLS[1]].state is CellState.WITHIN_NOISE


def test_stalls_in_some_sessions_only_decide_nothing(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1, rounds=10, noise=0.001)
    second = write_sessions(tmp_path / "b", seed=2, rounds=10, noise=0.001)
    for number in (0, 1):
        path = second / f"session-{number}.json"
        raw = json.loads(path.read_text())
        raw["benchmarks"][0]["stats"]["data"][0] *= 8
        path.write_text(json.dumps(raw))
    one = check(first, second)[CELLS[0]]
    assert one.state is CellState.INCONCLUSIVE
    assert one.reason.startswith("the slowest tenth of the rounds took")
    wide = check(first, second, practical_frac=0.0001)[CELLS[0]]
    assert wide.reason.startswith("a slow-down of 0.01% is not ruled out; the slowest tenth")
    assert "slowest tenth" in wide.reason


def test_a_session_is_its_median_round(tmp_path: Path) -> None:
    def spread(_cell: str, seconds: list[float]) -> list[float]:
        return [1e-3 * factor for factor in (1, 2, 3, 4, 5, 6, 7)][: len(seconds)]

    folder = write_sessions(tmp_path / "a", rounds=7, shape=spread, cells=CELLS[:1])
    (cell,) = read_side(folder, baseline=True).cells.values()
    assert [replicate.seconds * 1024 for replicate in cell.replicates] == pytest.approx([4e-3] * 5)
    # The calibration varies by 1% about 1 ms.
    assert [replicate.relative for replicate in cell.replicates] == pytest.approx([4.0] * 5, rel=0.05)
    assert [(replicate.tail_s or 0) * 1024 for replicate in cell.replicates] == pytest.approx([7e-3] * 5)


def test_seconds_of_two_machines_are_not_compared(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('basis = "seconds"\n')
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2, machine=ELSEWHERE)
    code, text = run(first, second, "--policy", policy)
    assert code == 3
    assert "cpu planted -> another" in text
    assert run(first, write_sessions(tmp_path / "c", seed=3), "--policy", policy)[0] == 0


def test_ratios_that_the_policy_asks_for_need_a_calibration(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1, change=lambda extra: extra.clear())
    second = write_sessions(tmp_path / "b", seed=2, change=lambda extra: extra.clear())
    found = check(first, second, basis="ratio").values()
    assert {result.state for result in found} == {CellState.NOT_COMPARABLE}
    assert {result.reason for result in found} == {
        "no calibration on both sides, and the policy allows ratios only"
    }


def test_the_side_that_does_not_say_what_it_read_is_named(tmp_path: Path) -> None:
    silent = write_sessions(tmp_path / "a", change=lambda extra: extra.update(samples_of=""))
    second = write_sessions(tmp_path / "b", seed=2)
    code, text = run(silent, second)
    assert code == 3
    assert "the baseline does not say which samples it read" in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"samples_of": "beef"}, "the two sides read different samples"),
        ({"samples_of": ""}, "the contender does not say which samples it read"),
        ({"samples": 512}, "a round of the baseline serves 1024 samples, of the contender 512"),
    ],
)
def test_other_work_is_not_comparable(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    first = write_sessions(tmp_path / "a")

    def shrunk(_cell: str, seconds: list[float]) -> list[float]:
        return [one * change.get("samples", 1024) / 1024 for one in seconds]

    second = write_sessions(tmp_path / "b", seed=2, shape=shrunk, change=lambda extra: extra.update(change))
    code, text = run(first, second)
    assert code == 3
    assert says in text


def test_fewer_rounds_are_not_comparable(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", rounds=12)
    second = write_sessions(tmp_path / "b", seed=2, rounds=3)
    code, text = run(first, second)
    assert code == 3
    assert "a session of the baseline has 12 rounds, of the contender 3" in text
    assert run(second, first)[0] == 0


def test_one_file_uses_its_rounds_and_a_wider_threshold(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", 1, seed=1)
    slow = write_sessions(tmp_path / "b", 1, seed=2, slower={CELLS[0]: 1.5})
    mild = write_sessions(tmp_path / "c", 1, seed=2, slower={CELLS[0]: 1.15})
    assert run(first / "session-0.json", slow / "session-0.json")[0] == 1
    assert run(first / "session-0.json", mild / "session-0.json")[0] == 0


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2), (2, 2)])
def test_few_replicates_of_either_side_are_inconclusive(tmp_path: Path, before: int, after: int) -> None:
    first = run_of(tmp_path / "a", {"lmdb": 1e-6}, replicates=before)
    second = run_of(tmp_path / "b", {"lmdb": 2e-6}, replicates=after)
    (one,) = check(first, second).values()
    assert one.state is CellState.INCONCLUSIVE
    assert "2 replicates, the policy asks for 3; 1 more replicate on each side would decide it" in one.reason
    assert one.more_rounds == 1


def test_below_the_floor_of_the_noisier_side_nothing_alarms(tmp_path: Path) -> None:
    """The interval leaves out 1, but two runs of the noisier side differ by as much."""
    spread = 0.1
    step = spread / math.sqrt(1.2)  # six values, half of them above and half below, have a deviation of 0.1
    noisy = [record("lmdb", n, 1e-6 * math.exp(step * (-1) ** n)) for n in range(6)]
    steady = [record("lmdb", n, 1e-6 * math.exp(1.2 * spread + 0.001 * (-1) ** n)) for n in range(6)]
    first, second = write_run(tmp_path / "a", noisy), write_run(tmp_path / "b", steady)
    (one,) = check(first, second).values()
    assert (one.low or 0) > 1
    assert (one.p_adjusted or 1) < 0.05
    assert (one.ratio or 0) > 1.08
    assert one.state is CellState.INCONCLUSIVE


def test_holm_keeps_forty_cells_of_the_same_code_quiet() -> None:
    """Forty cells at 5% spread, of which some would exceed a plain limit of 10%."""
    from storebench.check.sides.model import CellData, MachineAndStorage, Replicate, Side

    rng = np.random.default_rng(0)

    def side() -> Side:
        cells = {}
        for number in range(40):
            costs = np.exp(rng.normal(0, 0.05, 5))
            replicates = tuple(
                Replicate(number=i, seconds=1.0, relative=float(c)) for i, c in enumerate(costs)
            )
            cells[str(number)] = CellData(
                cell_id=str(number),
                label=str(number),
                calibration="gather",
                environment=MachineAndStorage(**HERE),
                replicates=replicates,
            )
        return Side(source="planted", kind="pytest-benchmark", cells=cells)

    red = 0
    for _ in range(100):
        results = judge(side(), side(), Policy())
        red += outcome(results, Policy()).exit_code == 1
    assert red <= 5
