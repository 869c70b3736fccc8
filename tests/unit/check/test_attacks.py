"""Attacks on the regression gate: each hides a slow-down or loses a cell, and the check must not be green."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storebench.record.schema import CodeFacts, Record
from tests.support.checked import run
from tests.support.planted_sides import paired, slower
from tests.support.quick_cli import storebench


def in_rounds(*factors: float) -> Callable[[Record], Record]:
    return lambda one: slower(factors[one.replicate % len(factors)])(one)


def half_of_the_samples_in_half_of_the_time(one: Record) -> Record:
    assert one.store is not None
    return slower(0.5)(dataclasses.replace(one, store=dataclasses.replace(one.store, count=500)))


def other_code(one: Record) -> Record:
    return dataclasses.replace(one, code=CodeFacts(digest=str(one.replicate)))


ATTACKS: dict[str, tuple[Callable[[Record], Record | None], int]] = {
    # name: (what becomes of the contender's records of LMDB, the exit code that is due)
    "a reader 1.5 times as slow": (slower(1.5), 1),
    "five rounds of six three times as slow, one twice": (in_rounds(3, 3, 3, 3, 3, 2), 1),
    "three rounds of six": (in_rounds(3, 1), 4),
    "every round, by other factors": (in_rounds(1.1, 30, 2, 1.2, 12, 4), 4),
    "two rounds of six": (in_rounds(20, 1, 1), 4),
    "the slow cell is gone": (lambda _: None, 5),
    "a lost slow replicate": (lambda one: None if one.replicate == 1 else one, 3),
    "half of the samples in half of the time": (half_of_the_samples_in_half_of_the_time, 3),
    "other code in each round": (other_code, 5),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_the_gate_is_not_green(tmp_path: Path, name: str) -> None:
    change, due = ATTACKS[name]
    code, text = run(*paired(tmp_path, change))
    assert code == due, text
    assert ("perhaps slower, 1 of 3 cells: cifar10/lmdb" in text) is (due == 4)


def test_the_same_code_is_green(tmp_path: Path) -> None:
    code, text = run(*paired(tmp_path))
    assert code == 0, text


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a real run with three replicates of one cell."""
    place = tmp_path_factory.mktemp("measured")
    dataset = ("--dataset", "mnist", "--synthetic", "--size", "2000")
    words = ("memory", *dataset, "--compute", "none", "--model", "none")
    done = storebench(place, "run", *words, "--replicates", "3", "--stores", "stores", "--out", place / "run")
    assert done.returncode == 0, done.stderr
    return place / "run"


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("change", "figure"),
    [
        (lambda one: one.update(samples_per_s=3 * one["samples_per_s"]), "samples_per_s"),
        (lambda one: one.update(timed_s=one["timed_s"] / 2), "timed_s"),
        (lambda one: one["data_wait_ns"].update(p99=1), "data_wait_ns"),
        (lambda one: one.update(steps_file=None), "nothing shows the steps"),
        (lambda one: one.update(steps_file="steps/other.parquet"), "is not there"),
    ],
)
def test_figures_that_the_steps_do_not_give_are_refused(
    side: int, change: Callable[[dict[str, Any]], None], figure: str, measured: Path, tmp_path: Path
) -> None:
    sides = [measured, measured]
    assert run(*sides)[0] == 4
    sides[side] = shutil.copytree(measured, tmp_path / "planted")
    path = sides[side] / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for one in records:
        change(one)
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    code, text = run(*sides)
    assert (code, figure in text) == (5, True), text
