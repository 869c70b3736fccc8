"""Matrices with fewer replicates than their scenario: which run, what is complete, and what more rounds add."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from storebench.record.lines import read_records
from storebench.run.about import fewer_replicates, read_about
from storebench.run.folder import Run
from storebench.run.scenario import Scenario, make_scenario
from tests.support.harness_tools import Bench

SMALL = {
    "dataset": "mnist", "synthetic": True, "limit": 16, "batch_size": 8, "model": "none", "compute": "none",
    "threads": 1, "cache": "any",
}  # fmt: skip


def three_rounds(*, first: int | None = 1, second: int | None = None, **keys: Any) -> Scenario:
    """Return a scenario of PNG files in a matrix of its own, and of LMDB and PNG files in another."""
    matrices = [SMALL | {"backends": ["png"]}, SMALL | {"backends": ["lmdb", "hdf5"]}]
    for matrix, number in zip(matrices, (first, second), strict=True):
        if number is not None:
            matrix["replicates"] = number
    return make_scenario({"name": "fewer", "test_limit": 0, "matrix": matrices} | ({"replicates": 3} | keys))


def of_backends(scenario: Scenario, numbers: Counter[str]) -> dict[str, int]:
    names = {cell.cell_id: cell.backend.name for cell in scenario.cells()}
    return {names[cell_id]: number for cell_id, number in numbers.items()}


def left(run: Run) -> dict[str, int]:
    return of_backends(run.scenario, Counter(work.cell.cell_id for work in run.left()))


@pytest.mark.full
def test_a_matrix_with_fewer_replicates_runs_in_the_first_rounds(bench: Bench, tmp_path: Path) -> None:
    file, out = tmp_path / "fewer.toml", tmp_path / "run"
    file.write_text(
        'name = "fewer"\nreplicates = 3\ntest_limit = 0\nceilings = false\n'
        + "".join(
            "[[matrix]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in matrix.items())
            for matrix in (
                SMALL | {"backends": ["png"], "replicates": 1},
                SMALL | {"backends": ["lmdb"]},
            )
        )
    )
    planned = bench.cli("bench", file, "--dry-run", "--stores", bench.stores)
    assert "2 cells x 1 to 3 replicates" in planned.stdout
    done = bench.cli("bench", file, "--stores", bench.stores, "--out", out)
    assert done.returncode == 0, done.stderr
    ran = [(record.cell.backend.name, record.replicate) for record in read_records(out)]
    assert sorted(ran) == [("lmdb", 0), ("lmdb", 1), ("lmdb", 2), ("png", 0)]
    checked = bench.cli("validate", out)
    assert checked.returncode == 0, checked.stdout + checked.stderr

    # One more round: the matrix with a number of its own keeps it.
    more = bench.cli("bench", file, "--resume", "--replicates", "4", "--stores", bench.stores, "--out", out)
    assert more.returncode == 0, more.stderr
    assert Counter(record.cell.backend.name for record in read_records(out)) == {"png": 1, "lmdb": 4}
    assert bench.cli("validate", out).returncode == 0


def test_a_cell_of_two_matrices_has_the_larger_number() -> None:
    matrices = [
        SMALL | {"backends": ["png"], "replicates": 1},
        SMALL | {"backends": ["png", "lmdb"], "replicates": 2},
    ]
    scenario = make_scenario({"name": "fewer", "replicates": 3, "matrix": matrices})
    assert {cell.backend.name: number for cell, number in scenario.fewer_replicates.items()} == {
        "png": 2,
        "lmdb": 2,
    }
    whole = make_scenario(
        {"name": "whole", "replicates": 3, "matrix": [matrices[0], SMALL | {"backends": ["png"]}]}
    )
    assert whole.fewer_replicates == {}


def test_a_fixed_number_of_rounds_is_that_of_every_cell() -> None:
    fixed = three_rounds().repeated(2)
    assert fixed.replicates == 2
    assert fixed.fewer_replicates == {}
    assert "replicates" not in fixed.model_dump(exclude_unset=True)["matrix"][0]
    assert fixed.cells() == three_rounds().cells()


def test_an_extended_run_has_no_gap_while_it_runs(tmp_path: Path) -> None:
    scenario = three_rounds(second=3)
    run = Run.create(scenario, tmp_path / "run", scenario.cells()).extended(5)
    assert left(run) == {"png": 1, "lmdb": 3, "hdf5": 3}
    assert left(Run.read(run.folder)) == left(run)
    number = fewer_replicates(read_about(run.folder / "run.json"))
    assert number is not None
    assert of_backends(scenario, Counter(number)) == {"png": 1, "lmdb": 3, "hdf5": 3}
