"""What a check says of counters: those that are gone, those outside their band, and those of another machine."""

from pathlib import Path
from typing import Any

import pytest

from storebench.check.judge import CellState
from storebench.check.sides.read import read_side
from tests.support.checked import check, run
from tests.support.planted_sides import (
    CELLS,
    ELSEWHERE,
    run_of,
    write_sessions,
)


def test_a_counter_that_is_gone_fails_the_check(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a")
    second = write_sessions(tmp_path / "b", seed=2, change=lambda extra: extra["counters"].pop("read_calls"))
    code, text = run(first, second)
    assert code == 5
    assert "the baseline counted read_calls, the contender did not" in text
    assert run(second, first)[0] == 0  # more counters than before are welcome
    policy = tmp_path / "policy.toml"
    policy.write_text('[[cells]]\nmatch = "*"\ngate_counters = false\n')
    assert run(first, second, "--policy", policy)[0] == 0


def test_all_counters_that_are_gone_are_named(tmp_path: Path) -> None:
    def fewer(extra: dict[str, Any]) -> None:
        del extra["counters"]["read_calls"], extra["counters"]["payload_bytes"]

    _, text = run(write_sessions(tmp_path / "a"), write_sessions(tmp_path / "b", seed=2, change=fewer))
    assert "the baseline counted payload_bytes, read_calls, the contender did not" in text


@pytest.mark.parametrize(
    ("counter", "value", "worse"),
    [
        ("read_calls", 2048, True),
        ("bytes_on_disk", 4_200_000, True),
        ("payload_bytes", 3_145_729, True),
        ("payload_bytes", 1_572_864, True),
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
    found = [name for name, one in check(first, second).items() if one.state is CellState.WORSE]
    assert found == ([CELLS[1]] if worse else [])
    code, text = run(first, second)
    assert code == int(worse)
    assert (counter in text) == worse


def test_counters_of_another_machine_count_only_where_they_mean_the_same(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    disk = {CELLS[1]: {"bytes_on_disk": 8_000_000}}
    assert run(first, write_sessions(tmp_path / "b", seed=2, machine=ELSEWHERE, counters=disk))[0] == 3
    served = {CELLS[1]: {"samples_served": 1000}}
    assert run(first, write_sessions(tmp_path / "c", seed=2, machine=ELSEWHERE, counters=served))[0] == 1


def test_a_run_that_served_one_sample_less_is_a_regression(tmp_path: Path) -> None:
    first = run_of(tmp_path / "a", {"lmdb": 1e-6})
    second = run_of(tmp_path / "b", {"lmdb": 1e-6}, seed=2, samples=999, timed_samples=999)
    code, text = run(first, second)
    assert code == 1
    assert "samples_served 1,000 -> 999" in text


def test_a_counter_that_varies_in_the_baseline_is_held_to_no_tighter_band(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1, count=4)
    loose = write_sessions(tmp_path / "x", seed=1, count=1, counters={CELLS[0]: {"read_calls": 2000}})
    (loose / "session-0.json").rename(first / "session-9.json")
    second = write_sessions(tmp_path / "b", seed=2, counters={CELLS[0]: {"read_calls": 1900}})
    assert check(first, second)[CELLS[0]].state is not CellState.WORSE


def test_a_counter_of_the_baseline_widens_the_band_once(tmp_path: Path) -> None:
    """One replicate of 1,100 read calls among five of 1,024: at most 1,024 + 10 + 16 + 76 pass."""
    first = write_sessions(tmp_path / "a", seed=1, count=4)
    loose = write_sessions(tmp_path / "x", seed=1, count=1, counters={CELLS[0]: {"read_calls": 1100}})
    (loose / "session-0.json").rename(first / "session-9.json")
    states = []
    for calls in (1120, 1140):
        side = write_sessions(tmp_path / str(calls), seed=2, counters={CELLS[0]: {"read_calls": calls}})
        states.append(check(first, side)[CELLS[0]].state is CellState.WORSE)
    assert states == [False, True]


def test_device_bytes_count_only_where_the_cache_was_cold(tmp_path: Path) -> None:
    warm = run_of(tmp_path / "warm", {"lmdb": 1e-6})
    (cell,) = read_side(warm, baseline=True).cells.values()
    assert "device_read_bytes" not in cell.replicates[0].counters
    cold = run_of(tmp_path / "cold", {"lmdb": 1e-6}, cell={"cache": "cold"})
    (cell,) = read_side(cold, baseline=True).cells.values()
    assert cell.calibration == "device"
    assert cell.replicates[0].counters["device_read_bytes"] == 3_072_000
