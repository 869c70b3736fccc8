"""A/A in small: runs that differ by chance alone are seldom called different, runs that differ are."""

import dataclasses

import numpy as np
from bench_aa import called_different, comparisons

from storebench.results import Cell, Record
from storebench.stats import corrected

BACKENDS = 40
ROUNDS = 7


def run_of(seed: int, slower: float = 1.0) -> list[Record]:
    """Return the records of a run whose rounds and processes vary by 5% each; the last backend is slower."""
    rng = np.random.default_rng(seed)
    base = Cell(
        dataset="mnist", backend="b0", format="b0", codec="raw", reader="x", batch_size=1, model="tiny"
    )
    records = []
    for replicate in range(ROUNDS):
        machine = rng.lognormal(sigma=0.05)
        for number in range(BACKENDS):
            rate = 1000 * (1 + number) * machine * rng.lognormal(sigma=0.05)
            rate /= slower if number == BACKENDS - 1 else 1
            cell = dataclasses.replace(base, backend=f"b{number}")
            records.append(
                Record(
                    storebench_version="0",
                    run_id=str(seed),
                    cell=cell,
                    replicate=replicate,
                    epoch=0,
                    started_utc="",
                    samples_per_s=rate,
                    data_wait_s=1 / rate,
                    epoch_s=2 / rate,
                )
            )
    return records


def test_runs_that_differ_by_chance_are_seldom_called_different() -> None:
    # The ratios of a run share their denominator, so false alarms come in crowds: many pairs of runs are needed.
    pairs = [list(comparisons(run_of(seed), run_of(1000 + seed)).values()) for seed in range(40)]
    alone = sum(map(called_different, pairs)) / sum(map(len, pairs))
    assert alone < 0.08
    assert sum(called_different(corrected(pair)) > 0 for pair in pairs) <= 5


def test_a_backend_that_became_slower_is_called_slower() -> None:
    found = comparisons(run_of(1), run_of(2, slower=1.5))
    for metric in ("samples_per_s", "data_wait_s", "epoch_s"):
        assert found[metric, f"b{BACKENDS - 1}"].verdict == "slower"
