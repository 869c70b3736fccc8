"""A copy of the store that a reader made before the clock began: noted by bytes and pages that are missing."""

from pathlib import Path
from typing import Any

import pytest

from storebench.probes.machine import IN_MEMORY, mount_of
from storebench.report.cells import summarise
from storebench.report.checks.records import validate_records
from storebench.report.frame import to_frame
from storebench.results import CacheVerdict, Cell, Record, Status
from storebench.runs.records import RECORDS_NAME
from tests.support.harness_tools import Bench, only_record, scenario, steps_of

SAMPLES, BATCH = 5000, 50
"""Of the synthetic CIFAR-10, which has no more."""
COLD: dict[str, Any] = {
    "dataset": "cifar10",
    "synthetic": True,
    "limit": SAMPLES,
    "batch_size": BATCH,
    "model": "none",
    "compute": "emulated:5",
    "cache": "cold",
}

pytestmark = pytest.mark.still_pages


@pytest.fixture(autouse=True)
def on_disk(bench: Bench) -> None:
    mount = mount_of(bench.root)
    if mount.fstype in IN_MEMORY or mount.device is None:
        pytest.skip(f"the temporary folder is on {mount.fstype}: a disk is needed (pytest --basetemp)")


def cold_cell(backend: str, **matrix: Any) -> Cell:
    [cell] = scenario(**{**COLD, **matrix}, backends=[backend]).cells()
    return cell


def figures(record: Record, run: Path) -> set[str]:
    return {finding.figure for finding in validate_records([(record, run / RECORDS_NAME)])}


def held_elsewhere(record: Record, run: Path) -> bool:
    (cell,) = summarise(to_frame([(record, run / RECORDS_NAME)]))
    return cell.held_elsewhere


@pytest.mark.parametrize("workers", [0, 2])
def test_a_copy_of_the_store_made_at_opening_is_noted(
    workers: int, plugged: None, bench: Bench, run_folder: Path
) -> None:
    record = only_record(
        cold_cell("planted:hoard", workers=workers, compute="none"), bench.stores, run_folder
    )
    assert record.status is Status.OK
    assert record.cache is not None
    assert record.cache.verdict is CacheVerdict.VERIFIED, "no page of the store is resident"
    assert figures(record, run_folder) == set()
    assert held_elsewhere(record, run_folder)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_copy_of_what_is_served_first_is_noted(
    workers: int, plugged: None, bench: Bench, run_folder: Path
) -> None:
    record = only_record(cold_cell("planted:head-start", workers=workers), bench.stores, run_folder)
    read = record.counters.device_read_bytes
    assert read is not None
    assert read > 0.9 * record.payload_bytes, "over the whole epoch the device delivered enough"
    assert held_elsewhere(record, run_folder)


@pytest.mark.thinned
@pytest.mark.parametrize("backend", ["planted", "planted:greedy", "planted:past-the-cache", "lmdb", "png"])
@pytest.mark.parametrize("workers", [0, 2])
def test_honest_readers_have_no_finding(
    backend: str, workers: int, plugged: None, bench: Bench, run_folder: Path
) -> None:
    limit = 500 if backend == "png" else SAMPLES
    record = only_record(cold_cell(backend, workers=workers, limit=limit), bench.stores, run_folder)
    assert "device_read_bytes" in steps_of(record, run_folder)
    assert figures(record, run_folder) == set()
    assert held_elsewhere(record, run_folder) == (backend == "planted:past-the-cache")
