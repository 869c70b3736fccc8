"""Rates from a cold start, and what is cold besides the pages of a store: real cells on a real disk."""

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from storebench.formats.registry import get_format
from storebench.loading.order import epoch_order
from storebench.probes.machine import block_device, mount_of
from storebench.probes.page_cache import drop_caches, evict, warm
from storebench.probes.page_count import PAGE_BYTES, resident
from storebench.record.manifest import Manifest
from storebench.record.schema import Cell
from storebench.worker.replicate import run as run_replicate
from storebench.worker.setup import Setup
from tests.support.harness_tools import Bench, cell_job, cell_records, only_record, scenario
from tests.support.opened_files import opened_in

COLD: dict[str, Any] = {
    "dataset": "cifar10",
    "synthetic": True,
    "limit": 8000,
    "batch_size": 250,
    "model": "none",
    "compute": "none",
    "cache": "cold",
}
pytestmark = pytest.mark.still_pages


def cold_cell(backend: str, **matrix: Any) -> Cell:
    [cell] = scenario(**{**COLD, **matrix}, backends=[backend]).cells()
    return cell


@pytest.fixture
def long_read_ahead(on_disk: None, bench: Bench) -> None:
    found = block_device(mount_of(bench.root)).get("read_ahead_kb")
    if not found or int(found) < 1024:
        pytest.skip(f"the disk reads {found} KiB ahead: at least 1024 are needed to fill the cache early")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_long_read_ahead_leaves_rates_from_a_cold_start(
    workers: int, long_read_ahead: None, bench: Bench, run_folder: Path
) -> None:
    for record in cell_records(cold_cell("lmdb", epochs=2, workers=workers), bench.stores, run_folder):
        assert record.cache is not None
        assert [rate.read_frac for rate in record.cold_rates] == [0.05, 0.10, 0.25, 1.0]
        assert all(rate.excess_frac is not None for rate in record.cold_rates)
        assert not record.cache.reason
        assert record.cache.curve[0].resident_frac <= 0.01
        assert record.cache.curve[-1].asked_frac == 1.0
        assert record.cache.sampling_cpu_s is not None
        assert 0 < record.cache.sampling_cpu_s < 1
        assert record.cache.resident_max_frac == max(one.resident_frac for one in record.cache.curve)
        assert record.cache.metadata == "hot"


def test_the_page_index_of_a_direct_reader_is_evicted_with_the_store(
    on_disk: None, bench: Bench, run_folder: Path
) -> None:
    cell = cold_cell("lmdb:direct")
    only_record(cell, bench.stores, run_folder)
    setup = Setup.of(cell_job(cell, bench.stores, run_folder))
    [index] = set(setup.pages.files) - set(setup.pages.data_files)
    assert index.suffix == ".pages"
    warm([index])
    setup.pages.before_opening()
    assert resident([index]).pages_resident == 0
    warm([index])
    assert setup.pages.prepare("epoch").resident_frac_before == 0
    assert resident([index]).pages_resident == 0


def own_read_bytes() -> int:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def test_a_warm_cell_reads_its_store_anew_however_its_pages_got_there(
    on_disk: None, bench: Bench, run_folder: Path
) -> None:
    cell = cold_cell("lmdb", cache="warm", max_steps=1)
    setup = Setup.of(cell_job(cell, bench.stores, run_folder))
    evict(setup.pages.files)
    for path in setup.pages.files:
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for at in range(0, path.stat().st_size, PAGE_BYTES):
                os.pread(file.fileno(), PAGE_BYTES, at)
    assert (resident(setup.pages.files).frac or 0) > 0.99
    before = own_read_bytes()
    assert setup.pages.prepare("epoch").verdict == "verified"
    assert own_read_bytes() - before >= 0.95 * sum(path.stat().st_size for path in setup.pages.files)


@pytest.fixture
def dropped(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File that is opened where caches are dropped, so that the watch shows when; only a quiet test drops them."""
    marker = tmp_path / "marks" / "dropped"
    marker.parent.mkdir()
    marker.touch()

    def drop_and_mark() -> None:
        if request.node.get_closest_marker("quiet"):
            drop_caches()
        marker.read_bytes()

    monkeypatch.setattr("storebench.worker.cache_state.drop_caches", drop_and_mark)
    return marker


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.mark.quiet
@pytest.mark.root
def test_with_drop_caches_the_first_file_is_the_first_sample(
    on_disk: None, bench: Bench, run_folder: Path, root: None, dropped: Path
) -> None:
    cell = cold_cell("png", limit=600, batch_size=100)
    setup = Setup.of(cell_job(cell, bench.stores, run_folder, drop_caches=True))
    store = setup.job.store
    folders = sorted({path.parent for path in setup.pages.data_files})
    with opened_in([dropped.parent, *folders]) as opened:
        [record] = run_replicate(setup)
        names = opened()
    after = [name for name in names[names.index(dropped.name) + 1 :] if name.endswith(".png")]
    manifest = Manifest.read(store)
    order = epoch_order(manifest.count, seed=cell.seed, epoch=0)
    assert after[:600] == [get_format("files").locate(store, manifest, int(index)).name for index in order]
    assert record.status == "ok", record.failure
    assert record.cache is not None
    assert record.cache.metadata == "cold"
    assert record.cache.method.startswith("fadvise+drop_caches+")
    assert record.cache.resident_frac_before == 0
    # Its files could not be opened beside the loop, so all that is known are the counts before and after.
    assert record.cache.sampling_cpu_s is None
    assert [point.resident_frac for point in record.cache.curve] == [0, record.cache.resident_frac_after]
    assert [rate.read_frac for rate in record.cold_rates] == [0.10, 0.25, 1.0]


def test_the_sampler_is_gone_after_a_cell_and_after_one_that_failed(
    plugged: None, on_disk: None, bench: Bench, run_folder: Path
) -> None:
    before = children()
    only_record(cold_cell("lmdb", max_steps=1), bench.stores, run_folder)
    with pytest.raises(ZeroDivisionError):
        only_record(cold_cell("planted:broken", max_steps=1), bench.stores, run_folder)
    assert children() == before


def children() -> set[str]:
    ctypes.CDLL(None).sched_yield()
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
