"""What a failed replicate and other errors of ``storebench bench`` mean for the targets of make that report afterwards."""

import subprocess
from pathlib import Path

import pytest

from tests.docs.doc_files import ROOT

STAND_IN = """#!/bin/sh
echo "$1 $2"
case "$2" in scenarios/answer.toml|scenarios/paper.toml) exit {code};; esac
"""


@pytest.mark.parametrize(
    ("target", "first", "rest"),
    [("bench-all", "bench scenarios/answer.toml", 2), ("bench-paper", "bench scenarios/paper.toml", 1)],
)
@pytest.mark.parametrize(("code", "goes_on"), [(0, True), (5, True), (2, False), (130, False)])
def test_only_failed_replicates_let_the_rest_be_measured_and_reported(
    target: str, first: str, rest: int, code: int, goes_on: bool, tmp_path: Path
) -> None:
    """A machine that reclaimed pages at the wrong moment once cost a user the whole report: 1 of 170 replicates failed."""
    program = tmp_path / "bin" / "storebench"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(code=code), encoding="utf-8")
    program.chmod(0o755)
    command = ["make", "-s", "-o", "data", target, f"VENV={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    ran = done.stdout.splitlines()
    assert ran[0] == first
    assert len(ran) == 1 + (rest if goes_on else 0)
    assert (ran[-1].startswith("report")) is goes_on
    assert (done.returncode == 0) is (code == 0)
