"""Short reads: their figures are not asserted closely."""

import pytest


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storebench.stores.inspection.BUDGET_S", 0.3)
