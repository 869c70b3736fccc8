"""What the kernel counts for each step: real cells, every loader, and sums that are those of the record."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench.probes.machine import mount_of
from storebench.record.schema import Cell, Record
from tests.support.harness_tools import Bench, cell_records, only_record, scenario, steps_of

LOADERS = [("processes", 0), ("processes", 2), ("threads", 2), ("ring", 2)]
BATCH, STEPS = 100, 10

pytestmark = pytest.mark.still_pages


def io_cell(backend: str, cache: str, **matrix: Any) -> Cell:
    common = {"dataset": "cifar10", "synthetic": True, "limit": 4000, "batch_size": BATCH}
    loading = {"model": "none", "compute": "none", "cache": cache, "backends": [backend], "max_steps": STEPS}
    [cell] = scenario(**common | loading | matrix).cells()
    return cell


def counted(record: Record, name: str) -> int:
    found = getattr(record.counters, name)
    assert isinstance(found, int), record.counters.reasons
    return found


@pytest.mark.parametrize(("loader", "workers"), LOADERS)
def test_cold_steps_read_the_device_and_add_up_to_the_record(
    loader: str, workers: int, on_disk: None, bench: Bench, run_folder: Path
) -> None:
    cell = io_cell("lmdb?readahead=off", "cold", loader=loader, workers=workers)
    record = only_record(cell, bench.stores, run_folder)
    assert record.steps_file, record.failure
    steps = steps_of(record, run_folder)
    per_step = steps["device_read_bytes"]
    if loader == "threads":  # batches that are made at once share one counter
        assert (per_step > 0).sum() >= STEPS // 2
    else:
        assert (per_step > 0).all()
    total = counted(record, "device_read_bytes")
    assert 0.98 * total <= per_step.sum() <= total
    assert steps["major_faults"].sum() > 0


@pytest.mark.parametrize(("loader", "workers"), [("processes", 0), ("ring", 2)])
def test_warm_steps_read_nothing_of_the_device(
    loader: str, workers: int, bench: Bench, run_folder: Path
) -> None:
    cell = io_cell("lmdb", "warm", loader=loader, workers=workers, epochs=2)
    record = cell_records(cell, bench.stores, run_folder)[1]  # by now every library's page is in memory
    assert record.steps_file, record.failure
    steps = steps_of(record, run_folder)
    assert steps["device_read_bytes"].tolist() == [0] * STEPS
    assert steps["major_faults"].tolist() == [0] * STEPS


def test_calls_and_faults_add_up_to_those_of_the_record(bench: Bench, run_folder: Path) -> None:
    record = only_record(io_cell("png", "warm", limit=BATCH * STEPS), bench.stores, run_folder)
    assert record.steps_file, record.failure
    steps = steps_of(record, run_folder)
    assert (steps["read_calls"] >= BATCH).all()  # a file per sample, and at least one call per file
    for name in ("read_calls", "minor_faults"):
        total = counted(record, name)
        assert steps[name].sum() <= total
        assert steps[name].sum() == pytest.approx(total, rel=0.05, abs=200)


def test_what_the_kernel_does_not_charge_to_processes_has_no_column(
    bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fstype = mount_of(bench.root).fstype
    monkeypatch.setattr("storebench.probes.machine._UNCOUNTED", frozenset({fstype}))
    record = only_record(io_cell("lmdb", "warm"), bench.stores, run_folder)
    assert record.steps_file, record.failure
    steps = steps_of(record, run_folder)
    assert record.counters.device_read_bytes is None
    assert "device_read_bytes" not in steps
    assert {"read_calls", "major_faults", "minor_faults"} <= set(steps)


def test_reading_the_counters_is_in_no_time_of_the_loop(bench: Bench, run_folder: Path) -> None:
    record = only_record(io_cell("memory:native", "warm", max_steps=5), bench.stores, run_folder)
    assert record.steps_file, record.failure
    steps = steps_of(record, run_folder)
    assert (steps["paused_ns"] > 0).all()
    ends = steps["start_ns"] + steps["data_wait_ns"] + steps["h2d_ns"] + steps["compute_ns"]
    assert (steps["start_ns"][1:] >= ends[:-1] + steps["paused_ns"][:-1]).all()
    parts = record.data_wait_s + record.h2d_s + record.compute_s + record.overhead_s
    assert parts == pytest.approx(record.timed_s, rel=1e-9)
    whole_s = (ends[-1] - steps["start_ns"][0] - steps["paused_ns"][:-1].sum()) / 1e9
    assert record.timed_s == pytest.approx(float(np.float64(whole_s)))
