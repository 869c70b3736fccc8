"""The error of the planner: cells are predicted from other runs only, and the table names every kind."""

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.plan_error import SEVERAL, Case, all_cases, width, widths_of
from storebench.analysis.plan.prediction_errors import PredictionKind
from storebench.record.schema import Record
from storebench.settings.words import ComputeKind
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
LOADING = [record for record in RECORDS if record.cell.compute.kind is ComputeKind.NONE]
BESIDE = [record for record in RECORDS if record not in LOADING]


def cases(folder: Path, known: Sequence[Record], records: Sequence[Record]) -> list[Case]:
    """Return the cases of a run."""
    runs = write_run(folder / "known", list(known)), write_run(folder / "run", list(records))
    return list(all_cases(runs[0], [runs[1]]))


def test_cells_on_their_curve_are_predicted_from_the_known_run(tmp_path: Path) -> None:
    found = cases(tmp_path, LOADING, RECORDS)
    assert {case.cell.cell.cell_id for case in found} == {record.cell.cell_id for record in BESIDE}
    assert {case.kinds for case in found} == {
        (PredictionKind.ACCELERATOR_LOOP,),
        (PredictionKind.ACCELERATOR_WORKERS,),
    }
    assert max(abs(case.error) for case in found if not case.cell.cell.workers) < 0.03
    assert {case.half for case in found} == {0, 1}
    seen = BESIDE[0].cell.cell_id
    again = cases(tmp_path / "again", [*LOADING, *(r for r in BESIDE if r.cell.cell_id == seen)], RECORDS)
    assert len(again) == len(found) - 1
    assert seen not in {case.cell.cell.cell_id for case in again}


def test_cells_that_differ_in_two_ways_are_of_two_kinds(tmp_path: Path) -> None:
    def changed(record: Record, **settings: object) -> Record:
        return dataclasses.replace(record, cell=dataclasses.replace(record.cell, **settings))  # type: ignore[arg-type]

    new = [changed(record, workers=3, batch_size=7) for record in LOADING if record.cell.workers]
    assert {case.kinds for case in cases(tmp_path, LOADING, new)} == {
        (PredictionKind.WORKERS, PredictionKind.BATCH)
    }


def test_the_interval_of_a_kind_needs_nine_cells_and_that_of_two_kinds_is_wider(tmp_path: Path) -> None:
    found = cases(tmp_path, LOADING, RECORDS)
    alone = [case for case in found if case.kinds == (PredictionKind.ACCELERATOR_LOOP,)]
    widths = widths_of(alone)
    assert widths[PredictionKind.WORKERS] is None
    both = dataclasses.replace(
        alone[0], kinds=(PredictionKind.ACCELERATOR_LOOP, PredictionKind.ACCELERATOR_LOOP)
    )
    one, two = width(alone[0], widths), width(both, widths)
    assert one is not None
    assert two == pytest.approx(2**0.5 * one)
    assert width(alone[0], widths_of(alone[:8])) is None


def test_the_command_prints_a_row_for_each_kind(tmp_path: Path) -> None:
    write_run(tmp_path / "known", LOADING)
    write_run(tmp_path / "run", RECORDS)
    command = [sys.executable, "-m", "benchmarks.plan_error", str(tmp_path / "known"), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == [
        *PredictionKind,
        SEVERAL,
        "all",
    ]
    assert f"| {PredictionKind.DEVICE} | 0 | no data |" in done.stdout
