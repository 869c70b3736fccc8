"""What no plan may do: with more of any resource it delivers no less, from every reference run that can be planned."""

import functools
from pathlib import Path
from typing import Any

import pytest

from storebench.accelerators import find_accelerator
from storebench.analysis.checks.records import read_results
from storebench.analysis.plan.measured import Measurements
from storebench.analysis.plan.plan import _chosen, plans
from storebench.analysis.plan.plans import Target
from storebench.analysis.summary import CellSummary

REFERENCE = Path(__file__).resolve().parents[4] / "results" / "reference"
RUNS = ["answer codecs", "remote", "roofline"]
MORE: dict[str, list[Any]] = {
    "memory_bytes": [0.0, 5e8, 3e10, 2.2e11, 2.6e11, 1e14],
    "workers": [1, 2, 8, 63, 64, 65],
    "cores": [1, 2, 9, 64, 72, 73],
    "bytes_per_s": [1e6, 1e9, 1e11],
    "requests_per_s": [10.0, 1e4, 1e8],
}
TARGET: dict[str, Any] = {
    "samples": 1_281_167,
    "cores": 64,
    "workers": 8,
    "accelerator": find_accelerator("a100"),
}
TARGETS: list[dict[str, Any]] = [
    {"epochs": 1},
    {"nodes": 16, "epochs": 3, "count": 8, "memory_bytes": 1e11},
    {"nodes": 64, "bytes_per_s": 5e10, "first_byte_s": 1e-3, "memory_bytes": 1e10},
]


@functools.cache
def measured(runs: str) -> tuple[list[CellSummary], Measurements]:
    """Return the cells of some runs for which one plan is made, and what they tell."""
    results = read_results([REFERENCE / name for name in runs.split()])
    group = _chosen(results.cells_by_run, None)
    return group, Measurements(group)


def rates(runs: str, given: dict[str, Any]) -> dict[tuple[str, Any], float]:
    """Return the best rate of each store, whatever the read-ahead."""
    group, told = measured(runs)
    target = Target(**(TARGET | given))
    made, _ = plans(group, target, told)
    best: dict[tuple[str, Any], float] = {}
    for store in made:
        key = store.store, store.place
        best[key] = max(store.images_per_s, best.get(key, 0.0))
    return best


@pytest.mark.thinned
@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("given", TARGETS, ids=str)
def test_no_plan_falls_with_more_of_a_resource(runs: str, given: dict[str, Any]) -> None:
    for resource, amounts in MORE.items():
        before: dict[tuple[str, Any], float] = {}
        for amount in amounts:
            for store, rate in rates(runs, given | {resource: amount}).items():
                assert rate >= before.get(store, 0.0) * (1 - 1e-9), (store, resource, amount)
                before[store] = rate
