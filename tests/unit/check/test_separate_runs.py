"""Two runs that were not interleaved: without a calibration they decide nothing, and a second run clears what it can."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from storebench.check.confirm import confirmed
from storebench.check.judge import CellResult, CellState, judge
from storebench.check.outcome import outcome
from storebench.check.pairs import UNCALIBRATED
from storebench.check.policy import Policy
from storebench.check.sides.model import CellData, MachineAndStorage, Replicate, Side
from storebench.cli.main import app
from storebench.errors import EXIT_INCONCLUSIVE, EXIT_NOT_COMPARABLE, EXIT_OK
from storebench.runs.records import PAIRING_NAME, read_records
from tests.support.planted_sides import CELLS, run_of, write_run, write_sessions

OWN = 0.03
"""How much a cell differs from session to session, as a standard deviation of logarithms."""

FASTER = math.log(0.7)


def side(
    rng: np.random.Generator,
    *,
    slower: float = 1.0,
    drift: float = 0.0,
    restless: float = 0.02,
    between: float = 0.0,
    busy: float | None = None,
    calibrated: bool = True,
) -> Side:
    """Return five sessions of one cell.

    The machine is `drift` slower than usual, differs by `restless` from session to session, and by `between` from run
    to run in a way that no calibration shows; all of them are logarithms.
    """
    machine = rng.normal(drift, restless, 5)
    logs = machine + rng.normal(0, OWN, 5) + rng.normal(0, between) + math.log(slower)
    replicates = tuple(
        Replicate(
            number=number,
            seconds=float(seconds),
            relative=float(seconds / beside) if calibrated else None,
            machine_s=float(beside) if calibrated else None,
            busy_cores=busy,
        )
        for number, (seconds, beside) in enumerate(zip(np.exp(logs), np.exp(machine), strict=True))
    )
    one = CellData(
        cell_id="a",
        label="a",
        calibration="memory" if calibrated else "",
        environment=MachineAndStorage(key="here"),
        replicates=replicates,
        rerun="a",
    )
    return Side(source="planted", kind="pytest-benchmark", cells={"a": one})


def verdict(first: Side, second: Side, policy: Policy | None = None) -> CellResult:
    [result] = judge(first, second, policy or Policy())
    return result


def after_second_run(first: Side, second: Side, again: Side) -> CellResult:
    [result] = confirmed([verdict(first, second)], (first, second), (first, again), Policy())
    return result


@pytest.mark.parametrize("between", [0.04, 0.1, 0.2])
def test_the_same_code_never_alarms_without_a_calibration(between: float) -> None:
    rng, own = np.random.default_rng(1), Policy(basis="seconds")

    def drawn() -> Side:
        return side(rng, between=between, calibrated=False)

    pairs = [(drawn(), drawn()) for _ in range(100)]
    found = {verdict(*pair).state for pair in pairs}
    assert found <= {CellState.WITHIN_NOISE, CellState.INCONCLUSIVE}
    alarms = sum(verdict(*pair, own).state is CellState.WORSE for pair in pairs)
    assert alarms >= 4, "a policy that asks for seconds takes this risk, so the rule is needed"


def test_a_slow_down_without_a_calibration_still_leaves_exit_code_4() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        result = verdict(side(rng, calibrated=False), side(rng, slower=1.5, calibrated=False))
        assert (result.state, result.basis) == (CellState.INCONCLUSIVE, UNCALIBRATED)
        assert outcome([result], Policy()).exit_code == EXIT_INCONCLUSIVE
        assert "nothing calibrated the two runs; 'storebench bench --against'" in result.reason
        assert not result.suspected, "a second run could not tell either"
        assert result.more_rounds is None


def test_a_speed_up_without_a_calibration_is_not_proven_either() -> None:
    rng = np.random.default_rng(3)
    result = verdict(side(rng, slower=1.5, calibrated=False), side(rng, calibrated=False))
    assert result.state is CellState.INCONCLUSIVE
    assert outcome([result], Policy(max_inconclusive_frac=1)).exit_code == EXIT_OK


def test_a_cell_that_may_be_faster_passes_only_with_a_calibration() -> None:
    rng = np.random.default_rng(4)
    drawn = [(side(rng, calibrated=False), side(rng, slower=0.93, calibrated=False)) for _ in range(20)]
    alone = [verdict(*pair) for pair in drawn]
    for result in alone:
        assert result.state is CellState.INCONCLUSIVE or (result.low or 0) >= 1 / 1.08
    assert any("it may be faster, but nothing calibrated the two runs" in result.reason for result in alone)
    asked = [verdict(*pair, Policy(basis="seconds")) for pair in drawn]
    assert any(
        "it may be faster" in result.reason and result.state is CellState.WITHIN_NOISE for result in asked
    )


def test_benchmarks_without_a_calibration_alarm_if_a_policy_says_so(tmp_path: Path) -> None:
    def uncalibrated(extra: dict[str, Any]) -> None:
        extra.update(calibration="", calibration_s=[])

    first = write_sessions(tmp_path / "a", seed=1, change=uncalibrated)
    second = write_sessions(tmp_path / "b", seed=2, change=uncalibrated, slower={CELLS[0]: 1.5})
    code, text = check(first, second, "--confirm")
    assert (code, f"{CELLS[0]} " in text, "running" in text) == (4, True, False)
    (tmp_path / "policy.toml").write_text('basis = "seconds"\n', encoding="utf-8")
    assert check(first, second, "--policy", tmp_path / "policy.toml")[0] == 1


def test_a_slow_down_is_not_cleared_by_a_machine_that_got_faster() -> None:
    rng = np.random.default_rng(4)
    for _ in range(30):
        result = after_second_run(side(rng), side(rng, slower=1.3), side(rng, slower=1.3, drift=FASTER))
        assert result.state is CellState.INCONCLUSIVE
        assert result.confirmed is False
        assert "a second run decides nothing (-" in result.reason
        assert "the calibration itself took 0." in result.reason
        assert outcome([result], Policy()).exit_code == EXIT_INCONCLUSIVE


def test_a_second_run_is_judged_by_its_own_calibration_where_it_can_be() -> None:
    rng = np.random.default_rng(5)
    found = [
        after_second_run(
            side(rng, restless=0.25),
            side(rng, slower=1.3, restless=0.25),
            side(rng, slower=1.3, drift=FASTER / 2, restless=0.25),
        )
        for _ in range(20)
    ]
    assert sum(one.state is CellState.WORSE for one in found) >= 14
    assert all(outcome([one], Policy()).exit_code != EXIT_OK for one in found)


def test_a_faster_machine_clears_a_cell_that_gained_as_much() -> None:
    rng, cleared = np.random.default_rng(6), 0
    for _ in range(20):
        result = after_second_run(side(rng), side(rng, slower=1.5), side(rng, drift=FASTER))
        assert result.state is CellState.INCONCLUSIVE
        cleared += "which a second run does not confirm" in result.reason
    assert cleared >= 15


def test_a_quieter_machine_does_not_clear_what_was_slow_beside_a_busy_one() -> None:
    rng = np.random.default_rng(7)
    baseline, slow = side(rng, busy=1.0), side(rng, slower=1.5, busy=1.0)
    quiet = after_second_run(baseline, slow, side(rng, busy=0.0))
    alike = after_second_run(baseline, slow, side(rng, busy=1.0))
    assert "a second run decides nothing" in quiet.reason
    assert "other processes used 1.00 cores beside the baseline and 0.00" in quiet.reason
    assert "which a second run does not confirm" in alike.reason


def check(*arguments: Any) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", *map(str, arguments)])
    return done.exit_code, done.output


def interleaved(tmp_path: Path, lmdb: dict[int, int]) -> tuple[Path, Path]:
    """Return two runs of one pairing; `lmdb` gives the numbers that the replicates of LMDB have in the contender."""
    cells = {"lmdb": 1e-6, "hdf5": 2e-6}
    baseline, source = (run_of(tmp_path / name, cells, seed=seed) for seed, name in enumerate("ac"))
    numbered = [
        dataclasses.replace(record, replicate=lmdb[record.replicate])
        if record.cell.backend.name == "lmdb"
        else record
        for record in read_records(source)
        if record.cell.backend.name != "lmdb" or record.replicate in lmdb
    ]
    contender = write_run(tmp_path / "b", numbered)
    for folder in (baseline, contender):
        (folder / PAIRING_NAME).write_text('{"pairing": "same"}', encoding="utf-8")
    return baseline, contender


@pytest.mark.parametrize(
    ("lmdb", "line"),
    [
        ({0: 7, 1: 8}, "no replicate ran on both sides: the baseline has 0, 1, 2, 3, 4, the contender 7, 8"),
        ({0: 0, 1: 1, 3: 3, 4: 4}, "the contender lacks replicate 2, although it has later ones"),
        ({0: 1, 1: 2, 2: 3}, "the contender lacks replicate 0, although it has later ones"),
    ],
)
def test_interleaved_sides_whose_replicates_are_no_pairs_are_one_line(
    tmp_path: Path, lmdb: dict[int, int], line: str
) -> None:
    code, text = check(*interleaved(tmp_path, lmdb))
    assert code == EXIT_NOT_COMPARABLE, text
    assert text.splitlines()[-1].startswith("not comparable, 1 of 2 cells: cifar10/lmdb/")
    assert line in text.splitlines()[-1]


def test_a_side_that_was_interrupted_is_compared_by_what_both_have(tmp_path: Path) -> None:
    code, text = check(*interleaved(tmp_path, {0: 0, 1: 1, 2: 2}))
    assert code in (EXIT_OK, EXIT_INCONCLUSIVE), text
    assert "although it has" not in text


@pytest.mark.parametrize("left", [4, 5])
def test_a_second_run_of_interleaved_sides_needs_no_whole_first_one(left: int) -> None:
    """The contender may have been interrupted in its last replicate; both sides run again, all of them."""
    rng = np.random.default_rng(8)
    pairs = [
        [dataclasses.replace(side(rng, slower=slower), pairing=name) for slower in (1.0, 1.5)]
        for name in ("first", "again")
    ]
    (baseline, contender), (baseline_again, contender_again) = pairs
    cut = dataclasses.replace(contender.cells["a"], replicates=contender.cells["a"].replicates[:left])
    contender = dataclasses.replace(contender, cells={"a": cut})
    results = judge(baseline, contender, Policy())
    [result] = confirmed(results, (baseline, contender), (baseline_again, contender_again), Policy())
    assert (results[0].suspected, result.state, result.confirmed) == (True, CellState.WORSE, True)
    assert result.replicates == (left + 5, left + 5)
    pooled = [
        dataclasses.replace(first, cells={"a": joined(first.cells["a"], second.cells["a"], left)})
        for first, second in ((baseline, baseline_again), (contender, contender_again))
    ]
    [together] = judge(pooled[0], pooled[1], Policy())
    assert (result.ratio, result.low, result.high) == (together.ratio, together.low, together.high)


def joined(first: CellData, second: CellData, left: int) -> CellData:
    """Return so many replicates of a cell and all of its second run, under numbers of their own."""
    more = (dataclasses.replace(one, number=100 + one.number) for one in second.replicates)
    return dataclasses.replace(first, replicates=(*first.replicates[:left], *more))
