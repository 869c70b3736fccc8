"""The reference runs, from which documents, plots and notebooks follow, obey the rules of today."""

import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.nodes import kept
from benchmarks.nodes.tables import tables
from tests.docs.doc_files import ROOT
from tests.docs.validations import NAME, runs, validation
from tests.support.quick_cli import storebench


@pytest.mark.parametrize("run", runs(), ids=lambda run: run.name)
def test_a_reference_run_is_valid_and_its_file_says_so(run: Path) -> None:
    done = storebench(ROOT, "validate", run)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout
    said = validation(run, done.stdout + done.stderr, done.returncode)
    assert (ROOT / run / NAME).read_text(encoding="utf-8") == said, "run 'make validations'"


def test_every_folder_of_reference_results_is_known() -> None:
    folders = {path.name for path in (ROOT / "results" / "reference").iterdir() if path.is_dir()}
    assert folders == {run.name for run in runs()} | {kept.FOLDER.name}


def test_reference_targets_measure_every_run_that_they_remove() -> None:
    """Before the files of validation are written: those cover all runs."""
    measured: set[str] = set()
    for target in ("reference", "reference-gpu"):
        done = subprocess.run(
            ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        removed = {
            word for line in done.splitlines() if line.startswith("rm -rf") for word in line.split()[2:]
        }
        before, validated, _ = done.partition("tests.docs.validations")
        assert validated
        assert removed == set(re.findall(r"bench .* --out (results/reference/\S+)", before))
        measured |= removed
    assert measured == {str(run) for run in runs()}


def test_the_page_on_emulated_nodes_has_the_committed_figures() -> None:
    page = (ROOT / "docs" / "nodes.md").read_text(encoding="utf-8")
    for part in tables(ROOT / kept.FOLDER):
        assert part in page, "print the tables with 'python -m benchmarks.nodes tables'"
