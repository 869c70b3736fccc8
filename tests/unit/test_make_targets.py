"""The effect of errors of ``storebench bench`` on the targets of make that report afterwards."""

import subprocess
from pathlib import Path

import pytest

from tests.docs.doc_files import ROOT

STAND_IN = """#!/bin/sh
# The arguments of bench are: bench scenarios/NAME.toml --out FOLDER
echo "$1 $2" >&2  # a target shows what the report prints alone
[ "$1" = report ] && exit {report}
[ {records} = yes ] && mkdir -p "$4" && echo "{{}}" > "$4/records.jsonl"
exit {first}
"""
ANSWER = "bench scenarios/answer.toml"


def made(
    folder: Path, target: str, *, first: int, report: int = 0, records: str = "yes"
) -> tuple[list[str], bool]:
    """Run a target with a stand-in for storebench; return its calls, and whether the target succeeded."""
    program = folder / "bin" / "storebench"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(first=first, report=report, records=records), encoding="utf-8")
    program.chmod(0o755)
    command = ["make", "-s", "-o", "data", target, f"VENV={folder}", f"RUNS={folder}/runs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    return [line for line in lines if not line.startswith("make")], done.returncode == 0


@pytest.mark.parametrize(
    ("first", "report", "records", "last"),
    [
        (0, 0, "yes", "report"),
        (5, 0, "yes", "report"),
        (2, 0, "yes", ANSWER),
        (0, 3, "yes", "report"),
        (5, 0, "no", ANSWER),  # a full disk: there is nothing to report
    ],
)
def test_only_failed_replicates_let_the_rest_be_measured_and_reported(
    first: int, report: int, records: str, last: str, tmp_path: Path
) -> None:
    called, succeeded = made(tmp_path, "bench-all", first=first, report=report, records=records)
    assert called[-1].startswith(last)
    assert succeeded is (first == report == 0)
