"""The cache state of a cell is what was measured: never what was asked for."""

import mmap
from pathlib import Path
from typing import Any

import pytest

from storebench.probes.machine import mount_of
from storebench.record.schema import Cell
from tests.support.harness_tools import Bench, cell_job, cell_records, only_record, scenario
from tests.support.leftovers import MEMORY, name_in_memory, remove

SMALL: dict[str, Any] = {
    "dataset": "cifar10",
    "synthetic": True,
    "limit": 8000,
    "batch_size": 500,
    "model": "none",
    "compute": "emulated:0.01",
}
"""Training is no part of what is counted here, and takes longer than all the rest."""

NEXT_TO_NOTHING = 0.2
"""Of the payload. Not 0: a library's page may be needed for the first time, and comes with its readahead."""

pytestmark = pytest.mark.still_pages


def small_cell(backend: str, cache: str, **matrix: Any) -> Cell:
    [cell] = scenario(**{**SMALL, **matrix}, backends=[backend], cache=cache).cells()
    return cell


@pytest.mark.parametrize(
    ("backend", "limit"),
    [("lmdb", 8000), ("png", 500)],
)
def test_a_cold_cell_begins_with_nothing_resident_and_reads_the_device(
    backend: str, limit: int, on_disk: None, bench: Bench, run_folder: Path
) -> None:
    record = only_record(small_cell(backend, "cold", limit=limit), bench.stores, run_folder)
    assert record.cache is not None
    assert record.status == "ok", record.failure
    assert (record.cache.requested, record.cache.verdict) == ("cold", "verified")
    assert record.cache.resident_frac_before is not None
    assert record.cache.resident_frac_before <= 0.01
    assert record.cache.resident_frac_after is not None
    assert record.cache.resident_frac_after > record.cache.resident_frac_before
    assert record.cache.method.startswith("fadvise+")
    assert record.cache.applies_to == "epoch"
    assert record.counters.device_read_bytes is not None
    assert record.counters.device_read_bytes >= 0.9 * record.payload_bytes
    assert record.cold_rates
    assert record.cache.curve[-1].asked_frac == 1.0
    assert record.counters.read_amplification == pytest.approx(
        record.counters.device_read_bytes / record.payload_bytes
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_warm_cell_begins_resident_and_reads_next_to_nothing(
    workers: int, on_disk: None, bench: Bench, run_folder: Path
) -> None:
    record = only_record(small_cell("lmdb", "warm", workers=workers), bench.stores, run_folder)
    assert record.cache is not None
    assert (record.cache.requested, record.cache.verdict) == ("warm", "verified")
    assert record.cache.resident_frac_before is not None
    assert record.cache.resident_frac_before >= 0.99
    assert record.counters.read_amplification is not None
    assert record.counters.read_amplification < NEXT_TO_NOTHING
    assert record.counters.minor_faults
    assert record.counters.cpu_user_s
    assert record.counters.peak_rss_bytes


def test_every_epoch_of_a_cold_cell_begins_cold(on_disk: None, bench: Bench, run_folder: Path) -> None:
    # LMDB maps its file: what the first epoch touched could not be evicted from under the open reader.
    cell = small_cell("lmdb", "cold", epochs=2, workers=2)
    for record in cell_records(cell, bench.stores, run_folder):
        assert record.cache is not None
        assert record.cache.verdict == "verified", record.cache.reason
        assert record.counters.device_read_bytes


def test_any_claims_nothing_and_is_counted_all_the_same(bench: Bench, run_folder: Path) -> None:
    record = only_record(small_cell("lmdb", "any"), bench.stores, run_folder)
    assert record.cache is not None
    assert record.cache.verdict == "unverified"
    assert record.cache.resident_frac_before is not None
    assert "no cache state was requested" in record.cache.reason


@pytest.mark.parametrize("backend", ["memory:native", "lmdb:shared"])
def test_with_held_pixels_the_cache_state_applies_to_the_opening(
    backend: str, on_disk: None, bench: Bench, run_folder: Path
) -> None:
    record = only_record(small_cell(backend, "cold"), bench.stores, run_folder)
    assert record.cache is not None
    assert record.cache.applies_to == "open"
    assert record.cache.verdict == "verified"
    assert record.open_s > 0
    assert record.counters.read_amplification is not None
    assert record.counters.read_amplification < NEXT_TO_NOTHING


def test_a_mapped_store_cannot_be_cold_and_fails_its_cell(
    on_disk: None, bench: Bench, run_folder: Path
) -> None:
    cell = small_cell("lmdb", "cold")
    data = cell_job(cell, bench.stores, run_folder).store / "data.mdb"
    with data.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert len(mapped[:: mmap.PAGESIZE]) > 1000, "every page is in use"
        record = only_record(cell, bench.stores, run_folder)
    assert (record.status, record.steps) == ("failed", 0)
    assert record.cache is not None
    assert (record.cache.requested, record.cache.verdict) == ("cold", "failed")
    assert (record.cache.resident_frac_before or 0) > 0.5


def test_on_tmpfs_a_cold_cell_fails_because_cold_cannot_exist_there(bench: Bench, run_folder: Path) -> None:
    if not MEMORY.is_dir() or mount_of(MEMORY).fstype != "tmpfs":
        pytest.skip(f"no tmpfs on {MEMORY}")
    stores = name_in_memory()
    try:
        record = only_record(small_cell("lmdb", "cold", max_steps=1), stores, run_folder)
    finally:
        remove(stores)
    assert record.status == "failed"
    assert record.failure is not None
    assert "cold cannot exist on tmpfs" in record.failure
    assert record.steps == 0


def test_a_cold_cell_of_a_store_that_is_too_small_asks_for_more_samples(
    on_disk: None, bench: Bench, run_folder: Path
) -> None:
    record = only_record(small_cell("lmdb", "cold", limit=60, batch_size=20), bench.stores, run_folder)
    assert record.status == "failed"
    assert record.failure is not None
    assert "use more samples (--size N extends a dataset)" in record.failure
