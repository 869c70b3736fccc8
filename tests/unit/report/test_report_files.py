"""A report's files: all of them or none, figures to the digit, plots of everything that was measured."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from storebench.accelerators import find_accelerator
from storebench.analysis.checks.records import read_results
from storebench.cli.main import app
from storebench.errors import IntegrityError, OutputError
from storebench.record.lines import RECORDS_NAME
from storebench.record.schema import Record, Status
from storebench.report.build import write_report
from storebench.report.content import content_of
from tests.support.planted import cold_start, make_record, paper_records, replicates, write_run
from tests.support.planted_roofline import curve_records

NONE: dict[str, Any] = {"compute": "none", "model": "none", "compute_ms": 0.0}
FIVE = (0.99, 1.0, 1.01, 1.0, 1.0)


def many_records() -> list[Record]:
    """Return records of every kind that a section can show."""
    cold = [
        cold_start(record, at_2=(100.0, 0.3, 0.28), at_5=(90.0, 0.05, 0.0))
        for record in paper_records("cold")
    ]
    return [
        *paper_records("warm"),
        *cold,
        *replicates("lmdb", [3.0, 3.1, 3.0], workers=2),
        *replicates("png", [50.0, 50.0, 51.0], workers=2),
        *replicates("lmdb", [3.0, 3.1, 3.0], cache="limited", memory_bytes=300_000_000),
        *curve_records("leveldb", 800.0, workers=2, spread=FIVE),
        make_record("hdf5", workers=4, status=Status.FAILED, failure="it could not be read"),
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("files") / "run", many_records(), with_steps=True)


@pytest.fixture(scope="module")
def report(run: Path) -> Path:
    out = run.parent / "report"
    write_report(run, out, allow_invalid=True, plots=True)
    return out


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_kind_of_plot_and_table_is_there(report: Path) -> None:
    kinds = {path.stem.removesuffix("-imagenet-4000") for path in report.glob("*.svg")}
    assert kinds >= {
        "throughput", "step-time", "roofline", "workers", "wait-over-epoch", "wait-distribution", "loss",
    }  # fmt: skip
    assert {path.stem for path in report.glob("*.svg")} == {path.stem for path in report.glob("*.png")}
    tables = {path.stem.removesuffix("-imagenet-4000") for path in report.glob("*.csv")}
    assert tables >= {"table", "cold", "io", "roofline", "roofline-points"}


def test_no_two_cells_share_a_name_in_the_tables(tmp_path: Path) -> None:
    loaders = [
        record
        for kind in ("threads", "ring")
        for record in replicates("lmdb", [3.0] * 3, loader=kind, workers=2)
    ]
    write_report(
        write_run(tmp_path / "run", [*loaders, *replicates("png", [50.0] * 3, workers=2)]), tmp_path / "out"
    )
    for path in (tmp_path / "out").glob("io-*.csv"):
        names = [(row["backend"], row["setting"]) for row in rows_of(path)]
        assert len(set(names)) == len(names) == 3


def test_the_csv_file_has_the_figures_to_the_digit(report: Path, run: Path) -> None:
    records = {(r.cell.cell_id, r.replicate): r for r in many_records()}
    for row in rows_of(report / "table-imagenet-4000.csv"):
        own = [
            record
            for (cell_id, _), record in records.items()
            if cell_id == row["cell_id"] and not record.failed
        ]
        if row["status"] == "ok" and row["cache"] != "limited":
            rates = sorted(record.samples_per_s for record in own)
            assert float(row["samples_per_s"]) == pytest.approx(rates[len(rates) // 2], rel=1e-12)
    failed = [row for row in rows_of(report / "table-imagenet-4000.csv") if row["status"] == "failed"]
    assert failed == [] or {row["backend"] for row in failed} == {"hdf5"}


def test_the_page_is_one_file_that_fetches_nothing(report: Path) -> None:
    page = (report / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/svg+xml;base64,") >= 6
    for outside in ('src="http', 'href="http', "url(", "@import", "<link"):
        assert outside not in page
    assert "it could not be read" in page


def test_the_first_screen_names_the_answer_before_anything_else(report: Path) -> None:
    page = (report / "report.html").read_text(encoding="utf-8")
    assert 0 < page.index('id="answer"') < page.index("<h2")


def test_findings_refuse_a_report_unless_they_are_allowed(tmp_path: Path) -> None:
    wrong = dataclasses.replace(make_record("png"), overhead_s=1.0)
    run = write_run(tmp_path / "run", [wrong, make_record("lmdb")])
    with pytest.raises(IntegrityError, match="1 finding"):
        write_report(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    content = write_report(run, tmp_path / "out", allow_invalid=True).content
    assert [cell.backend for cell in content.cells if cell.invalid] == ["png"]
    assert "INVALID" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_a_report_that_cannot_be_written_leaves_the_old_one(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.md").write_text("old")
    (out / "report.html").mkdir()
    (out / "report.html" / "in the way").write_text("")
    with pytest.raises(OutputError):
        write_report(run, out, allow_invalid=True)
    assert (out / "report.md").read_text() == "old"


def test_the_same_records_give_the_same_files(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", paper_records(), with_steps=True)
    first = {p.name: p.read_bytes() for p in write_report(run, tmp_path / "a").files}
    second = {p.name: p.read_bytes() for p in write_report(run, tmp_path / "b").files}
    assert first == second


def test_the_command_prints_a_table_and_the_answer(run: Path, tmp_path: Path) -> None:
    command = [
        "report",
        str(run),
        "--out",
        str(tmp_path / "out"),
        "--allow-invalid",
        "--accelerator",
        "mine=500",
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    answer = content_of(
        read_results(run / RECORDS_NAME, allow_invalid=True), [find_accelerator("mine=500")]
    ).answer
    assert answer.sentence in done.stdout
    assert "feeds it, " in done.stdout
    as_json = CliRunner().invoke(app, [*command, "--json"])
    told = json.loads(as_json.stdout)
    assert told["answer"] == answer.sentence
    assert told["failed_cells"] >= 1
    assert {"caption", "rows"} == set(told["tables"][0])


@pytest.mark.parametrize("recorded", [5, 2])
def test_a_run_that_lacks_replicates_says_so_and_how_to_finish(tmp_path: Path, recorded: int) -> None:
    records = replicates("png", [3.0, 3.1, 3.0, 3.0, 3.0])[:recorded]
    run = write_run(tmp_path / "run", records)
    scenario = {"name": "mine", "replicates": 5, "matrix": [{"dataset": "imagenet", "backends": ["png"]}]}
    about = {"run_id": "run-a", "cells": [{"cell_id": records[0].cell.cell_id}], "scenario": scenario}
    (run / "run.json").write_text(json.dumps(about))
    told = content_of(read_results(run, allow_invalid=True)).incomplete
    assert [("2 of 5 replicates" in text, "--resume" in text) for text in told] == [(True, True)] * (
        recorded < 5
    )
