"""Attacks on the regression gate: each hides a slow-down or loses a cell, and the check must not be green."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from storebench.cli.main import app
from storebench.results import Counters, Record
from storebench.runs.records import PAIRING_NAME, read_records
from tests.support.planted_sides import CELLS, ELSEWHERE, record, run_of, write_run, write_sessions
from tests.support.quick_cli import storebench

Sessions = dict[str, Any]
LMDB, HDF5 = CELLS[:2]


def check(*arguments: Any) -> tuple[int, str]:
    """Return exit code and everything printed."""
    done = CliRunner().invoke(app, ["check", *map(str, arguments)])
    return done.exit_code, done.output


def edited(change: Callable[[dict[str, Any]], None], *, only: str = LMDB) -> Callable[[dict[str, Any]], None]:
    def edit(extra: dict[str, Any]) -> None:
        if extra["cell_id"] == only:
            change(extra)

    return edit


def most_rounds(factor: float, share: float, *, rounds: int = 12) -> dict[str, Any]:
    """Return what makes a share of LMDB's rounds `factor` times as slow."""

    def shape(cell: str, seconds: list[float]) -> list[float]:
        slow = round(share * len(seconds)) if cell == LMDB else 0
        return [one * (factor if number < slow else 1) for number, one in enumerate(seconds)]

    return {"shape": shape, "rounds": rounds}


SAME: Sessions = {"noise": 0.001}
ATTACKS: dict[str, tuple[Sessions, Sessions, int]] = {
    # name: (what is planted in the baseline, in the contender, the exit code that is due)
    "a reader 1.5 times as slow": ({}, {"slower": {LMDB: 1.5}}, 1),
    "a reader 1.5 times as slow and all others 1.1 times as fast": (
        {}, {"slower": {LMDB: 1.5} | dict.fromkeys(CELLS[1:], 0.9)}, 1,
    ),
    "9 of 12 rounds five times as slow": ({"rounds": 12}, most_rounds(5, 0.75), 1),
    "every second round twice as slow": ({"rounds": 12}, most_rounds(2.0, 0.6), 1),
    "all cells but one are gone": ({}, {"cells": CELLS[:1]}, 5),
    "the slow cell is gone": ({}, {"cells": CELLS[1:]}, 5),
    "every cell is gone": ({}, {"cells": ()}, 5),
    "a cell that is renamed and three times as slow": (
        {}, {"slower": {LMDB: 3.0}, "change": edited(lambda extra: extra.update(cell_id="read/lmdb2/warm"))}, 5,
    ),
    "half of the samples in half of the time": (
        {}, {"slower": {LMDB: 0.5}, "change": edited(lambda extra: extra.update(samples=512))}, 3,
    ),
    "other samples": ({}, {"change": edited(lambda extra: extra.update(samples_of="beef"))}, 3),
    "no fingerprint of the samples": ({}, {"change": edited(lambda extra: extra.update(samples_of=""))}, 3),
    "no counters": ({}, {"change": edited(lambda extra: extra.update(counters={}))}, 5),
    "half of the payload": ({}, {"counters": {LMDB: {"payload_bytes": 3_145_728 // 2}}}, 1),
    "half of the samples served": ({}, {"counters": {LMDB: {"samples_served": 512}}}, 1),
    "twice the read calls": ({}, {"counters": {LMDB: {"read_calls": 2048}}}, 1),
    "a slower machine of another name, with a calibration that nobody validated": (
        {}, {"machine": ELSEWHERE, "slower": {LMDB: 2.0}}, 3,
    ),
    "a machine without a name": ({}, {"machine": None, "slower": {LMDB: 2.0}}, 3),
    "a calibration of another kind, elsewhere": (
        {}, {"machine": ELSEWHERE, "change": lambda extra: extra.update(calibration="inflate")}, 3,
    ),
    "a calibration as slow as the code, on one machine": ({}, {"scale": 2.0}, 4),
    "one session": ({}, {"count": 1, "slower": {LMDB: 1.5}}, 1),
    "results of another schema": ({}, {"change": lambda extra: extra.update(schema_version=0)}, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_the_gate_is_not_green(tmp_path: Path, name: str) -> None:
    before, after, due = ATTACKS[name]
    baseline = write_sessions(tmp_path / "a", **({"seed": 1} | SAME | before))
    contender = write_sessions(tmp_path / "b", **({"seed": 2} | SAME | after))
    code, text = check(baseline, contender)
    assert code == due, text
    assert "Traceback" not in text


def test_the_same_code_is_green(tmp_path: Path) -> None:
    baseline = write_sessions(tmp_path / "a", seed=1, **SAME)
    assert check(baseline, write_sessions(tmp_path / "b", seed=2, **SAME))[0] == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0])
def test_a_duration_that_cannot_be_is_not_compared(tmp_path: Path, value: float) -> None:
    baseline = write_sessions(tmp_path / "a", seed=1, **SAME)
    planted: Sessions = {"shape": lambda cell, seconds: [value] * len(seconds) if cell == LMDB else seconds}
    code, text = check(baseline, write_sessions(tmp_path / "b", seed=2, **SAME, **planted))
    assert code in (3, 4, 5), text
    assert "Traceback" not in text


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the folder of a baseline, below which alone `--update` writes."""
    monkeypatch.chdir(tmp_path)
    return "results/baselines/ci"


def test_a_slow_down_is_not_laundered_through_the_baseline(tmp_path: Path, home: str) -> None:
    assert check(home, write_sessions(tmp_path / "a", seed=1, **SAME), "--update")[0] == 0
    slow = write_sessions(tmp_path / "b", seed=2, noise=0.3, slower={LMDB: 1.6})
    assert check(home, slow, "--update")[0] != 0


def test_a_slow_down_in_small_steps_is_not_laundered_through_the_baseline(tmp_path: Path, home: str) -> None:
    codes = [
        check(home, write_sessions(tmp_path / str(n), seed=n, **SAME, slower={LMDB: 1.07**n}), "--update")[0]
        for n in range(5)
    ]
    assert codes[0] == 0
    assert any(codes)


ERRATIC = {
    "three rounds of five": [3, 1, 3, 1, 3],
    "every round, by other factors": [1.1, 30, 2, 1.2, 12],
    "two rounds of five": [20, 1, 1, 20, 1],
}


def paired_runs(tmp_path: Path, change: Callable[[Record], Record], **more: Any) -> tuple[Path, Path]:
    """Return two runs of one pairing; `change` edits the records of the contender's LMDB cell."""
    cells = {"lmdb": 1e-6, "hdf5": 2e-6, "png": 3e-6}
    baseline, source = (run_of(tmp_path / name, cells, seed=seed, **more) for seed, name in enumerate("ac"))
    records = [change(one) if one.cell.backend.name == "lmdb" else one for one in read_records(source)]
    contender = write_run(tmp_path / "b", records)
    for folder in (baseline, contender):
        (folder / PAIRING_NAME).write_text('{"pairing": "same"}', encoding="utf-8")
    return baseline, contender


@pytest.mark.parametrize("factors", ERRATIC.values(), ids=ERRATIC)
def test_an_erratic_slow_down_of_a_run_is_not_green(tmp_path: Path, factors: list[float]) -> None:
    def slower(one: Record) -> Record:
        return dataclasses.replace(one, samples_per_s=one.samples_per_s / factors[one.replicate])

    sides = paired_runs(tmp_path, slower)
    code, text = check(*sides)
    assert (code, "perhaps slower, 1 of 3 cells: cifar10/lmdb" in text) == (4, True), text
    assert "::warning title=storebench check::perhaps slower" in check(*sides, "--format", "github")[1]


def test_one_slow_round_in_forty_is_not_green(tmp_path: Path) -> None:
    def slower(one: Record) -> Record:
        return dataclasses.replace(one, samples_per_s=one.samples_per_s / (4 if one.replicate == 7 else 1))

    code, text = check(*paired_runs(tmp_path, slower, replicates=40))
    assert code == 4, text


def test_one_slow_epoch_in_every_round_is_not_green(tmp_path: Path) -> None:
    def epochs(factor: float) -> list[Record]:
        return [
            dataclasses.replace(
                one, epoch=epoch, samples_per_s=one.samples_per_s / (factor if epoch == 3 else 1)
            )
            for one in (record("lmdb", number, 1e-6) for number in range(5))
            for epoch in range(20)
        ]

    code, text = check(write_run(tmp_path / "a", epochs(1)), write_run(tmp_path / "b", epochs(2.4)))
    assert code in (1, 4), "its mean is slower by less than the threshold"
    assert "slowest tenth of the epochs" in text


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("paired", [False, True])
def test_a_slow_last_epoch_of_few_is_not_green(tmp_path: Path, count: int, *, paired: bool) -> None:
    def epochs(seed: int, factor: float) -> list[Record]:
        draw = np.random.default_rng(seed)
        return [
            record(
                "lmdb",
                number,
                1e-6 * draw.normal(1, 0.02) * (factor if epoch == count - 1 else 1),
                epoch=epoch,
            )
            for number in range(5)
            for epoch in range(count)
        ]

    def both(slower: float) -> int:
        sides = [write_run(tmp_path / f"{n}-{slower}", epochs(n, one)) for n, one in enumerate((1, slower))]
        for folder in sides if paired else []:
            (folder / PAIRING_NAME).write_text('{"pairing": "same"}', encoding="utf-8")
        return check(*sides)[0]

    assert both(5.0) == 1
    assert both(1.0) == 0


def test_slow_epochs_after_a_long_first_one_are_not_green(tmp_path: Path) -> None:
    """The first epoch fills a cache for a hundred times as long: its time must not hide that of the others."""

    def epochs(seed: int, factor: float) -> list[Record]:
        draw = np.random.default_rng(seed)
        return [
            record("lmdb", number, 1e-6 * draw.normal(1, 0.02) * (100 if epoch == 0 else factor), epoch=epoch)
            for number in range(5)
            for epoch in range(4)
        ]

    sides = [write_run(tmp_path / f"side-{n}", epochs(n, factor)) for n, factor in enumerate((1.0, 2.0))]
    assert check(*sides)[0] == 1


BESIDE_THE_STEPS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a reader that reads everything when it is opened": ("open_s", {"open_s": 0.01}, {"open_s": 3.0}),
    "the work of the epoch before its first batch": (
        "time_to_first_batch_s", {"time_to_first_batch_s": 0.05}, {"time_to_first_batch_s": 2.0},
    ),
    "a wait in a warm-up step after the first": ("warmup_s", {"epoch_s": 1.1, "timed_s": 1.0}, {"epoch_s": 3.0}),
    "three times the processor time, on cores that were idle": (
        "cpu_s_per_sample",
        {"counters": Counters(read_calls=1000, cpu_user_s=0.02, cpu_system_s=0.01)},
        {"counters": Counters(read_calls=1000, cpu_user_s=0.08, cpu_system_s=0.01)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", BESIDE_THE_STEPS.values(), ids=BESIDE_THE_STEPS)
def test_what_a_cell_does_beside_its_timed_steps_is_gated(
    tmp_path: Path, attack: tuple[str, dict[str, Any], dict[str, Any]]
) -> None:
    counter, before, after = attack
    sides = paired_runs(tmp_path, lambda one: dataclasses.replace(one, **after), **before)
    code, text = check(*sides)
    assert (code, f"({counter} " in text) == (1, True), text


def test_one_late_epoch_of_a_process_is_gated(tmp_path: Path) -> None:
    def epochs(late_s: float) -> list[Record]:
        return [
            record("lmdb", number, 1e-6, epoch=epoch, time_to_first_batch_s=late_s if epoch == 0 else 0.01)
            for number in range(3)
            for epoch in range(3)
        ]

    code, text = check(write_run(tmp_path / "a", epochs(0.02)), write_run(tmp_path / "b", epochs(5)))
    assert (code, "time_to_first_batch_s 0.02 -> 5 s" in text) == (1, True), text


def test_durations_beside_the_steps_may_vary(tmp_path: Path) -> None:
    some: dict[str, Any] = {
        "open_s": 0.01,
        "time_to_first_batch_s": 0.05,
        "counters": Counters(cpu_user_s=0.02, cpu_system_s=0.01),
    }
    more: dict[str, Any] = {
        "open_s": 0.3,
        "time_to_first_batch_s": 0.3,
        "counters": Counters(cpu_user_s=0.04, cpu_system_s=0.01),
    }
    code, text = check(*paired_runs(tmp_path, lambda one: dataclasses.replace(one, **more), **some))
    assert code == 0, text


def test_paired_runs_of_the_same_code_are_green(tmp_path: Path) -> None:
    code, text = check(*paired_runs(tmp_path, lambda one: one))
    assert code == 0, text


def test_fewer_steps_than_the_baseline_are_not_a_speed_up(tmp_path: Path) -> None:
    baseline = run_of(tmp_path / "a", {"lmdb": 1e-6}, cell={"max_steps": 100})
    code, text = check(baseline, run_of(tmp_path / "b", {"lmdb": 5e-7}, cell={"max_steps": 2}))
    assert code == 5, text


def test_a_baseline_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    baseline = write_sessions(tmp_path / "a", seed=1, **SAME)
    path = baseline / "session-0.json"
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    code, text = check(baseline, write_sessions(tmp_path / "b", seed=2, **SAME))
    assert code == 5
    assert "session-0.json" in text


def test_a_baseline_without_cells_is_not_passed_by_everything(tmp_path: Path) -> None:
    baseline = write_sessions(tmp_path / "a", cells=())
    assert check(baseline, write_sessions(tmp_path / "b", seed=2, **SAME))[0] in (3, 5)


def test_a_name_from_a_foreign_baseline_gives_no_workflow_command(tmp_path: Path) -> None:
    planted: Sessions = {"change": lambda extra: extra.update(cell_id="x\n::error::planted")}
    baseline = write_sessions(tmp_path / "a", cells=CELLS[:1], **SAME, **planted)
    _, text = check(baseline, write_sessions(tmp_path / "b", seed=2, **SAME), "--format", "json")
    assert json.loads(text[text.index("{") : text.rindex("}") + 1])


def test_a_policy_that_checks_nothing_of_a_cell_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(
        '[[cells]]\nmatch = "*"\ngate_time = false\ngate_counters = false\n', encoding="utf-8"
    )
    baseline = write_sessions(tmp_path / "a", seed=1, **SAME)
    slow = write_sessions(tmp_path / "b", seed=2, **SAME, slower={LMDB: 3.0})
    code, text = check(baseline, slow, "--policy", tmp_path / "policy.toml")
    assert (code, "nothing of these cells would be checked" in text) == (2, True), text


def test_a_lost_replicate_of_one_side_is_not_green(tmp_path: Path) -> None:
    """The slow replicate of an erratic cell is taken out of the records of the contender."""
    baseline, contender = paired_runs(tmp_path, lambda one: one)
    kept = [one for one in read_records(contender) if (one.cell.backend.name, one.replicate) != ("lmdb", 1)]
    (contender / "records.jsonl").unlink()
    write_run(contender, kept)
    code, text = check(baseline, contender)
    assert (code, "the contender lacks replicate 1" in text) == (3, True), text


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a real run with three replicates of one cell."""
    place = tmp_path_factory.mktemp("measured")
    words = (
        "memory",
        "--dataset",
        "mnist",
        "--synthetic",
        "--size",
        "2000",
        "--compute",
        "none",
        "--model",
        "none",
    )
    done = storebench(place, "run", *words, "--replicates", "3", "--stores", "stores", "--out", place / "run")
    assert done.returncode == 0, done.stderr
    return place / "run"


def _planted(run: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    shutil.copytree(run, folder)
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for one in records:
        change(one)
    (folder / "records.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return folder


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("change", "figure"),
    [
        (lambda one: one.update(samples_per_s=3 * one["samples_per_s"]), "samples_per_s"),
        (lambda one: one.update(timed_s=one["timed_s"] / 2), "timed_s"),
        (lambda one: one["data_wait_ns"].update(p99=1), "data_wait_ns"),
        (lambda one: one.update(steps_file=None), "names no step table"),
        (lambda one: one.update(steps_file="steps/other.parquet"), "is not there"),
    ],
)
def test_figures_that_the_steps_do_not_give_are_refused_on_either_side(
    side: int, change: Callable[[dict[str, Any]], None], figure: str, measured: Path, tmp_path: Path
) -> None:
    sides = [measured, measured]
    assert check(*sides)[0] in (0, 4)
    sides[side] = _planted(measured, tmp_path / "planted", change)
    code, text = check(*sides)
    assert (code, figure in text) == (5, True), text
