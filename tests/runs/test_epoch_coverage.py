"""Each epoch proves that it served each sample as often as planned, with the right pixels; what did not is failed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench.analysis.checks.findings import Rule
from storebench.analysis.checks.rules import check_record
from storebench.errors import CorruptDataError
from storebench.formats.base import Indices
from storebench.loading import loader as loader_module
from storebench.loading.batch import EpochPlan, LoadedBatch
from storebench.loading.loader import ProcessLoader
from storebench.loading.order import epoch_order, order_digest
from storebench.loading.proof import TimedCheck, coverage
from storebench.record.schema import Cell, Status
from tests.support.harness_tools import Bench, only_record, scenario

SAMPLES, BATCH = 50, 8
SMALL: dict[str, Any] = {
    "dataset": "mnist",
    "synthetic": True,
    "limit": SAMPLES,
    "batch_size": BATCH,
    "model": "tiny",
}


def small_cell(backend: str, **matrix: Any) -> Cell:
    [cell] = scenario(**SMALL, backends=[backend], **matrix).cells()
    return cell


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_last_partial_batch_is_served_and_every_sample_came_once(
    workers: int, bench: Bench, run_folder: Path
) -> None:
    record = only_record(small_cell("lmdb", workers=workers), bench.stores, run_folder)
    assert record.steps == 7
    assert record.samples == SAMPLES
    assert record.coverage is not None
    served = record.coverage
    assert (served.expected, served.served, served.unique) == (SAMPLES, SAMPLES, SAMPLES)
    assert (served.duplicates, served.missing) == (0, 0)
    assert (served.timed_checked, served.timed_wrong) == (SAMPLES, 0)


def test_with_max_steps_no_sample_comes_twice(bench: Bench, run_folder: Path) -> None:
    record = only_record(small_cell("leveldb", workers=2, max_steps=3), bench.stores, run_folder)
    assert record.coverage is not None
    assert (record.steps, record.samples) == (3, 3 * BATCH)
    assert record.coverage.unique == record.coverage.expected == 3 * BATCH
    assert record.coverage.complete


def test_more_workers_than_batches_is_no_trouble(bench: Bench, run_folder: Path) -> None:
    record = only_record(small_cell("hdf5", workers=2, max_steps=1), bench.stores, run_folder)
    assert (record.steps, record.status) == (1, Status.OK)


@pytest.mark.parametrize("workers", [0, 2])
def test_one_wrong_bit_in_one_pixel_fails_the_record_and_names_the_sample(
    workers: int, plugged: None, bench: Bench, run_folder: Path
) -> None:
    record = only_record(small_cell("planted:wrong", workers=workers), bench.stores, run_folder)
    assert record.status is Status.FAILED
    assert record.failure is not None
    assert "of 50 kept from the timed batches 1 wrong, the first sample 7" in record.failure


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_served_in_the_place_of_another_is_named(
    workers: int, plugged: None, bench: Bench, run_folder: Path
) -> None:
    record = only_record(small_cell("planted:swapped", workers=workers), bench.stores, run_folder)
    assert record.status is Status.FAILED
    assert record.failure is not None
    assert "of 50 kept from the timed batches 1 wrong, the first sample 5" in record.failure


def test_the_third_partys_own_right_reader_passes(plugged: None, bench: Bench, run_folder: Path) -> None:
    record = only_record(small_cell("planted"), bench.stores, run_folder)
    assert (record.status, record.failure) == (Status.OK, None)


class RepeatingLoader(ProcessLoader):
    """Serve the first batch twice and the last never."""

    def epoch(self, plan: EpochPlan) -> Iterator[LoadedBatch]:
        first, *_, last = plan.batches
        batches = [first, *plan.batches[:-1]]
        assert len(last)
        yield from super().epoch(EpochPlan(epoch=plan.epoch, batches=batches))


def test_a_loader_that_serves_a_batch_twice_fails_the_record(
    bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "planted", RepeatingLoader, raising=False)
    monkeypatch.setitem(loader_module.LOADERS, "processes", "storebench.loading.loader:planted")
    record = only_record(small_cell("lmdb"), bench.stores, run_folder)
    assert record.status is Status.FAILED
    assert record.failure is not None
    assert "2 missing, 8 served twice" in record.failure


@pytest.mark.parametrize("workers", [0, 2])
def test_a_payload_that_does_not_decode_is_an_error_that_names_the_sample(
    workers: int, bench: Bench, tmp_path: Path, run_folder: Path
) -> None:
    stores = tmp_path / "stores"
    cell = small_cell("png", workers=workers)
    only_record(cell, stores, run_folder)
    victim = sorted(stores.rglob("*.png"))[17]
    content = bytearray(victim.read_bytes())
    content[40:60] = bytes(20)
    victim.write_bytes(content)
    with pytest.raises(CorruptDataError, match=r"sample \d+: a png payload of \d+ bytes does not decode"):
        only_record(cell, stores, run_folder)


def indices(*numbers: int) -> Indices:
    return np.array(numbers, dtype=np.int64)


def test_missing_and_repeated_samples_are_counted() -> None:
    found = coverage(
        [indices(0, 1, 2), indices(3, 4)], [indices(0, 1, 1), indices(1, 4)], TimedCheck(checked=5, wrong=1)
    )
    assert (found.expected, found.served, found.unique) == (5, 5, 3)
    assert (found.duplicates, found.missing) == (2, 2)
    assert (found.timed_checked, found.timed_wrong) == (5, 1)
    assert not found.complete


def test_of_several_passes_each_sample_has_to_come_once_per_pass() -> None:
    planned = [indices(0, 1, 2), indices(2, 0, 1)]
    right = coverage(planned, [indices(2, 1, 0), indices(0, 1, 2)], TimedCheck())
    assert (right.expected, right.served, right.unique, right.duplicates, right.missing) == (6, 6, 3, 0, 0)
    wrong = coverage(planned, [indices(2, 1, 0), indices(2, 1, 2)], TimedCheck())
    assert (wrong.duplicates, wrong.missing) == (1, 1)
    unplanned = coverage(planned, [indices(0, 1, 2), indices(0, 1, 7)], TimedCheck())
    assert (unplanned.duplicates, unplanned.missing) == (0, 1)


@pytest.mark.parametrize("loader", ["processes", "threads", "ring"])
@pytest.mark.parametrize("workers", [0, 2])
def test_several_passes_are_one_record_with_an_order_each(
    workers: int, loader: str, bench: Bench, run_folder: Path
) -> None:
    cell = small_cell("lmdb", workers=workers, loader=loader, passes=3, cache="any")
    record = only_record(cell, bench.stores, run_folder)
    assert (record.status, record.samples, record.steps) == (Status.OK, 3 * SAMPLES, 3 * 7)
    assert record.coverage is not None
    assert record.coverage.complete
    assert record.coverage.unique == SAMPLES
    assert record.digests is not None
    orders = [epoch_order(SAMPLES, seed=cell.seed, epoch=turn) for turn in range(3)]
    assert record.digests.order == order_digest(orders)
    assert [finding for finding in check_record(record, None) if finding.kind is Rule.COVERAGE] == []


def test_an_epoch_that_served_nothing_is_not_complete() -> None:
    assert not coverage([indices(0)], [], TimedCheck()).complete
