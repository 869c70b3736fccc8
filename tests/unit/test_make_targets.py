"""What a failed replicate and other errors of ``storebench bench`` mean for the targets of make that report afterwards."""

import subprocess
from pathlib import Path

import pytest

from tests.docs.doc_files import ROOT

STAND_IN = """#!/bin/sh
# The arguments of bench are: bench scenarios/NAME.toml --out FOLDER
echo "$1 $2"
[ "$1" = report ] && exit {report}
[ {records} = yes ] && mkdir -p "$4" && echo "{{}}" > "$4/records.jsonl"
case "$2" in scenarios/roofline.toml) exit {second};; esac
exit {first}
"""
ANSWER, ROOFLINE, PAPER = (f"bench scenarios/{name}.toml" for name in ("answer", "roofline", "paper"))


def made(
    folder: Path, target: str, *, first: int, second: int = 0, report: int = 0, records: str = "yes"
) -> tuple[list[str], bool]:
    """Run a target with a stand-in for storebench; return its calls, and whether the target succeeded."""
    program = folder / "bin" / "storebench"
    program.parent.mkdir()
    program.write_text(
        STAND_IN.format(first=first, second=second, report=report, records=records), encoding="utf-8"
    )
    program.chmod(0o755)
    command = ["make", "-s", "-o", "data", target, f"VENV={folder}", f"RUNS={folder}/runs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines(), done.returncode == 0


@pytest.mark.parametrize(
    ("first", "second", "last"),
    [
        (0, 0, "report"),
        (5, 0, "report"),
        (0, 5, "report"),
        (5, 5, "report"),
        (2, 0, ANSWER),
        (130, 0, ANSWER),
        (0, 2, ROOFLINE),
        (5, 2, ROOFLINE),
    ],
)
def test_only_failed_replicates_let_the_rest_be_measured_and_reported(
    first: int, second: int, last: str, tmp_path: Path
) -> None:
    """A machine that reclaimed pages at the wrong moment once cost a user the whole report: 1 of 170 replicates failed."""
    called, succeeded = made(tmp_path, "bench-all", first=first, second=second)
    assert called[0] == ANSWER
    assert called[-1].startswith(last)
    assert succeeded is (first == second == 0)


@pytest.mark.parametrize(("first", "last"), [(0, "report"), (5, "report"), (2, PAPER)])
def test_the_whole_matrix_is_reported_after_failed_replicates(first: int, last: str, tmp_path: Path) -> None:
    called, succeeded = made(tmp_path, "bench-paper", first=first)
    assert called[-1].startswith(last)
    assert succeeded is (first == 0)


@pytest.mark.parametrize("first", [0, 5])
def test_a_report_that_fails_fails_the_target(first: int, tmp_path: Path) -> None:
    called, succeeded = made(tmp_path, "bench-all", first=first, report=3)
    assert called[-1].startswith("report")
    assert not succeeded


def test_a_full_disk_without_a_record_ends_the_target_at_once(tmp_path: Path) -> None:
    """It has the exit code of failed replicates, but there is nothing to report, and the rest would fail as well."""
    called, succeeded = made(tmp_path, "bench-all", first=5, records="no")
    assert called == [ANSWER]
    assert not succeeded
