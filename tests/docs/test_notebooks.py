"""The notebooks run from start to end on the reference results, and show plots."""

import pytest

from tests.docs.doc_files import ROOT
from tests.docs.notebooks import MOST_BYTES, NOTEBOOKS, executed_together


def test_the_notebooks_run() -> None:
    if not (ROOT / "results" / "reference" / "paper" / "records.jsonl").is_file():
        pytest.skip("results/reference is not there yet: run 'make reference'")
    for path, book in zip(NOTEBOOKS, executed_together(NOTEBOOKS), strict=True):
        outputs = [one for cell in book.cells if cell.cell_type == "code" for one in cell.outputs]
        assert [one.text for one in outputs if one.get("name") == "stderr"] == [], path
        assert any("image/png" in one.get("data", {}) for one in outputs), path
        assert path.stat().st_size < MOST_BYTES
