"""Short trials: their figures are not asserted closely."""

import pytest


@pytest.fixture(autouse=True)
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storebench.stores.trials.READ_S", 0.01)
    monkeypatch.setattr("storebench.stores.lmdb_files.COLD_S", 0.05)
