"""Counts of ranks that read together: the samples asked for and received, and the time of the wait for data."""

import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from storebench.ranks import data_store, node_loader
from tests.support.harness_tools import SAMPLES, Bench
from tests.support.rank_cells import RankRun, assert_sound, ranked_cell, run_ranks

RANKS, BATCH = 2, 10
SLOW_S = 0.2


def shared(bench: Bench, run: Path, share: str = "store", **matrix: Any) -> RankRun:
    asked = {"ranks": RANKS, "batch_size": BATCH, "limit": SAMPLES, "compute": "none", "model": "none"}
    return run_ranks(ranked_cell("lmdb", share=share, **(asked | matrix)), bench, run)


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
    assert_sound(found)
    for rank in found.job.per_rank:
        assert rank.data_wait_s >= SLOW_S
        assert rank.begin_s is not None
        assert rank.begin_s < SLOW_S
