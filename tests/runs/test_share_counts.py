"""Honest counts of ranks that read together: what is asked for, what arrives, and time that belongs to the wait for data."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from storebench.analysis.checks.records import validate_records
from storebench.ranks import data_store, node_loader
from storebench.ranks.data_store import DataStore
from storebench.record.lines import RECORDS_NAME
from storebench.record.schema import DataStoreFacts, Record, Status
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


@pytest.mark.parametrize(("share", "loader"), [("store", data_store), ("node", node_loader)])
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


def test_a_rank_preloads_its_own_part_alone(
    bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = DataStore.prepare

    def counted(self: DataStore) -> None:
        prepare(self)
        assert self._source.asked_samples == len(self._held.own) == SAMPLES // RANKS

    monkeypatch.setattr(DataStore, "prepare", counted)
    assert_sound(shared(bench, run_folder), run_folder)
