"""What a cell computes with is bounded alike for every reader and loader, and what it used stands in the record."""

from pathlib import Path
from typing import Any

import pytest

from storebench.record.schema import Cell
from tests.support.harness_tools import Bench, only_record, scenario
from tests.support.planted_plugin import BURN_S

STEPS, BATCH = 12, 8
LOADERS = [
    ("processes", 2),
    *(
        pytest.param(name, workers, marks=pytest.mark.full)
        for name, workers in (("processes", 0), ("threads", 1), ("ring", 1))
    ),
]


def small_cell(backend: str, **matrix: Any) -> Cell:
    small = {
        "dataset": "mnist",
        "synthetic": True,
        "limit": STEPS * BATCH,
        "batch_size": BATCH,
        "compute": "none",
    }
    [cell] = scenario(**(small | {"backends": [backend]} | matrix)).cells()
    return cell


@pytest.mark.parametrize(("loader", "workers"), LOADERS)
def test_a_readers_own_threads_are_as_many_as_the_cell_says(
    loader: str, workers: int, bench: Bench, run_folder: Path
) -> None:
    cell = small_cell("png:threads", loader=loader, workers=workers, threads=1)
    assert only_record(cell, bench.stores, run_folder).reader_notes["threads"] == "1"


def test_a_readers_own_option_says_more_and_the_record_says_so(bench: Bench, run_folder: Path) -> None:
    cell = small_cell("png:threads?threads=3", threads=1)
    assert only_record(cell, bench.stores, run_folder).reader_notes["threads"] == "3"


@pytest.mark.parametrize(("loader", "workers"), LOADERS)
def test_processor_time_of_every_process_and_thread_is_counted(
    loader: str, workers: int, plugged: None, bench: Bench, run_folder: Path
) -> None:
    cell = small_cell("planted:burning", loader=loader, workers=workers)
    record = only_record(cell, bench.stores, run_folder)
    assert record.cpu_s_per_sample is not None
    assert record.cores_used is not None
    # The kernel counts the time of other processes in hundredths of a second, rounded down.
    assert record.cpu_s_per_sample * record.samples >= STEPS * BURN_S - 0.03
    assert record.cores_used == pytest.approx(record.cpu_s_per_sample * record.samples / record.epoch_s)
