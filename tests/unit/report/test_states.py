"""Which part of an epoch a cell's figures hold for."""

from typing import Any

import pytest

from storebench.report.states import bounded, counted, figure, has_portion
from tests.support.planted import make_cell

ROW = {
    "samples_per_s": 1000.0,
    "timed_s": 10.0,
    "data_wait_frac": 0.1,
    "overhead_s": 0.5,
    "accelerator_util_frac": 0.8,
    "payload_bytes_per_s": 7.0,
    "data_wait_p99_ns": 99,
    "portion_samples_per_s": 250.0,
    "portion_seconds": 2.0,
    "portion_data_wait_s": 1.2,
    "portion_h2d_s": 0.1,
    "portion_compute_s": 0.5,
    "portion_payload_bytes": 600,
    "portion_steps": 20,
    "timed_steps": 100,
    "workers": 0,
    "portion_drift": 1.0,
    "cache_applies_to": "epoch",
}


@pytest.mark.parametrize(
    ("metric", "whole", "portion"),
    [
        ("samples_per_s", 1000.0, 250.0),
        ("timed_s", 10.0, 2.0),
        ("data_wait_frac", 0.1, 1.2 / 1.8),
        ("overhead_s", 0.5, 0.2),
        ("accelerator_util_frac", 0.8, 0.25),
        ("payload_bytes_per_s", 7.0, 300.0),
        ("data_wait_p99_ns", 99.0, 99.0),
        ("whole_samples_per_s", 1000.0, 1000.0),
    ],
)
def test_a_rate_is_that_of_the_portion_and_a_percentile_that_of_the_epoch(
    metric: str, whole: float, portion: float
) -> None:
    assert figure(ROW, metric, portion=False) == pytest.approx(whole)
    assert figure(ROW, metric, portion=True) == pytest.approx(portion)


def test_a_figure_of_a_portion_that_nobody_measured_is_none() -> None:
    row = ROW | {"portion_seconds": None, "portion_samples_per_s": None}
    assert not has_portion(row)
    assert [figure(row, name, portion=True) for name in ("samples_per_s", "data_wait_frac")] == [None, None]
    assert figure(row, "samples_per_s", portion=False) == 1000.0


@pytest.mark.parametrize(
    ("backend", "cache", "applies_to", "part"),
    [
        ("lmdb", "cold", "epoch", False),
        ("lmdb", "limited", "epoch", True),
        ("lmdb", "warm", "epoch", False),
        ("lmdb", "any", "epoch", False),
        ("memory:native", "limited", "open", False),
        ("null", "limited", "epoch", False),
    ],
)
def test_only_a_limited_cell_that_reads_its_store_has_a_part_that_counts(
    backend: str, cache: str, applies_to: str, part: bool
) -> None:
    assert bounded(ROW | {"cache_applies_to": applies_to}, make_cell(backend, cache=cache)) is part


def epoch(number: int, *, replicate: int = 0, seconds: float | None = 2.0) -> dict[str, Any]:
    return ROW | {"run_id": "run", "replicate": replicate, "epoch": number, "portion_seconds": seconds}


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_every_epoch_of_a_cell_without_a_limit_counts(cache: str) -> None:
    rows = [epoch(0), epoch(1, seconds=None), epoch(2)]
    assert len(counted(rows, make_cell(cache=cache))) == 3


def test_of_a_limited_cell_the_last_epoch_of_each_replicate_counts() -> None:
    limited = make_cell(cache="limited", memory_bytes=1 << 20)
    rows = [epoch(1), epoch(0), epoch(0, replicate=1), epoch(1, replicate=1, seconds=None)]
    assert [(row["replicate"], row["epoch"]) for row in counted(rows, limited)] == [(0, 1)]
