"""Cells of several ranks, by the command line: real torchrun jobs, their records, their faults, and what they leave."""

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from storebench.record.lines import LOGS_DIR, read_records
from storebench.record.schema import CacheVerdict, Record
from storebench.run.cell_process import answer_of
from storebench.run.resources import Surroundings
from storebench.system.scratch import scratch_folder
from tests.support.harness_tools import (
    SMALL,
    Bench,
    cell_job,
    scenario,
    started,
    survivors,
)
from tests.support.rank_cells import NAMED_S, failure_of_stuck_job

TWO_RANKS = ("--ranks", "2", "--threads", "1")


def storebench_processes() -> list[psutil.Process]:
    """Return the agents and ranks that still run: descendants of this process, and orphaned copies."""
    found = []
    below = {process.pid for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            words = set(process.cmdline())
            fresh = process.pid in below and {"storebench.ranks.agent", "storebench.worker"} & words
            if fresh or (process.ppid() == 1 and "tests.support.quick_cli" in words):
                found.append(process)
    return found


@pytest.fixture
def here(bench: Bench, temporary: Path) -> Bench:
    """Return the command line with a folder for temporary files of its own."""
    return dataclasses.replace(bench, env={**bench.env, "TMPDIR": str(temporary)})


@pytest.fixture
def tidy(here: Bench, temporary: Path) -> Iterator[None]:
    """Check that a test leaves no file and no process."""
    yield
    assert list(temporary.iterdir()) == []
    assert survivors(storebench_processes()) == []


def only(records: list[Record]) -> Record:
    [record] = records
    return record


def test_a_job_of_two_ranks_is_one_record(here: Bench, tidy: None, tmp_path: Path) -> None:
    """Use fresh interpreters: the ranks of most other tests are copies of the process that started them."""
    places = ("--stores", here.stores, "--out", tmp_path / "run")
    with started(here, "run", "lmdb", *SMALL, *TWO_RANKS, *places, "--json") as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    record = only(read_records(tmp_path / "run"))
    assert record.cell.ranks == 2
    assert record.coverage is not None
    assert record.coverage.complete
    assert not list((tmp_path / "run" / LOGS_DIR).iterdir()), "a job that works prints nothing"


def test_the_cache_is_prepared_once_per_node_for_all_ranks(here: Bench, tidy: None, tmp_path: Path) -> None:
    words = ("planted", *SMALL, *TWO_RANKS, "--cache", "cold", "--epochs", "2")
    done = here.cli("run", *words, "--stores", tmp_path / "stores", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    records = read_records(tmp_path / "run")
    assert [record.epoch for record in records] == [0, 1]
    for record in records:
        assert record.cache is not None
        assert (record.cache.verdict, record.cache.resident_frac_before) == (CacheVerdict.VERIFIED, 0.0)


def test_a_rank_that_is_killed_fails_its_cell_alone(here: Bench, tidy: None, tmp_path: Path) -> None:
    faulty = dataclasses.replace(here, env={**here.env, "PLANTED_RANK_FAULT": "1:kill"})
    places = ("--stores", here.stores, "--out", tmp_path / "run")
    done = faulty.cli("run", "planted:faulty-rank", "null", *SMALL, *TWO_RANKS, *places)
    assert done.returncode == 5
    by = {record.cell.backend.format: record for record in read_records(tmp_path / "run")}
    assert not by["null"].failed, by["null"].failure
    failure = by["planted"].failure or ""
    assert failure.startswith("rank 1 on node 0: it was killed by SIGKILL; see logs/")


def test_a_rank_that_hangs_is_named_by_the_scenarios_limit(here: Bench, tidy: None, tmp_path: Path) -> None:
    failure = failure_of_stuck_job(here, tmp_path, "planted:faulty-rank", "1:stop")
    ended = time.time()
    said = r"rank 1 on node 0 made no progress for [\d.]+ s during epoch 0; its process is stopped"
    assert re.match(said, failure), failure
    [begun] = (tmp_path / "stores").glob("*/begun-*")
    assert ended - begun.stat().st_mtime < 4 + NAMED_S


@pytest.mark.full
def test_a_rank_that_finds_no_store_is_named(bench: Bench, tmp_path: Path) -> None:
    small: dict[str, Any] = {"dataset": "mnist", "limit": 16, "synthetic": True, "model": "tiny", "ranks": 2}
    [cell] = scenario(**small, backends=["lmdb"]).cells()
    job = dataclasses.replace(cell_job(cell, bench.stores, tmp_path), store=tmp_path / "nothing")
    with scratch_folder("replicate") as scratch:
        job = dataclasses.replace(job, out=scratch / "out.json", tables=scratch, timeout_s=60)
        failure = answer_of(job, scratch, tmp_path / "log", Surroundings())["failure"]
    assert failure.startswith("rank ")
    assert f" on node 0: {tmp_path / 'nothing'}: " in failure


def test_ranks_that_make_no_sense_are_refused(bench: Bench) -> None:
    done = bench.cli("run", "lmdb", *SMALL, "--ranks", "2", "--device", "cuda:1", "--dry-run")
    assert done.returncode == 2
    assert "with ranks the device is 'cuda'" in done.stderr


def test_trainers_with_too_few_samples_are_refused(bench: Bench, tmp_path: Path) -> None:
    words = ("--ranks", "9", "--trainers", "9", "--stores", bench.stores, "--out", tmp_path / "run")
    done = bench.cli("run", "lmdb", *SMALL, *words)
    assert done.returncode == 2
    assert "9 trainers cannot share 16 samples" in done.stderr
    assert not (tmp_path / "run").exists()
