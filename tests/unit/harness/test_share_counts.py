"""Honest counts of ranks that read together: what is asked for, what arrives, and time that belongs to the wait for data."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from storebench.ranks import node_loader, store_loader
from storebench.ranks.data_store import DataStore, DataStoreReader
from storebench.ranks.deliveries import Deliveries
from storebench.ranks.store_loader import StoreLoader
from storebench.report.checks.records import validate_records
from storebench.results import DataStoreFacts, Record, Status
from storebench.runs.records import RECORDS_NAME
from tests.support.harness_tools import SAMPLES, Bench
from tests.support.rank_cells import RankRun, assert_sound, ranked_cell, run_ranks

RANKS, BATCH = 2, 10
SLOW_S = 0.2


def shared(bench: Bench, run: Path, share: str = "store", **matrix: Any) -> RankRun:
    asked = {"ranks": RANKS, "batch_size": BATCH, "limit": SAMPLES, "compute": "none", "model": "none"}
    return run_ranks(ranked_cell("lmdb", share=share, **(asked | matrix)), bench, run)


def facts(found: RankRun) -> list[DataStoreFacts]:
    """Return the facts of each rank's part of the data store."""
    return [rank.data_store for rank in found.job.per_rank if rank.data_store is not None]


def figures(record: Record, run: Path) -> set[str]:
    """Return the figures of a record that validation finds wrong, also where the replicate itself had found it out."""
    taken = dataclasses.replace(record, status=Status.OK, failure=None)
    return {finding.figure for finding in validate_records([(taken, run / RECORDS_NAME)])}


def slowly(call: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*words: Any, **named: Any) -> Any:
        time.sleep(SLOW_S)
        return call(*words, **named)

    return slow


@pytest.mark.parametrize(("share", "loader"), [("store", store_loader), ("node", node_loader)])
def test_what_comes_before_the_first_batch_is_data_wait(
    share: str, loader: ModuleType, bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "requests_of", slowly(loader.requests_of))
    found = shared(bench, run_folder, share)
    assert_sound(found, run_folder)
    for rank in found.job.per_rank:
        assert rank.data_wait_s >= SLOW_S
        assert rank.begin_s is not None
        assert rank.begin_s < SLOW_S


def test_work_between_the_barrier_and_the_first_request_is_found(
    bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreLoader, "epoch", slowly(StoreLoader.epoch))
    found = shared(bench, run_folder, warmup_steps=2)
    assert figures(found.record, run_folder) == {"job.per_rank.begin_s"}


def test_a_message_that_is_lost_is_sent_and_not_received(
    bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = Deliveries._receive

    def losing(self: Deliveries, transfer: Any) -> Any:
        incoming = receive(self, transfer)
        if self._number == 2:
            incoming.messages.clear()
        return incoming

    sound = shared(bench, run_folder)
    assert_sound(sound, run_folder)
    assert (
        sum(rank.sent_bytes for rank in facts(sound)) == sum(rank.received_bytes for rank in facts(sound)) > 0
    )
    monkeypatch.setattr(Deliveries, "_receive", losing)
    found = shared(bench, run_folder)
    assert found.record.failure is not None
    assert sum(rank.sent_bytes for rank in facts(found)) > sum(rank.received_bytes for rank in facts(found))
    assert "data_store.sent_bytes" in figures(found.record, run_folder)


def test_a_data_store_that_asks_its_store_again_is_found(
    bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_pixels = DataStore.copy_pixels

    def asking(self: DataStore, samples: Any, out: Any) -> Any:
        fetched = copy_pixels(self, samples, out)
        self._source.fetch_into(samples, out)
        return fetched

    monkeypatch.setattr(DataStore, "copy_pixels", asking)
    monkeypatch.setattr(DataStoreReader, "let_go", lambda _: None)
    found = shared(bench, run_folder)
    assert sum(rank.from_store for rank in facts(found)) == SAMPLES
    assert {"data_store.from_store", "data_store.from_memory"} <= figures(found.record, run_folder)


def test_a_rank_preloads_its_own_part_alone(
    bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = DataStore.prepare

    def counted(self: DataStore) -> None:
        prepare(self)
        assert self._source.asked_samples == len(self._held.own) == SAMPLES // RANKS

    monkeypatch.setattr(DataStore, "prepare", counted)
    assert_sound(shared(bench, run_folder), run_folder)


def test_waits_and_spans_of_a_data_store_fit_into_its_data_wait(bench: Bench, run_folder: Path) -> None:
    found = shared(bench, run_folder)
    assert_sound(found, run_folder)
    ranks = list(found.job.per_rank)
    told = facts(found)[1]
    assert told.after_last_s is not None
    late_s = ranks[1].data_wait_s + 0.01
    late = dataclasses.replace(told, waited_s=late_s, exchange_s=late_s + told.after_last_s)
    ranks[1] = dataclasses.replace(ranks[1], data_store=late)
    job = dataclasses.replace(found.job, per_rank=tuple(ranks))
    forged = dataclasses.replace(found.record, job=job)
    assert figures(forged, run_folder) == {"job.per_rank[1].data_store.waited_s"}
    longer = dataclasses.replace(found.record, fetch_s=found.record.data_wait_s + 1)
    assert "data_wait_s" in figures(longer, run_folder)
