"""What a check makes of its sources: runs, benchmarks without our facts, older schemas, and files that are no result."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench.check.judge import CellState
from storebench.results import Ceilings, Percentiles
from tests.support.checked import check, run
from tests.support.planted_sides import (
    CELLS,
    record,
    run_of,
    write_run,
    write_sessions,
)


def test_an_older_schema_is_not_comparable_and_says_so(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a")
    older = write_sessions(tmp_path / "b", change=lambda extra: extra.update(schema_version=0))
    code, text = run(first, older)
    assert code == 3
    assert "schema version 0" in text
    assert f"benchmarks/suite/test_read.py::test[{CELLS[0]}]" in text
    raw = {"schema_version": 0}
    (tmp_path / "old.jsonl").write_text(json.dumps(raw) + "\n")
    assert run(first, tmp_path / "old.jsonl")[0] == 3


@pytest.mark.parametrize(
    "text", ['{"benchmarks": [', '{"other": 1}', '"text"', "[1, 2]", '{"benchmarks": [{}]}']
)
def test_a_file_that_is_no_result_is_one_line_and_exit_5(tmp_path: Path, text: str) -> None:
    first = write_sessions(tmp_path / "a")
    broken = tmp_path / "broken.json"
    broken.write_text(text)
    code, output = run(first, broken)
    assert code == 5
    assert len(output.strip().splitlines()) == 1
    assert "Traceback" not in output


@pytest.mark.parametrize("value", [0.0, -1.0, None, "fast"])
def test_a_duration_that_is_none_is_refused(tmp_path: Path, value: Any) -> None:
    first = write_sessions(tmp_path / "a")
    second = write_sessions(tmp_path / "b", change=lambda extra: extra["calibration_s"].__setitem__(0, value))
    assert run(first, second)[0] == 5


def test_benchmarks_without_our_facts_are_compared_in_seconds(tmp_path: Path) -> None:
    def plain(extra: dict[str, Any]) -> None:
        extra.clear()

    first = write_sessions(tmp_path / "a", seed=1, change=plain)
    second = write_sessions(tmp_path / "b", seed=2, change=plain)
    assert {result.basis for result in check(first, second).values()} == {"seconds, not calibrated"}
    unknown = write_sessions(tmp_path / "c", seed=2, change=plain, machine=None)
    assert run(first, unknown)[0] == 3


def test_records_are_compared_in_seconds_here_and_as_ratios_elsewhere(tmp_path: Path) -> None:
    costs = {"lmdb": 2e-6, "hdf5": 5e-6, "files": 1e-4}
    first = run_of(tmp_path / "a", costs, seed=1)
    slow = run_of(tmp_path / "b", {**costs, "hdf5": 6.5e-6}, seed=2)
    found = [result for result in check(first, slow).values() if result.state is CellState.WORSE]
    assert [(result.label.split("/")[1], result.basis) for result in found] == [("hdf5", "seconds")]
    assert run(first, slow)[0] == 1
    half = {name: 2 * cost for name, cost in costs.items()}
    elsewhere = run_of(tmp_path / "c", half, seed=3, gather=5e5, key="elsewhere")
    assert run(first, elsewhere)[0] == 3
    trusted = check(first, elsewhere, trust_calibration=["memory"]).values()
    assert {(one.state, one.basis) for one in trusted} == {(CellState.WITHIN_NOISE, "ratio to memory")}
    uncalibrated = run_of(tmp_path / "d", costs, seed=4, gather=None, key="elsewhere")
    assert {result.state for result in check(first, uncalibrated, trust_calibration=["memory"]).values()} == {
        CellState.NOT_COMPARABLE
    }


def test_the_slow_steps_of_a_run_are_judged(tmp_path: Path) -> None:
    """One step in fifty waits 100 ms: the epoch takes a fifth longer, a slow step twenty times as long."""

    def steps(p99_ms: int, count: int = 100) -> dict[str, Any]:
        waits = Percentiles(p50=1_000_000, p95=2_000_000, p99=p99_ms * 1_000_000, max=200_000_000)
        return {
            "timed_steps": count,
            "timed_s": 0.01 * count,
            "data_wait_s": 0.001 * count,
            "data_wait_ns": waits,
        }

    first = run_of(tmp_path / "a", {"lmdb": 1e-6}, **steps(3))
    (same,) = check(first, run_of(tmp_path / "b", {"lmdb": 1e-6}, seed=2, **steps(4))).values()
    assert same.state is CellState.WITHIN_NOISE
    assert same.tail_ratio == pytest.approx(13 / 12)
    (slow,) = check(first, run_of(tmp_path / "c", {"lmdb": 1e-6}, seed=2, **steps(100))).values()
    assert slow.state is CellState.WORSE
    assert "the p99 of the steps took 9.08 times as long" in slow.reason
    few = run_of(tmp_path / "d", {"lmdb": 1e-6}, **steps(3, 10))
    (none,) = check(few, run_of(tmp_path / "e", {"lmdb": 1e-6}, seed=2, **steps(100, 10))).values()
    assert none.tail_ratio is None


def _floor_of_pairs(folder: Path) -> float:
    """Return the noise floor by hand: t of 10 degrees of freedom, the spread of the rounds' ratios over the root of 6."""
    rates = [
        [
            json.loads(line)["samples_per_s"]
            for line in (folder / side / "records.jsonl").read_text().splitlines()
        ]
        for side in ("baseline", "contender")
    ]
    logarithms = [math.log(first / second) for first, second in zip(*rates, strict=True)]
    return math.expm1(2.228138852 * statistics.stdev(logarithms) / math.sqrt(6))


def test_interleaved_runs_are_paired_round_by_round(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    drift = np.exp(rng.normal(0, 1.0, 6))  # the machine changes a lot from round to round, for both sides
    for side, factor in (("baseline", 1.0), ("contender", 1.2)):
        noise = np.exp(rng.normal(0, 0.01, 6))
        records = [
            record("lmdb", number, factor * drift[number] * noise[number] * 1e-6) for number in range(6)
        ]
        write_run(tmp_path / side, records)
        (tmp_path / side / "against.json").write_text(json.dumps({"pairing": "p"}))
    found = check(tmp_path / "baseline", tmp_path / "contender")
    (one,) = found.values()
    assert one.basis == "seconds, interleaved"
    assert one.state is CellState.WORSE
    assert (one.floor_frac or 1) < 0.1
    # The floor of interleaved rounds is that of independent sides: half of the spread of a difference of two.
    assert one.floor_frac == pytest.approx(_floor_of_pairs(tmp_path), rel=1e-6)
    (tmp_path / "contender" / "against.json").unlink()
    (alone,) = check(tmp_path / "baseline", tmp_path / "contender", basis="seconds").values()
    assert alone.state is CellState.INCONCLUSIVE


def test_training_on_another_machine_is_held_against_a_matrix_product(tmp_path: Path) -> None:
    trains: dict[str, Any] = {"cell": {"compute": "real", "model": "lenet"}}
    first = run_of(
        tmp_path / "a", {"lmdb": 1e-3}, seed=1, ceilings=Ceilings(matrix_products_per_s=40), **trains
    )
    half: dict[str, Any] = {"ceilings": Ceilings(matrix_products_per_s=20), "key": "elsewhere", **trains}
    trusted = {"trust_calibration": ["matrix product"]}
    (same,) = check(first, run_of(tmp_path / "b", {"lmdb": 2e-3}, seed=2, **half), **trusted).values()
    assert (same.state, same.basis) == (CellState.WITHIN_NOISE, "ratio to matrix product")
    (worse,) = check(first, run_of(tmp_path / "c", {"lmdb": 4e-3}, seed=3, **half), **trusted).values()
    assert worse.state is CellState.WORSE
    unknown = run_of(tmp_path / "d", {"lmdb": 2e-3}, seed=4, **half | {"ceilings": Ceilings()})
    (without,) = check(first, unknown, **trusted).values()
    assert without.state is CellState.NOT_COMPARABLE
