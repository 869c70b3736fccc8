"""A fault in the timed pass alone fails a job of ranks, however its ranks share reading."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from storebench.formats.origin import code_facts
from storebench.loading.batch import BatchRequest, EpochPlan, LoadedBatch
from storebench.loading.producer import Producer
from storebench.ranks import node_loader
from storebench.ranks.group import Group
from storebench.record.schema import CodeFacts, Coverage, Record, Status
from storebench.training.sgd import CaffeSgd
from storebench.worker import setup as worker_setup
from storebench.worker.job import CellJob
from storebench.worker.replicate import run as run_replicate
from storebench.worker.setup import Setup
from tests.support.harness_tools import Bench, cell_job
from tests.support.rank_cells import assert_sound, ranked_cell, run_ranks
from tests.support.rank_processes import in_ranks

SAMPLES, RANKS, BATCH = 100, 3, 11
"""Fewer samples than each rank keeps, so all of them are compared."""

SHARES: dict[str, dict[str, Any]] = {
    "none": {},
    "node": {"share": "node"},
    "node by a thread": {"share": "node", "workers": 1, "loader": "threads"},
    "store": {"share": "store", "store_fill": "preload"},
    "store filled while it is read": {"share": "store", "store_fill": "first-epoch", "epochs": 2},
}


SMALL_JOB: dict[str, Any] = {"synthetic": True, "limit": 32, "batch_size": 8, "ranks": 2, "model": "tiny"}


def rank(group: Group, *, job: CellJob, faulty: int | None) -> list[Record]:
    """Run a rank; on one of them, batches of the timed pass have the pixels of one sample throughout."""
    if group.membership.rank == faulty:
        produce, epoch = Producer.produce, node_loader.NodeGuest.epoch

        def wrong(self: Producer, request: BatchRequest) -> LoadedBatch:
            return spoiled(produce(self, request))

        def wrong_epoch(self: Any, plan: EpochPlan) -> Iterator[LoadedBatch]:
            return map(spoiled, epoch(self, plan))

        setattr(Producer, "produce", wrong)  # noqa: B010 - this process is a copy that ends with its job
        setattr(node_loader.NodeGuest, "epoch", wrong_epoch)  # noqa: B010
    return run_replicate(Setup.of(job, group=group))


def spoiled(batch: LoadedBatch) -> LoadedBatch:
    if len(batch.indices):
        batch.pixels[:] = batch.pixels[:1].clone()
    return batch


def job_of(bench: Bench, run: Path, backend: str, share: str, faulty: int | None = None) -> list[Record]:
    """Run a job and return the records of its epochs."""
    cell = ranked_cell(
        backend, synthetic=True, limit=SAMPLES, ranks=RANKS, batch_size=BATCH, model="tiny", **SHARES[share]
    )
    work = functools.partial(rank, job=cell_job(cell, bench.stores, run), faulty=faulty)
    return in_ranks(RANKS, work)[0]


def coverage_of(record: Record) -> Coverage:
    assert record.coverage is not None
    return record.coverage


@pytest.mark.parametrize("share", ["none", "node", "store"])
def test_a_reader_that_is_wrong_when_cold_fails_the_job(
    share: str, plugged: None, bench: Bench, run_folder: Path
) -> None:
    for record in job_of(bench, run_folder, "planted:cold", share):
        served = coverage_of(record)
        assert (served.missing, served.duplicates, served.timed_checked) == (0, 0, SAMPLES)
        assert served.timed_wrong >= SAMPLES - 1, "an image of one grey may be its own inverse"
        assert record.status is Status.FAILED
        assert f"of {SAMPLES} kept from the timed batches {served.timed_wrong} wrong" in (
            record.failure or ""
        )


@pytest.mark.parametrize("share", SHARES)
def test_a_fault_in_the_timed_pass_of_the_last_rank_fails_the_job(
    share: str, bench: Bench, run_folder: Path
) -> None:
    for record in job_of(bench, run_folder, "lmdb", share, faulty=RANKS - 1):
        served = coverage_of(record)
        assert (served.missing, served.timed_checked) == (0, SAMPLES)
        assert SAMPLES // RANKS - 5 <= served.timed_wrong <= SAMPLES // RANKS, (
            "but for the first of each batch"
        )
        assert record.status is Status.FAILED


def test_a_rank_that_skips_a_step_of_learning_fails_the_job(
    bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, steps = CaffeSgd.step, iter(range(100))

    def lazy(self: Any, rate: float) -> None:
        if dist.get_rank() != 1 or next(steps) != 1:
            right(self, rate)

    monkeypatch.setattr(CaffeSgd, "step", lazy)
    found = run_ranks(ranked_cell("lmdb", **SMALL_JOB, sync="after"), bench, run_folder)
    assert (
        found.record.failure == "ranks 0 and 1 train one network, but have different weights after the epoch"
    )


@pytest.mark.parametrize("compute", ["real", "none"])
def test_ranks_that_do_not_train_together_may_have_other_weights(
    compute: str, bench: Bench, run_folder: Path
) -> None:
    found = run_ranks(ranked_cell("lmdb", **SMALL_JOB, sync="none", compute=compute), bench, run_folder)
    assert_sound(found)


def test_a_rank_that_runs_other_code_fails_the_job(
    bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts(format_name: str) -> CodeFacts:
        code = dataclasses.replace(code_facts(format_name), plugin="third-party - 0123")
        return dataclasses.replace(code, plugin="third-party - 4567") if dist.get_rank() == 1 else code

    monkeypatch.setattr(worker_setup, "code_facts", facts)
    found = run_ranks(ranked_cell("lmdb", **SMALL_JOB, sync="after"), bench, run_folder, nodes=2)
    assert found.record.failure is not None
    assert found.record.failure.startswith("rank 1 on node 1 ran other code than rank 0: ")
