"""The reference runs, from which documents, plots and notebooks follow, obey the rules of today."""

from pathlib import Path

import pytest

from tests.docs.doc_files import ROOT
from tests.support.quick_cli import storebench

RUNS = sorted(folder for folder in (ROOT / "results" / "reference").glob("*") if folder.is_dir())


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_reference_run_is_valid(run: Path) -> None:
    done = storebench(ROOT, "validate", run)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout
