"""Records of a real run that say something else than its steps: a check refuses them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storebench.check.sides import read_side
from tests.support.checked import run
from tests.support.quick_cli import storebench


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a real run with three replicates of one cell."""
    place = tmp_path_factory.mktemp("measured")
    dataset = ("--dataset", "mnist", "--synthetic", "--size", "2000")
    words = ("memory", *dataset, "--compute", "none", "--model", "none")
    done = storebench(place, "run", *words, "--replicates", "3", "--stores", "stores", "--out", place / "run")
    assert done.returncode == 0, done.stderr
    return place / "run"


def test_each_replicate_has_a_quickest_batch(measured: Path) -> None:
    [cell] = read_side(measured, baseline=True).cells.values()
    assert cell.quickest.keys() == cell.seconds.keys() == {0, 1, 2}
    assert all(0 < cell.quickest[number] < cell.seconds[number] for number in cell.seconds)


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
