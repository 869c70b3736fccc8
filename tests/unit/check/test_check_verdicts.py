"""What a check says of planted sides, and with which exit code."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted_sides import (
    CELLS,
    ELSEWHERE,
    HERE,
    failed,
    record,
    run_of,
    write_run,
    write_sessions,
)
from typer.testing import CliRunner

from storebench.check.judge import CellResult, State, judge
from storebench.check.outcome import outcome
from storebench.check.policy import Policy
from storebench.check.sides import read_side
from storebench.cli.main import app
from storebench.results import Ceilings


def check(baseline: Path, contender: Path, **policy: Any) -> dict[str, CellResult]:
    first, second = read_side(baseline, baseline=True), read_side(contender, baseline=False)
    return {one.cell_id: one for one in judge(first, second, Policy(**policy))}


def run(*arguments: Any) -> tuple[int, str]:
    """Return exit code and everything printed."""
    done = CliRunner().invoke(app, ["check", *map(str, arguments)])
    return done.exit_code, done.output


def test_the_same_code_is_within_noise(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2)
    states = {one.state for one in check(first, second).values()}
    assert State.WORSE not in states
    assert State.WITHIN_NOISE in states
    assert run(first, second)[0] == 0


@pytest.mark.parametrize("cell", CELLS)
def test_a_slow_down_is_found_in_its_cell_and_in_no_other(tmp_path: Path, cell: str) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2, slower={cell: 1.3})
    found = check(first, second)
    assert [name for name, one in found.items() if one.state is State.WORSE] == [cell]
    assert 1.2 < (found[cell].ratio or 0) < 1.4
    code, text = run(first, second)
    assert code == 1
    assert cell in text


def test_a_speed_up_is_no_regression(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2, slower={CELLS[0]: 0.7})
    assert check(first, second)[CELLS[0]].state is State.BETTER
    assert run(first, second)[0] == 0


def test_a_tenth_is_never_within_noise_where_the_floor_is_below_it(tmp_path: Path) -> None:
    for seed in range(20):
        first = write_sessions(tmp_path / f"a{seed}", seed=2 * seed)
        second = write_sessions(tmp_path / f"b{seed}", seed=2 * seed + 1, slower={CELLS[2]: 1.1})
        one = check(first, second)[CELLS[2]]
        assert one.floor_frac is not None
        assert one.floor_frac < 0.1
        assert one.state in (State.WORSE, State.INCONCLUSIVE)


def test_a_slow_down_below_the_noise_floor_is_inconclusive(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=3, noise=0.3)
    second = write_sessions(tmp_path / "b", seed=4, noise=0.3, slower={CELLS[0]: 1.1})
    found = check(first, second)
    assert {one.state for one in found.values()} == {State.INCONCLUSIVE}
    assert run(first, second)[0] == 4


def test_a_tolerated_slow_down_passes(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2, slower={CELLS[0]: 1.3})
    policy = tmp_path / "policy.toml"
    policy.write_text('[[cells]]\nmatch = "read/lmdb/*"\npractical_frac = 0.5\n')
    assert run(first, second, "--policy", policy)[0] == 0


def test_a_machine_of_half_the_bandwidth_passes(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2, scale=2.0, machine=ELSEWHERE)
    found = check(first, second)
    assert {one.state for one in found.values()} == {State.WITHIN_NOISE}
    assert {one.basis for one in found.values()} == {"ratio to gather"}
    assert run(first, second)[0] == 0


def test_seconds_of_two_machines_are_not_compared(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('basis = "seconds"\n')
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2, machine=ELSEWHERE)
    code, text = run(first, second, "--policy", policy)
    assert code == 3
    assert "cpu planted -> another" in text
    assert run(first, write_sessions(tmp_path / "c", seed=3), "--policy", policy)[0] == 0


def test_another_calibration_or_other_samples_are_not_comparable(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a")
    for number, change in enumerate(({"samples_of": "beef"},)):
        second = write_sessions(
            tmp_path / f"b{number}", seed=2, change=lambda extra, new=change: extra.update(new)
        )
        code, text = run(first, second)
        assert code == 3
        assert "the two sides read other samples" in text


@pytest.mark.parametrize(
    ("counter", "value", "worse"),
    [
        ("read_calls", 2048, True),
        ("bytes_on_disk", 4_200_000, True),
        ("payload_bytes", 3_145_729, True),
        ("samples_served", 1023, True),
        ("bytes_on_disk", 4_000_100, False),
        ("read_calls", 1030, False),
        ("read_calls", 10, False),
    ],
)
def test_a_counter_outside_its_band_is_a_regression(
    tmp_path: Path, counter: str, value: float, worse: bool
) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2, counters={CELLS[1]: {counter: value}})
    found = [name for name, one in check(first, second).items() if one.state is State.WORSE]
    assert found == ([CELLS[1]] if worse else [])
    code, text = run(first, second)
    assert code == int(worse)
    assert (counter in text) == worse


def test_counters_of_another_machine_count_only_where_they_mean_the_same(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    disk = {CELLS[1]: {"bytes_on_disk": 8_000_000}}
    assert run(first, write_sessions(tmp_path / "b", seed=2, machine=ELSEWHERE, counters=disk))[0] == 0
    served = {CELLS[1]: {"samples_served": 1000}}
    assert run(first, write_sessions(tmp_path / "c", seed=2, machine=ELSEWHERE, counters=served))[0] == 1


def test_a_counter_that_varies_in_the_baseline_is_held_to_no_tighter_band(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1, count=4)
    loose = write_sessions(tmp_path / "x", seed=1, count=1, counters={CELLS[0]: {"read_calls": 2000}})
    (loose / "session-0.json").rename(first / "session-9.json")
    second = write_sessions(tmp_path / "b", seed=2, counters={CELLS[0]: {"read_calls": 1900}})
    assert check(first, second)[CELLS[0]].state is not State.WORSE


def test_one_file_uses_its_rounds_and_a_wider_threshold(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", 1, seed=1)
    slow = write_sessions(tmp_path / "b", 1, seed=2, slower={CELLS[0]: 1.5})
    mild = write_sessions(tmp_path / "c", 1, seed=2, slower={CELLS[0]: 1.15})
    assert run(first / "session-0.json", slow / "session-0.json")[0] == 1
    assert run(first / "session-0.json", mild / "session-0.json")[0] == 0


def test_missing_and_new_cells_are_told_and_fail_only_a_strict_check(tmp_path: Path) -> None:
    every = write_sessions(tmp_path / "a", seed=1, noise=0.001)
    fewer = write_sessions(tmp_path / "b", seed=2, noise=0.001, cells=CELLS[:3])
    code, text = run(every, fewer)
    assert code == 0
    assert "2 missing" in text
    assert run(every, fewer, "--strict")[0] == 5
    code, text = run(fewer, every)
    assert code == 0
    assert "2 new" in text
    assert run(fewer, every, "--strict")[0] == 3


def test_sides_without_a_common_cell_never_pass(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", cells=CELLS[:2])
    second = write_sessions(tmp_path / "b", cells=CELLS[2:])
    assert run(first, second)[0] == 3


def test_nothing_measured_is_no_success(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a")
    empty = tmp_path / "empty"
    empty.mkdir()
    half = write_sessions(tmp_path / "half", 1, cells=())
    blank = tmp_path / "blank.json"
    blank.write_text("")
    for nothing in (empty, half, blank, tmp_path / "absent"):
        code, text = run(first, nothing)
        assert code == 5, nothing
        assert "nothing" in text
        assert run(nothing, first)[0] == 3, nothing


def test_a_benchmark_that_raised_fails_the_check(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a")
    second = write_sessions(tmp_path / "b", cells=CELLS[1:])
    for path in second.iterdir():
        raw = json.loads(path.read_text())
        raw["storebench_failed"] = {
            f"tests/benchmarks/test_read.py::test[{CELLS[0]}]": "ZeroDivisionError: oh"
        }
        path.write_text(json.dumps(raw))
    code, text = run(first, second)
    assert code == 5
    assert "ZeroDivisionError: oh" in text


def test_a_cold_cell_that_was_not_cold_fails_the_check(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a")
    change = {"cache": "cold", "cache_verdict": "failed", "cache_reason": "40% of it was resident"}
    second = write_sessions(tmp_path / "b", change=lambda extra: extra.update(change))
    code, text = run(first, second)
    assert code == 5
    assert "40% of it was resident" in text


def test_an_older_schema_is_not_comparable_and_says_so(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a")
    older = write_sessions(tmp_path / "b", change=lambda extra: extra.update(schema_version=0))
    code, text = run(first, older)
    assert code == 3
    assert "schema version 0" in text
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


def test_benchmarks_without_our_facts_are_compared_in_seconds_on_one_machine(tmp_path: Path) -> None:
    def plain(extra: dict[str, Any]) -> None:
        extra.clear()

    first = write_sessions(tmp_path / "a", seed=1, change=plain)
    second = write_sessions(tmp_path / "b", seed=2, change=plain)
    assert {one.basis for one in check(first, second).values()} == {"seconds"}
    unknown = write_sessions(tmp_path / "c", seed=2, change=plain, machine=None)
    assert run(first, unknown)[0] == 3


def test_records_are_compared_as_ratios_to_their_own_gather_rate(tmp_path: Path) -> None:
    costs = {"lmdb": 2e-6, "hdf5": 5e-6, "files": 1e-4}
    first = run_of(tmp_path / "a", costs, seed=1)
    slow = run_of(tmp_path / "b", {**costs, "hdf5": 6.5e-6}, seed=2)
    found = [one for one in check(first, slow).values() if one.state is State.WORSE]
    assert [one.label.split("/")[1] for one in found] == ["hdf5"]
    assert run(first, slow)[0] == 1
    half = {name: 2 * cost for name, cost in costs.items()}
    elsewhere = run_of(tmp_path / "c", half, seed=3, gather=5e5, key="elsewhere")
    assert run(first, elsewhere)[0] == 0
    uncalibrated = run_of(tmp_path / "d", costs, seed=4, gather=None, key="elsewhere")
    assert run(first, uncalibrated)[0] == 3


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
    assert one.state is State.WORSE
    assert (one.floor_frac or 1) < 0.1
    (tmp_path / "contender" / "against.json").unlink()
    (alone,) = check(tmp_path / "baseline", tmp_path / "contender", basis="seconds").values()
    assert alone.state is State.INCONCLUSIVE


def test_a_failed_record_fails_the_check_with_its_reason(tmp_path: Path) -> None:
    first = run_of(tmp_path / "a", {"lmdb": 1e-6})
    broken = [failed(record("lmdb", 0, 1e-6), "wrong samples: 3 missing"), record("lmdb", 1, 1e-6)]
    code, text = run(first, write_run(tmp_path / "b", broken))
    assert code == 5
    assert "wrong samples: 3 missing" in text
    assert run(tmp_path / "b", first)[0] == 3


def test_device_bytes_count_only_where_the_cache_was_cold(tmp_path: Path) -> None:
    warm = run_of(tmp_path / "warm", {"lmdb": 1e-6})
    (cell,) = read_side(warm, baseline=True).cells.values()
    assert "device_read_bytes" not in cell.replicates[0].counters
    cold = run_of(tmp_path / "cold", {"lmdb": 1e-6}, cell={"cache": "cold"})
    (cell,) = read_side(cold, baseline=True).cells.values()
    assert cell.calibration == "plain read"
    assert cell.replicates[0].counters["device_read_bytes"] == 3_072_000


def test_training_on_another_machine_is_held_against_a_matrix_product(tmp_path: Path) -> None:
    trains = {"cell": {"compute": "real", "model": "lenet"}}
    first = run_of(
        tmp_path / "a", {"lmdb": 1e-3}, seed=1, ceilings=Ceilings(matrix_products_per_s=40), **trains
    )
    half = {"ceilings": Ceilings(matrix_products_per_s=20), "key": "elsewhere", **trains}
    (same,) = check(first, run_of(tmp_path / "b", {"lmdb": 2e-3}, seed=2, **half)).values()
    assert (same.state, same.basis) == (State.WITHIN_NOISE, "ratio to matrix product")
    (worse,) = check(first, run_of(tmp_path / "c", {"lmdb": 4e-3}, seed=3, **half)).values()
    assert worse.state is State.WORSE
    unknown = run_of(tmp_path / "d", {"lmdb": 2e-3}, seed=4, **half | {"ceilings": Ceilings()})
    (without,) = check(first, unknown).values()
    assert without.state is State.NOT_COMPARABLE


def test_few_replicates_are_inconclusive(tmp_path: Path) -> None:
    first = run_of(tmp_path / "a", {"lmdb": 1e-6}, replicates=2)
    second = run_of(tmp_path / "b", {"lmdb": 2e-6}, replicates=2)
    (one,) = check(first, second).values()
    assert one.state is State.INCONCLUSIVE
    assert "2 replicates" in one.reason


def test_holm_keeps_forty_cells_of_the_same_code_quiet() -> None:
    """Forty cells at 5% spread, as in the simulation that condemns a gate at 10% (FACTS section 8)."""
    from storebench.check.sides import CellData, Replicate, Side, Where

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
                environment=Where(**HERE),
                replicates=replicates,
            )
        return Side(source="planted", kind="pytest-benchmark", cells=cells)

    red = 0
    for _ in range(100):
        results = judge(side(), side(), Policy())
        red += outcome(results, Policy()).exit_code == 1
    assert red <= 5
