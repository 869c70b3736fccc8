"""The error of the planner: no prediction uses what it is compared with, and the table names every kind."""

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.plan_error import Case, all_cases
from storebench.planner.errors import Kind, read_errors
from storebench.results import Record
from tests.support.planted import write_run
from tests.support.planted_roofline import curve_records

ROOT = Path(__file__).resolve().parents[3]


RECORDS = [
    record
    for backend, rate in (("png", 1000.0), ("lmdb", 8000.0))
    for workers in (0, 2)
    for record in curve_records(backend, rate, workers=workers)
]
"""Two stores whose cells lie on their curves."""


def cases(folder: Path, records: Sequence[Record]) -> dict[str, Case]:
    """Return the cases of a run by the id of their cell."""
    return {case.cell.cell.cell_id: case for case in all_cases([write_run(folder, list(records))])}


def test_cells_on_their_curve_are_predicted(tmp_path: Path) -> None:
    found = cases(tmp_path / "run", RECORDS).values()
    assert {case.kind for case in found} == {
        Kind.ACCELERATOR_LOOP,
        Kind.ACCELERATOR_WORKERS,
        Kind.WORKERS,
    }
    slow = [case for case in found if case.kind is Kind.ACCELERATOR_LOOP]
    assert len(slow) == 10
    assert max(abs(case.error(100.0)) for case in slow) < 0.03
    assert {case.fits for case in found} == {True, False}


@pytest.mark.parametrize("kind", [Kind.ACCELERATOR_LOOP, Kind.ACCELERATOR_WORKERS, Kind.WORKERS])
def test_a_prediction_does_not_use_the_rate_that_it_is_compared_with(kind: Kind, tmp_path: Path) -> None:
    before = cases(tmp_path / "a", RECORDS)
    target = next(case for case in before.values() if case.kind is kind and case.cell.backend == "png")
    changed = [
        dataclasses.replace(
            record,
            samples_per_s=record.samples_per_s / 3,
            timed_s=3 * record.timed_s,
            fetch_s=9 * record.fetch_s,
        )
        if record.cell.cell_id == target.cell.cell.cell_id
        else record
        for record in RECORDS
    ]
    again = cases(tmp_path / "b", changed)[target.cell.cell.cell_id]
    assert again.measured == pytest.approx(target.measured / 3)
    assert again.limits == target.limits


def test_the_command_prints_a_row_for_each_kind(tmp_path: Path) -> None:
    write_run(tmp_path / "run", RECORDS)
    command = [sys.executable, "-m", "benchmarks.plan_error", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == [*Kind, "all"]
    assert f"| {Kind.DEVICE} | 0 | no data |" in done.stdout


def test_the_errors_that_plan_prints_are_of_measured_kinds() -> None:
    found = read_errors()
    assert Kind.ACCELERATOR_WORKERS in found
    assert all(error.median_error >= 0 for error in found.values())
