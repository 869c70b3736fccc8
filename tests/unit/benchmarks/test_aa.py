"""A/A in small: twins that differ by chance alone are seldom called different, a twin that is slower is."""

import dataclasses
import tomllib

import numpy as np
import pytest

from benchmarks.aa import called_different, chance, comparisons, scenario
from storebench.results import Cell, Record
from storebench.scenario import Scenario
from storebench.stats import corrected

BACKENDS = 40
ROUNDS = 7


def run_of(seed: int, slower: float = 1.0) -> list[Record]:
    """Return the records of twins whose rounds and processes vary by 5% each; the last twin is slower."""
    rng = np.random.default_rng(seed)
    base = Cell.of_fields(
        dataset="mnist", backend="b0", format="b0", codec="raw", reader="x", batch_size=1, model="tiny"
    )
    records = []
    for replicate in range(ROUNDS):
        machine = rng.lognormal(sigma=0.05)
        for number in range(BACKENDS):
            for limit in (None, 100):
                rate = 1000 * (1 + number) * machine * rng.lognormal(sigma=0.05)
                rate /= slower if limit and number == BACKENDS - 1 else 1
                compute = "real" if number % 2 else "none"
                asked = {"backend": f"b{number}", "max_steps": limit, "compute": compute}
                cell = Cell.of_fields(**(base.fields() | asked))
                records.append(
                    Record(
                        storebench_version="0",
                        run_id=str(seed),
                        cell=cell,
                        replicate=replicate,
                        epoch=0,
                        started_utc="",
                        samples_per_s=rate if compute == "none" else 1.0,
                        compute_s=1 / rate,
                    )
                )
    return records


@pytest.mark.full
def test_twins_that_differ_by_chance_are_seldom_called_different() -> None:
    runs = [list(comparisons(run_of(seed)).values()) for seed in range(40)]
    assert all(len(found) == BACKENDS for found in runs)
    alone = sum(map(called_different, runs)) / sum(map(len, runs))
    assert 0.03 < alone < 0.07
    assert sum(called_different(corrected(found)) > 0 for found in runs) <= 5


def test_a_twin_that_is_slower_is_called_slower() -> None:
    found = comparisons(run_of(1, slower=1.5))
    (last,) = (one for cell, one in found.items() if cell.backend.name == f"b{BACKENDS - 1}")
    assert last.verdict == "slower"


@pytest.mark.parametrize(("alarms", "count", "expected"), [(0, 20, 1.0), (1, 1, 0.05), (2, 2, 0.0025)])
def test_the_probability_of_false_alarms_is_binomial(alarms: int, count: int, expected: float) -> None:
    assert chance(alarms, count) == pytest.approx(expected)


def test_every_cell_of_the_scenario_has_one_twin() -> None:
    cells = Scenario.model_validate(tomllib.loads(scenario())).cells()
    limited = {dataclasses.replace(cell, max_steps=None) for cell in cells if cell.max_steps}
    whole = {cell for cell in cells if not cell.max_steps}
    assert limited == whole
    assert len(cells) == 2 * len(whole) == 40
