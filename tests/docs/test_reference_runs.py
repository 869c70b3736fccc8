"""The reference runs, which documents, plots and notebooks show, obey the rules of today."""

from pathlib import Path

import pytest

from tests.docs.doc_files import ROOT
from tests.support.findings import validate

RUNS = sorted(path.parent for path in (ROOT / "results" / "reference").glob("*/run.json"))
SHARED = sorted((ROOT / "results" / "machines").iterdir())


@pytest.mark.parametrize("run", [*RUNS, *SHARED], ids=lambda run: run.name)
def test_a_reference_run_is_valid(run: Path) -> None:
    assert validate(run) == []
