"""The reference runs, which documents, plots and notebooks show, obey the rules of today."""

from pathlib import Path

import pytest

from storebench.analysis.checks.records import validate
from tests.docs.doc_files import ROOT

RUNS = sorted(path.parent for path in (ROOT / "results" / "reference").glob("*/run.json"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_reference_run_is_valid(run: Path) -> None:
    assert validate(run) == []
