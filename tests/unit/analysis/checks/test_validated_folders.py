"""Validation of the files of a run: tables, repeated replicates, lines that are no record; and the command."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from storebench.analysis.checks.findings import Rule
from storebench.record.schema import Status
from tests.support.findings import validate
from tests.support.planted import make_record, write_run

Cli = Callable[..., CompletedProcess[str]]


def test_the_same_replicate_twice_is_found(tmp_path: Path) -> None:
    (found,) = validate(write_run(tmp_path / "run", [make_record("lmdb"), make_record("lmdb")]))
    assert "twice" in found.message


def test_a_line_that_is_no_record_is_found_and_a_half_line_is_not(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_record("lmdb")])
    with (run / "records.jsonl").open("a") as file:
        file.write('{"schema_version": 2, "run_id": 5}\n{"schema_version": 7}\n{"schema_ver')
    findings = validate(run)
    assert [finding.kind for finding in findings] == [Rule.SCHEMA, Rule.SCHEMA]
    assert findings[0].cell.endswith("records.jsonl:2")
    assert {(finding.cell_id, finding.run_id, finding.figure) for finding in findings} == {("", "", "record")}


@pytest.mark.parametrize("command", ["validate", "report"])
def test_files_without_a_record_are_named_as_they_were_given(command: str, tmp_path: Path, cli: Cli) -> None:
    for name in ("one.jsonl", "two.jsonl"):
        (tmp_path / name).write_text("")
    done = cli(command, "one.jsonl", "two.jsonl")
    assert done.returncode == 2
    assert "one.jsonl, two.jsonl: there is no whole record" in done.stderr


def test_a_failed_record_claims_nothing(tmp_path: Path) -> None:
    failed = make_record(
        "lmdb", status=Status.FAILED, failure="12% resident", samples_per_s=1e9, coverage=None
    )
    assert validate(write_run(tmp_path / "run", [failed])) == []


def test_the_command_prints_findings_and_exits_5(tmp_path: Path, cli: Cli) -> None:
    write_run(tmp_path / "good", [make_record("lmdb")])
    write_run(tmp_path / "bad", [dataclasses.replace(make_record("lmdb"), overhead_s=0.9)])
    good, bad, as_json = cli("validate", "good"), cli("validate", "bad"), cli("validate", "bad", "--json")
    assert (good.returncode, bad.returncode, as_json.returncode) == (0, 5, 5)
    assert "overhead_s" in bad.stdout
    assert json.loads(as_json.stdout)[0]["figure"] == "overhead_s"
    assert len(bad.stderr.splitlines()) == 1


def test_the_command_names_what_failed_and_so_has_no_figures(tmp_path: Path, cli: Cli) -> None:
    failed = make_record("lmdb", status=Status.FAILED, failure="12% resident", coverage=None, steps_file=None)
    write_run(tmp_path / "run", [make_record("png"), failed])
    done, traced = cli("validate", "run"), cli("trace", "run", "--cell", "lmdb", "--out", "t.json")
    assert done.returncode == 0, done.stderr
    assert "not checked: 1 record of failed replicates (lmdb warm)" in done.stderr
    assert traced.returncode == 2
    assert "no record with steps for 'lmdb': it failed (12% resident)" in traced.stderr


@pytest.mark.parametrize("damaged", [False, True])
def test_half_a_replicate_is_left_out_where_writing_it_was_interrupted(damaged: bool, tmp_path: Path) -> None:
    """Where a line of the file is no record, that line may be the other half, so nothing is left out."""
    first, second = (make_record("lmdb", cache="warm", epochs=2, epoch=epoch) for epoch in (0, 1))
    half = dataclasses.replace(first, replicate=1, overhead_s=1.0)
    run = write_run(tmp_path / "run", [first, second, half])
    if damaged:
        with (run / "records.jsonl").open("a", encoding="utf-8") as file:
            file.write('{"schema_version": 2}\n')
    figures = {finding.figure for finding in validate(run)}
    assert ("overhead_s" in figures) is damaged
    assert ("record" in figures) is damaged
