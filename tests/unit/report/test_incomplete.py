"""A run that lacks replicates, rounds or conversions says so in the first lines of everything that is made of it."""

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storebench.report.build import write_report
from storebench.report.shortfall import Shortfall, shortfalls
from storebench.report.summary import summarise_results
from storebench.report.texts.incomplete import incomplete_sentence
from storebench.results import Cell, Record
from storebench.runs.folder import Run
from storebench.runs.manifest import Begun, resume_command
from storebench.runs.records import PAIRING_NAME, append_records, read_records
from storebench.scenario import make_scenario
from storebench.surroundings import LeftOut
from tests.support.planted import make_record

pytestmark = pytest.mark.usefixtures("without_pictures")

Cli = Callable[..., subprocess.CompletedProcess[str]]
MATRIX = {"dataset": "mnist", "backends": ["png", "lmdb", "hdf5"], "model": "lenet", "cache": "warm"}


def begun(folder: Path, **keys: Any) -> Run:
    keys = keys if "until" in keys else {"replicates": 3} | keys
    scenario = make_scenario({"name": "planted", "matrix": [MATRIX]} | keys)
    return Run.create(scenario, folder, scenario.cells())


def measured(run: Run, cell: Cell, replicate: int) -> Record:
    """Record a replicate of a cell as if it had run."""
    record = make_record(cell.backend.name, replicate=replicate, cache="warm", dataset="mnist", size=None)
    record = dataclasses.replace(record, cell=cell, run_id=run.run_id)
    append_records(run.folder, [record])
    return record


def recorded(run: Run, rounds: int, *, without: str = "") -> Run:
    for replicate in range(rounds):
        for cell in run.cells:
            if cell.backend.name != without:
                measured(run, cell, replicate)
    return run


def lacking(run: Run) -> Shortfall | None:
    found = shortfalls([(record, run.folder / "records.jsonl") for record in read_records(run.folder)])
    return found[0] if found else None


def test_a_complete_run_lacks_nothing(tmp_path: Path) -> None:
    assert lacking(recorded(begun(tmp_path / "run"), 3)) is None


def test_an_interrupted_run_lacks_the_rest_of_its_rounds(tmp_path: Path) -> None:
    run = recorded(begun(tmp_path / "run"), 1)
    measured(run, run.cells[0], 1)
    found = lacking(run)
    assert found is not None
    assert (found.recorded, found.wanted, found.whole_rounds, found.rounds) == (4, 9, 1, 3)
    assert found.empty_cells == ()


def test_a_cell_that_never_ran_is_named(tmp_path: Path) -> None:
    found = lacking(recorded(begun(tmp_path / "run"), 3, without="hdf5"))
    assert found is not None
    assert found.empty_cells == (("mnist", "hdf5", "warm"),)
    assert (found.recorded, found.wanted, found.whole_rounds) == (6, 9, 0)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run_id": "a", "cells": []}'])
def test_a_folder_that_promises_nothing_is_not_called_incomplete(content: str, tmp_path: Path) -> None:
    run = recorded(begun(tmp_path / "run"), 1)
    (run.folder / "run.json").write_text(content)
    assert lacking(run) is None
    (run.folder / "run.json").unlink()
    assert lacking(run) is None


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    recorded(begun(folder / "run"), 2, without="hdf5")
    write_report(folder / "run", folder / "report", allow_invalid=True)
    return folder


def test_a_page_of_an_incomplete_run_says_so_before_its_answer(interrupted: Path) -> None:
    said = "INCOMPLETE: run "
    page = (interrupted / "report" / "report.html").read_text(encoding="utf-8")
    assert page.index(said) < page.index('id="answer"')
    lines = [
        line
        for line in (interrupted / "report" / "report.md").read_text(encoding="utf-8").splitlines()
        if line
    ]
    assert said in lines[1]
    assert "4 of 9 replicates are recorded, and 0 of 3 rounds are complete" in lines[1]
    assert "1 of 3 cells have no record (MNIST HDF5 warm)" in lines[1]


def test_the_terminal_says_it_first_and_beside_the_answer(
    interrupted: Path, tmp_path: Path, cli: Cli
) -> None:
    done = cli("report", str(interrupted / "run"), "--out", str(tmp_path / "out"), "--allow-invalid")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("INCOMPLETE: run ")
    assert lines[-2] == lines[0]
    found = cli(
        "report", str(interrupted / "run"), "--out", str(tmp_path / "out"), "--allow-invalid", "--json"
    )
    assert json.loads(found.stdout)["incomplete"] == [lines[0]]
    assert summarise_results(interrupted / "run").incomplete == (lines[0],)


@pytest.mark.parametrize(
    ("scenario", "begins"),
    [
        ("first", "storebench run --resume"),
        ("run", "storebench run --resume"),
        ("paper", "storebench bench paper --resume"),
        ("planted", "storebench bench SCENARIO.toml --resume"),
    ],
)
def test_it_names_the_command_that_continues_the_run(scenario: str, begins: str, tmp_path: Path) -> None:
    run = recorded(begun(tmp_path / "my run", name=scenario), 2)
    found = lacking(run)
    assert found is not None
    command = f"{begins} --out '{tmp_path / 'my run'}'"
    assert f"Finish it with '{command}' before you draw" in incomplete_sentence(found)
    assert resume_command(run.folder, scenario) == command


@pytest.mark.parametrize(
    ("scenario", "how", "command"),
    [
        ("first", Begun(file="x.toml"), "bench x.toml --resume --retry-failed --out r"),
        (
            "run",
            Begun(stores=Path("/my stores")),
            "run --resume --retry-failed --out r --stores '/my stores'",
        ),
        ("paper", Begun(drop_caches=True), "bench paper --resume --retry-failed --out r --drop-caches"),
        ("ranks", Begun(nodes=["--nodes", "2"]), "bench ranks --resume --retry-failed --out r --nodes 2"),
    ],
)
def test_the_command_has_what_the_folder_does_not_tell(scenario: str, how: Begun, command: str) -> None:
    assert resume_command(Path("r"), scenario, how, retry_failed=True) == f"storebench {command}"


def test_one_side_of_a_comparison_is_as_long_as_its_budget_was(tmp_path: Path) -> None:
    side = begun(tmp_path / "contender", replicates=40)
    (side.folder / PAIRING_NAME).write_text("{}")
    assert lacking(recorded(side, 3)) is None
    measured(side, side.cells[0], 3)
    found = lacking(side)
    assert found is not None
    assert (found.recorded, found.wanted, found.resume) == (10, 12, "")
    assert incomplete_sentence(found).endswith(
        "It is one side of a comparison with a revision, which cannot be continued: compare again before you draw"
        " conclusions from these figures."
    )


def test_one_side_of_a_comparison_is_not_continued_by_itself(tmp_path: Path, cli: Cli) -> None:
    side = recorded(begun(tmp_path / "contender", name="run"), 1)
    (side.folder / PAIRING_NAME).write_text("{}")
    done = cli("run", "--resume", "--out", str(side.folder))
    assert done.returncode == 2
    assert "one side of a comparison with a revision cannot be continued by itself" in done.stderr
    assert len(read_records(side.folder)) == len(side.cells)


def test_a_complete_run_has_no_such_line(tmp_path: Path) -> None:
    recorded(begun(tmp_path / "run"), 3)
    written = write_report(tmp_path / "run", tmp_path / "out", allow_invalid=True)
    assert written.incomplete == ()
    assert "INCOMPLETE" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_cells_that_the_machine_did_not_permit_are_named_with_the_reason(tmp_path: Path) -> None:
    scenario = make_scenario({"name": "planted", "replicates": 3, "matrix": [MATRIX]})
    cells = scenario.cells()
    refused = [LeftOut(cell=cell, reason="control groups are for root alone") for cell in cells[1:]]
    run = recorded(Run.create(scenario, tmp_path / "run", cells[:1], left_out=refused), 3)
    assert lacking(run) is None
    write_report(run.folder, tmp_path / "out", allow_invalid=True)
    header = (tmp_path / "out" / "report.html").read_text(encoding="utf-8").partition("</header>")[0]
    assert (
        "2 cells of optional matrices were left out (LMDB, HDF5): control groups are for root alone."
        in header
    )
