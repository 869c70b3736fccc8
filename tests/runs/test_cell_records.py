"""The record of a small cell, field by field: what is in it follows from what was asked for and from what ran."""

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storebench import __version__
from storebench.digests import array_digest
from storebench.loading.order import epoch_order, order_digest, split_batches
from storebench.probes.code import running_digest
from storebench.record.lines import STEPS_DIR
from storebench.record.schema import CacheVerdict, Coverage, Record, Status
from storebench.settings.words import CacheState
from storebench.worker.replicate import run as run_replicate
from storebench.worker.setup import Setup
from tests.support.harness_tools import Bench, cell_job, scenario, steps_of

SAMPLES, BATCH, WARM_UP, SEED = 50, 8, 2, 3
MATRIX: dict[str, Any] = {
    "dataset": "mnist",
    "synthetic": True,
    "limit": SAMPLES,
    "batch_size": BATCH,
    "model": "tiny",
    "seed": SEED,
    "warmup_steps": WARM_UP,
}


def records_of(bench: Bench, run: Path, backend: str = "lmdb", **asked: Any) -> list[Record]:
    """Run a cell as replicate 4 of the run "some run", in this process."""
    changes = {name: asked.pop(name) for name in ("ceilings",) if name in asked}
    test_limit = asked.pop("test_limit", 0)
    [cell] = scenario(**(MATRIX | {"backends": [backend]} | asked)).cells()
    job = cell_job(cell, bench.stores, run, test_limit)
    return run_replicate(Setup.of(dataclasses.replace(job, replicate=4, run_id="some run", **changes)))


@pytest.fixture
def two(bench: Bench, run_folder: Path) -> list[Record]:
    """Return the records of two warm epochs with a test accuracy."""
    return records_of(bench, run_folder, epochs=2, cache="warm", test_limit=20)


def test_a_record_says_what_ran_and_when(two: list[Record], run_folder: Path) -> None:
    began = [dt.datetime.fromisoformat(one.started_utc) for one in two]
    now = dt.datetime.now(dt.UTC)
    for number, one in enumerate(two):
        assert (one.run_id, one.replicate, one.epoch) == ("some run", 4, number)
        assert (one.storebench_version, one.status, one.failure) == (__version__, Status.OK, None)
        assert len(one.started_utc) == len("2026-01-01T00:00:00.000+00:00"), "whole milliseconds, UTC"
        assert dt.timedelta(0) < now - began[number] < dt.timedelta(minutes=2)
        assert one.steps_file == f"{STEPS_DIR}/{one.cell.cell_id}-r4-e{number}.parquet"
        assert (run_folder / one.steps_file).is_file()
        assert one.code is not None
        assert one.code.digest == running_digest()
        assert one.environment is not None
        assert one.environment.match["cpu"]
        assert 0 < one.open_s < 10
        assert (one.au_kind, one.cell.seed) == ("real", SEED)
    assert began[0] + dt.timedelta(seconds=two[0].epoch_s) <= began[1]


def test_a_record_counts_the_work_and_its_warm_up(two: list[Record]) -> None:
    for one in two:
        assert (one.steps, one.timed_steps) == (7, 7 - WARM_UP)
        assert (one.samples, one.timed_samples) == (SAMPLES, SAMPLES - WARM_UP * BATCH)
        assert one.payload_bytes == SAMPLES * 28 * 28
        assert one.counters.minor_faults is not None
        assert one.counters.cpu_user_s is not None
        assert one.cache is not None
        assert (one.cache.requested, one.cache.verdict) == (CacheState.WARM, CacheVerdict.VERIFIED)
        assert one.cache.resident_frac_after is not None
        assert one.portion is None


def test_the_digest_of_losses_is_that_of_the_step_table(two: list[Record], run_folder: Path) -> None:
    for one in two:
        losses = steps_of(one, run_folder)["loss"]
        assert one.digests is not None
        assert one.digests.loss == array_digest(losses.astype(np.float32))


def test_a_record_proves_its_samples(two: list[Record]) -> None:
    for number, one in enumerate(two):
        assert one.coverage is not None
        assert one.store is not None
        expected = Coverage(
            expected=SAMPLES,
            served=SAMPLES,
            unique=SAMPLES,
            duplicates=0,
            missing=0,
            timed_checked=SAMPLES - WARM_UP * BATCH,
            proof_s=one.coverage.proof_s,
        )
        assert one.coverage == expected
        assert 0 < one.coverage.proof_s < 1
        order = epoch_order(SAMPLES, seed=SEED, epoch=number, replicate=one.replicate)
        assert one.digests is not None
        assert one.digests.order == order_digest(split_batches(order, BATCH))
    first, second = (one.digests for one in two)
    assert first is not None
    assert second is not None
    assert first.loss != second.loss
    assert None not in (first.loss, second.loss)


def test_seed_order_and_limits_of_a_cell_are_those_of_its_batches(bench: Bench, run_folder: Path) -> None:
    [one] = records_of(bench, run_folder, shuffle=False, max_steps=3, warmup_steps=0, passes=2, cache="any")
    assert one.digests is not None
    first = list(range(3 * BATCH))
    order = [epoch_order(SAMPLES, seed=SEED, epoch=turn, shuffle=False)[: 3 * BATCH] for turn in range(2)]
    assert order[0].tolist() == order[1].tolist() == first
    batches = [batch for turn in order for batch in split_batches(turn, BATCH)]
    assert one.digests.order == order_digest(batches)
    assert (one.steps, one.samples, one.coverage and one.coverage.unique) == (6, 48, 24)


def test_the_seed_decides_the_networks_weights(bench: Bench, run_folder: Path) -> None:
    def loss(seed: int) -> str | None:
        torch.manual_seed(99)  # what this process drew before does not matter
        [one] = records_of(bench, run_folder, seed=seed, shuffle=False, max_steps=1, warmup_steps=0)
        assert one.digests is not None
        return one.digests.loss

    assert loss(1) == loss(1) != loss(2)


def test_ready_made_batches_are_not_kept(bench: Bench, run_folder: Path) -> None:
    [one] = records_of(bench, run_folder, "null")
    assert one.coverage is not None
    assert one.coverage.timed_checked == 0
    assert (one.coverage.served, one.coverage.missing) == (SAMPLES, 0)
    assert one.cache is not None
    assert one.cache.reason == "nothing is read"


def test_the_notes_of_all_readers_stand_in_the_record(bench: Bench, run_folder: Path) -> None:
    [one] = records_of(bench, run_folder, "lmdb:direct", loader="threads", workers=1)
    opened = records_of(bench, run_folder, "lmdb:direct")[0].reader_notes
    assert opened, "what the reader says on opening"
    assert one.reader_notes.keys() == opened.keys()
    assert records_of(bench, run_folder)[0].reader_notes == {"readahead": "on"}


def test_a_thread_receives_batches_as_for_a_gpu_unless_a_cpu_trains(bench: Bench, run_folder: Path) -> None:
    """Without it the loop would wait for each batch to be handed over, as it does where the CPU trains."""

    def received(**changes: Any) -> str | None:
        [one] = records_of(bench, run_folder, **changes)
        return one.reader_notes.get("received_by")

    assert received(compute="emulated:1", model="none", workers=2) == "thread"
    assert received(compute="none", model="none", workers=2) == "thread"
    assert received(compute="real", workers=2) is None
    assert received(compute="emulated:1", model="none", workers=0) is None
    assert received(compute="emulated:1", model="none", workers=2, loader="threads") is None


def test_a_cell_without_a_network_is_neither_trained_nor_tested(bench: Bench, run_folder: Path) -> None:
    [one] = records_of(bench, run_folder, model="none", compute="none", test_limit=20)
    assert (one.status, one.au_kind) == (Status.OK, "none")
    assert (one.test_samples, one.test_accuracy) == (0, None)
    assert one.loss is None
