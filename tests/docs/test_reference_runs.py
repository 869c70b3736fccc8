"""The reference runs, which documents, plots and notebooks show, obey the rules of today."""

from pathlib import Path

import pytest

from storebench.analysis.checks.records import validate
from tests.docs.figures import REFERENCE, RESULTS, filled

RUNS = sorted(path.parent for path in REFERENCE.glob("*/run.json"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_reference_run_is_valid(run: Path) -> None:
    assert validate(run) == []


def test_tables_of_rates_are_up_to_date() -> None:
    text = RESULTS.read_text(encoding="utf-8")
    assert "<!-- rates: " in text
    assert text == filled(text), "run 'make docs'"
