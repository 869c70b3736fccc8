"""What a check says of planted sides, and with which exit code."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from storebench.check.judge import CellResult, State, judge
from storebench.check.outcome import outcome
from storebench.check.policy import Policy
from storebench.check.sides.read import read_side
from storebench.cli.main import app
from storebench.results import CacheFacts, CacheVerdict, Ceilings, Percentiles
from storebench.settings.words import CacheState
from tests.support.planted_sides import (
    CELLS,
    ELSEWHERE,
    HERE,
    failed,
    record,
    run_of,
    session,
    write_run,
    write_sessions,
)


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
    code, text = run(first, second)
    assert code == 0
    assert "no regression in 5 cells" in text


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


def test_another_machine_is_refused_unless_its_calibration_is_trusted(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(tmp_path / "b", seed=2, scale=2.0, machine=ELSEWHERE)
    code, text = run(first, second)
    assert code == 3
    assert "ratios to 'memory' have not been shown to carry over" in text
    assert "cpu planted -> another" in text
    found = check(first, second, trust_calibration=["memory"])
    assert {one.state for one in found.values()} == {State.WITHIN_NOISE}
    assert {one.basis for one in found.values()} == {"ratio to memory"}
    assert {one.state for one in check(first, second, trust_calibration=["inflate"]).values()} == {
        State.NOT_COMPARABLE
    }


@pytest.mark.parametrize(("slower", "state"), [(1.15, State.WITHIN_NOISE), (1.4, State.WORSE)])
def test_another_machine_has_a_threshold_of_its_own(tmp_path: Path, slower: float, state: State) -> None:
    first = write_sessions(tmp_path / "a", seed=1, noise=0.001)
    second = write_sessions(tmp_path / "b", seed=2, noise=0.001, machine=ELSEWHERE, slower={CELLS[0]: slower})
    assert check(first, second, trust_calibration=["memory"])[CELLS[0]].state is state
    here = write_sessions(tmp_path / "c", seed=2, noise=0.001, slower={CELLS[0]: slower})
    assert check(first, here)[CELLS[0]].state is State.WORSE


def test_only_equal_calibrations_are_compared(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    second = write_sessions(
        tmp_path / "b", seed=2, machine=ELSEWHERE, change=lambda extra: extra.update(calibration="inflate")
    )
    found = check(first, second, trust_calibration=["memory", "inflate"])
    assert {one.state for one in found.values()} == {State.NOT_COMPARABLE}
    assert "no calibration on both sides" in found[CELLS[0]].reason


def test_elsewhere_the_counters_alone_can_be_compared(tmp_path: Path) -> None:
    policy = Path(__file__).parents[3] / "results" / "baselines" / "elsewhere.toml"
    first = write_sessions(tmp_path / "a", seed=1)
    slow = write_sessions(tmp_path / "b", seed=2, machine=ELSEWHERE, scale=2, slower={CELLS[0]: 3})
    assert run(first, slow, "--policy", policy)[0] == 0
    calls = {CELLS[1]: {"read_calls": 2048}}
    more = write_sessions(tmp_path / "c", seed=2, machine=ELSEWHERE, counters=calls)
    code, text = run(first, more, "--policy", policy)
    assert code == 1
    assert "read_calls 1,024 -> 2,048" in text


def test_two_unknown_machines_are_not_one(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1, machine=None)
    second = write_sessions(tmp_path / "b", seed=2, machine=None)
    assert {one.state for one in check(first, second).values()} == {State.NOT_COMPARABLE}
    # Bytes on disk may differ between machines: nobody knows whether these two are one.
    disk = {CELLS[1]: {"bytes_on_disk": 8_000_000}}
    third = write_sessions(tmp_path / "c", seed=2, machine=None, counters=disk)
    assert check(first, third)[CELLS[1]].state is State.NOT_COMPARABLE


def test_a_machine_that_changed_decides_nothing(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1)
    slower = write_sessions(tmp_path / "b", seed=2, scale=2.0)
    found = check(first, slower)
    assert {one.state for one in found.values()} == {State.INCONCLUSIVE}
    assert "the calibration itself took 2.0" in found[CELLS[0]].reason
    assert found[CELLS[0]].ratio == pytest.approx(2, rel=0.1)
    assert found[CELLS[0]].calibrated_ratio == pytest.approx(1, rel=0.1)
    assert run(first, slower)[0] == 4
    # A faster machine must not hide a slow-down: twice the code's time on a machine of twice the speed.
    faster = write_sessions(tmp_path / "c", seed=2, scale=0.5, slower={CELLS[0]: 2.0})
    assert check(first, faster)[CELLS[0]].state is State.INCONCLUSIVE
    # What the seconds and the calibrated ratio both show is decided.
    both = write_sessions(tmp_path / "d", seed=2, scale=1.3, slower={CELLS[0]: 2.0})
    assert check(first, both)[CELLS[0]].state is State.WORSE


def test_a_busy_machine_is_no_regression_and_hides_none(tmp_path: Path) -> None:
    def beside(cores: float) -> dict[str, Any]:
        return {"change": lambda extra: extra.update(busy_cores=cores)}

    idle = write_sessions(tmp_path / "a", seed=1, noise=0.001, **beside(0.0))
    busy = write_sessions(tmp_path / "b", seed=2, noise=0.001, slower={CELLS[0]: 1.5}, **beside(0.9))
    found = check(idle, busy)
    assert found[CELLS[0]].state is State.INCONCLUSIVE
    assert "other processes used 0.00 cores beside the baseline and 0.90" in found[CELLS[0]].reason
    assert found[CELLS[1]].state is State.WITHIN_NOISE  # as fast although the machine was busier
    back = check(busy, idle)
    assert back[CELLS[0]].state is State.INCONCLUSIVE
    assert back[CELLS[1]].state is State.INCONCLUSIVE  # an idle machine could have made up for a slow-down
    both = write_sessions(tmp_path / "c", seed=3, noise=0.001, slower={CELLS[1]: 1.5}, **beside(0.9))
    assert check(busy, both)[CELLS[1]].state is State.WORSE


def test_most_rounds_five_times_slower_are_a_regression(tmp_path: Path) -> None:
    def nine_of_twelve(cell: str, seconds: list[float]) -> list[float]:
        return [one * (5 if cell == CELLS[0] and n < 9 else 1) for n, one in enumerate(seconds)]

    first = write_sessions(tmp_path / "a", seed=1, rounds=12)
    second = write_sessions(tmp_path / "b", seed=2, rounds=12, shape=nine_of_twelve)
    found = check(first, second)
    assert found[CELLS[0]].state is State.WORSE
    assert found[CELLS[0]].ratio == pytest.approx(5, rel=0.1)
    assert run(first, second)[0] == 1


@pytest.mark.parametrize(
    ("stall", "policy", "state"),
    [
        (5.0, {}, State.WORSE),
        (1.3, {}, State.WITHIN_NOISE),
        (5.0, {"tail_frac": 9.0}, State.WITHIN_NOISE),
        (5.0, {"cells": [{"match": "read/*", "tail_frac": 9.0}]}, State.WITHIN_NOISE),
    ],
)
def test_a_stall_in_one_of_ten_rounds_is_seen(
    tmp_path: Path, stall: float, policy: dict[str, Any], state: State
) -> None:
    def stalled(cell: str, seconds: list[float]) -> list[float]:
        return [seconds[0] * (stall if cell == CELLS[0] else 1), *seconds[1:]]

    first = write_sessions(tmp_path / "a", seed=1, rounds=10, noise=0.001)
    second = write_sessions(tmp_path / "b", seed=2, rounds=10, noise=0.001, shape=stalled)
    found = check(first, second, **policy)
    assert found[CELLS[0]].state is state
    assert found[CELLS[0]].tail_ratio == pytest.approx(stall, rel=0.1)
    assert found[CELLS[0]].ratio == pytest.approx(1, rel=0.05)
    assert found[CELLS[1]].state is State.WITHIN_NOISE


def test_stalls_in_some_sessions_only_decide_nothing(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", seed=1, rounds=10, noise=0.001)
    second = write_sessions(tmp_path / "b", seed=2, rounds=10, noise=0.001)
    for number in (0, 1):
        path = second / f"session-{number}.json"
        raw = json.loads(path.read_text())
        raw["benchmarks"][0]["stats"]["data"][0] *= 8
        path.write_text(json.dumps(raw))
    one = check(first, second)[CELLS[0]]
    assert one.state is State.INCONCLUSIVE
    assert one.reason.startswith("the slowest tenth of the rounds took")
    wide = check(first, second, practical_frac=0.0001)[CELLS[0]]
    assert "the interval is wider" in wide.reason
    assert "slowest tenth" in wide.reason


def test_a_session_is_its_median_round(tmp_path: Path) -> None:
    def spread(_cell: str, seconds: list[float]) -> list[float]:
        return [1e-3 * factor for factor in (1, 2, 3, 4, 5, 6, 7)][: len(seconds)]

    folder = write_sessions(tmp_path / "a", rounds=7, shape=spread, cells=CELLS[:1])
    (cell,) = read_side(folder, baseline=True).cells.values()
    assert [one.seconds * 1024 for one in cell.replicates] == pytest.approx([4e-3] * 5)
    # The calibration varies by 1% about 1 ms.
    assert [one.relative for one in cell.replicates] == pytest.approx([4.0] * 5, rel=0.05)
    assert [(one.tail_s or 0) * 1024 for one in cell.replicates] == pytest.approx([7e-3] * 5)


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
    assert {one.state for one in found} == {State.NOT_COMPARABLE}
    assert {one.reason for one in found} == {
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
    found = [name for name, one in check(first, second).items() if one.state is State.WORSE]
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
    assert check(first, second)[CELLS[0]].state is not State.WORSE


def test_one_file_uses_its_rounds_and_a_wider_threshold(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", 1, seed=1)
    slow = write_sessions(tmp_path / "b", 1, seed=2, slower={CELLS[0]: 1.5})
    mild = write_sessions(tmp_path / "c", 1, seed=2, slower={CELLS[0]: 1.15})
    assert run(first / "session-0.json", slow / "session-0.json")[0] == 1
    assert run(first / "session-0.json", mild / "session-0.json")[0] == 0


def test_a_counter_of_the_baseline_widens_the_band_once(tmp_path: Path) -> None:
    """One replicate of 1,100 read calls among five of 1,024: at most 1,024 + 10 + 16 + 76 pass."""
    first = write_sessions(tmp_path / "a", seed=1, count=4)
    loose = write_sessions(tmp_path / "x", seed=1, count=1, counters={CELLS[0]: {"read_calls": 1100}})
    (loose / "session-0.json").rename(first / "session-9.json")
    states = []
    for calls in (1120, 1140):
        side = write_sessions(tmp_path / str(calls), seed=2, counters={CELLS[0]: {"read_calls": calls}})
        states.append(check(first, side)[CELLS[0]].state is State.WORSE)
    assert states == [False, True]


def test_missing_cells_fail_unless_they_are_allowed_to_be(tmp_path: Path) -> None:
    every = write_sessions(tmp_path / "a", seed=1, noise=0.001)
    fewer = write_sessions(tmp_path / "b", seed=2, noise=0.001, cells=CELLS[:3])
    code, text = run(every, fewer)
    assert code == 5
    assert "missing, 2 of 5 cells" in text
    assert "--allow-missing" in text
    allowed = ("--allow-missing", CELLS[3], "--allow-missing", CELLS[4])
    assert run(every, fewer, *allowed[:2])[0] == 5
    code, text = run(every, fewer, *allowed)
    assert code == 0
    assert "2 missing" in text
    assert run(every, fewer, "--allow-missing", "read/*")[0] == 0
    assert run(every, fewer, *allowed, "--strict")[0] == 5
    code, text = run(every, fewer, "--allow-missing", CELLS[3] + "x")
    assert code == 2
    assert f"Did you mean '{CELLS[3]}'" in text


def test_new_cells_are_told_and_fail_only_a_strict_check(tmp_path: Path) -> None:
    every = write_sessions(tmp_path / "a", seed=1, noise=0.001)
    fewer = write_sessions(tmp_path / "b", seed=2, noise=0.001, cells=CELLS[:3])
    code, text = run(fewer, every)
    assert code == 0
    assert "2 new" in text
    assert run(fewer, every, "--strict")[0] == 3


def test_a_renamed_cell_is_missing_and_says_what_became_of_it(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", cells=CELLS[:1])
    second = write_sessions(
        tmp_path / "b", cells=CELLS[:1], slower={CELLS[0]: 3}, change=lambda extra: extra.update(cell_id="x")
    )
    code, text = run(first, second)
    assert code == 5
    assert "its benchmark is called x now" in text


def test_a_shrunk_cell_of_a_run_is_missing_and_says_what_was_changed(tmp_path: Path) -> None:
    first = run_of(tmp_path / "a", {"lmdb": 1e-6, "hdf5": 2e-6}, cell={"limit": 2000})
    second = run_of(tmp_path / "b", {"lmdb": 1e-6, "hdf5": 2e-6}, cell={"limit": 50})
    code, text = run(first, second)
    assert code == 5
    assert "the contender has it with limit 2000 -> 50" in text


def test_an_undecided_cell_passes_among_decided_ones_and_not_alone(tmp_path: Path) -> None:
    def noisier(cell: str, seconds: list[float]) -> list[float]:
        wide = 0.8 if len(seconds) % 2 else 1.2
        return [one * wide if cell == CELLS[0] else one for one in seconds]

    def side(name: str, cells: tuple[str, ...]) -> Path:
        """Write sessions in which the first cell takes a fifth more, or a fifth less."""
        folder = write_sessions(tmp_path / name, 0)
        for number in range(4):
            rounds = 8 + number % 2
            planted = session(number, seed=1, noise=0.001, cells=cells, rounds=rounds, shape=noisier)
            (folder / f"session-{number}.json").write_text(json.dumps(planted))
        return folder

    every, alone = side("a", CELLS), side("b", CELLS[:1])
    assert check(every, every)[CELLS[0]].state is State.INCONCLUSIVE
    code, text = run(every, every)
    assert (code, "no regression in 5 cells (1 inconclusive)" in text) == (0, True)
    assert run(every, every, "--strict")[0] == 4
    code, text = run(alone, alone)
    assert (code, "inconclusive, 1 of 1 cell" in text) == (4, True)


def test_a_skipped_benchmark_is_missing_and_says_why(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a")
    second = write_sessions(tmp_path / "b", cells=CELLS[1:])
    node = f"benchmarks/suite/test_read.py::test[{CELLS[0]}]"
    for path in second.iterdir():
        raw = json.loads(path.read_text())
        raw["storebench_skipped"] = {node: "this machine has no cold cache"}
        path.write_text(json.dumps(raw))
    code, text = run(first, second)
    assert code == 5
    assert "it was skipped: this machine has no cold cache" in text
    # Skipped in one session of five only: the other four do not stand for it.
    third = write_sessions(tmp_path / "c", seed=2)
    raw = json.loads((third / "session-0.json").read_text())
    raw["storebench_skipped"] = {node: "this machine has no cold cache"}
    raw["benchmarks"] = raw["benchmarks"][1:]
    (third / "session-0.json").write_text(json.dumps(raw))
    code, text = run(first, third)
    assert code == 5
    assert "skipped in one session" in text


def test_sides_without_a_common_cell_never_pass(tmp_path: Path) -> None:
    first = write_sessions(tmp_path / "a", cells=CELLS[:2])
    second = write_sessions(tmp_path / "b", cells=CELLS[2:])
    assert run(first, second)[0] == 5
    assert run(first, second, "--allow-missing", "*")[0] == 3


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
            f"benchmarks/suite/test_read.py::test[{CELLS[0]}]": "ZeroDivisionError: oh"
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


@pytest.mark.parametrize("verdict", ["unverified", None])
def test_a_cold_cell_that_nobody_verified_fails_the_check(tmp_path: Path, verdict: str | None) -> None:
    first = write_sessions(tmp_path / "a")
    change = {"cache": "cold", "cache_verdict": verdict, "cache_reason": "this kernel cannot be asked"}
    second = write_sessions(tmp_path / "b", change=lambda extra: extra.update(change))
    code, text = run(first, second)
    assert code == 5
    assert "not verified to be cold: this kernel cannot be asked" in text


def test_a_cold_run_that_nobody_verified_fails_the_check(tmp_path: Path) -> None:
    facts = CacheFacts(
        requested=CacheState.COLD,
        method="none",
        resident_frac_before=None,
        resident_frac_after=None,
        verdict=CacheVerdict.UNVERIFIED,
        reason="this kernel cannot be asked",
    )
    cold: dict[str, Any] = {"cell": {"cache": "cold"}}
    first = run_of(tmp_path / "a", {"lmdb": 1e-6}, **cold)
    assert run(first, first)[0] == 0
    second = run_of(tmp_path / "b", {"lmdb": 1e-6}, **cold, cache=facts)
    code, text = run(first, second)
    assert code == 5
    assert "not verified to be cold: this kernel cannot be asked" in text


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
    assert {one.basis for one in check(first, second).values()} == {"seconds, not calibrated"}
    unknown = write_sessions(tmp_path / "c", seed=2, change=plain, machine=None)
    assert run(first, unknown)[0] == 3


def test_records_are_compared_in_seconds_here_and_as_ratios_elsewhere(tmp_path: Path) -> None:
    costs = {"lmdb": 2e-6, "hdf5": 5e-6, "files": 1e-4}
    first = run_of(tmp_path / "a", costs, seed=1)
    slow = run_of(tmp_path / "b", {**costs, "hdf5": 6.5e-6}, seed=2)
    found = [one for one in check(first, slow).values() if one.state is State.WORSE]
    assert [(one.label.split("/")[1], one.basis) for one in found] == [("hdf5", "seconds")]
    assert run(first, slow)[0] == 1
    half = {name: 2 * cost for name, cost in costs.items()}
    elsewhere = run_of(tmp_path / "c", half, seed=3, gather=5e5, key="elsewhere")
    assert run(first, elsewhere)[0] == 3
    trusted = check(first, elsewhere, trust_calibration=["memory"]).values()
    assert {(one.state, one.basis) for one in trusted} == {(State.WITHIN_NOISE, "ratio to memory")}
    uncalibrated = run_of(tmp_path / "d", costs, seed=4, gather=None, key="elsewhere")
    assert {one.state for one in check(first, uncalibrated, trust_calibration=["memory"]).values()} == {
        State.NOT_COMPARABLE
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
    assert same.state is State.WITHIN_NOISE
    assert same.tail_ratio == pytest.approx(13 / 12)
    (slow,) = check(first, run_of(tmp_path / "c", {"lmdb": 1e-6}, seed=2, **steps(100))).values()
    assert slow.state is State.WORSE
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
    assert one.state is State.WORSE
    assert (one.floor_frac or 1) < 0.1
    # The floor of interleaved rounds is that of independent sides: half of the spread of a difference of two.
    assert one.floor_frac == pytest.approx(_floor_of_pairs(tmp_path), rel=1e-6)
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
    assert cell.calibration == "device"
    assert cell.replicates[0].counters["device_read_bytes"] == 3_072_000


def test_training_on_another_machine_is_held_against_a_matrix_product(tmp_path: Path) -> None:
    trains: dict[str, Any] = {"cell": {"compute": "real", "model": "lenet"}}
    first = run_of(
        tmp_path / "a", {"lmdb": 1e-3}, seed=1, ceilings=Ceilings(matrix_products_per_s=40), **trains
    )
    half: dict[str, Any] = {"ceilings": Ceilings(matrix_products_per_s=20), "key": "elsewhere", **trains}
    trusted = {"trust_calibration": ["matrix product"]}
    (same,) = check(first, run_of(tmp_path / "b", {"lmdb": 2e-3}, seed=2, **half), **trusted).values()
    assert (same.state, same.basis) == (State.WITHIN_NOISE, "ratio to matrix product")
    (worse,) = check(first, run_of(tmp_path / "c", {"lmdb": 4e-3}, seed=3, **half), **trusted).values()
    assert worse.state is State.WORSE
    unknown = run_of(tmp_path / "d", {"lmdb": 2e-3}, seed=4, **half | {"ceilings": Ceilings()})
    (without,) = check(first, unknown, **trusted).values()
    assert without.state is State.NOT_COMPARABLE


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2), (2, 2)])
def test_few_replicates_of_either_side_are_inconclusive(tmp_path: Path, before: int, after: int) -> None:
    first = run_of(tmp_path / "a", {"lmdb": 1e-6}, replicates=before)
    second = run_of(tmp_path / "b", {"lmdb": 2e-6}, replicates=after)
    (one,) = check(first, second).values()
    assert one.state is State.INCONCLUSIVE
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
    assert one.state is State.INCONCLUSIVE


def test_holm_keeps_forty_cells_of_the_same_code_quiet() -> None:
    """Forty cells at 5% spread, as in the simulation that condemns a gate at 10% (FACTS section 8)."""
    from storebench.check.sides.model import CellData, Place, Replicate, Side

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
                environment=Place(**HERE),
                replicates=replicates,
            )
        return Side(source="planted", kind="pytest-benchmark", cells=cells)

    red = 0
    for _ in range(100):
        results = judge(side(), side(), Policy())
        red += outcome(results, Policy()).exit_code == 1
    assert red <= 5
