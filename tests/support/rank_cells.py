"""Jobs of ranks in tests: run in copies of this process, with what each rank returned; or stuck on the command line."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.analysis.checks.records import validate_records
from storebench.ranks.group import ALONE, Group, TorchGroup
from storebench.ranks.membership import Membership
from storebench.record.lines import RECORDS_NAME, read_records
from storebench.record.schema import Cell, JobFacts, Record
from storebench.worker.job import CellJob
from storebench.worker.replicate import run as run_replicate
from storebench.worker.setup import Setup
from tests.support.harness_tools import SMALL_MATRIX, Bench, cell_job, scenario, steps_of, write_scenario
from tests.support.rank_processes import in_ranks

RankWork = Callable[..., tuple[list[Record], Any]]
"""Runs a job as one rank of a group, and returns its records and a note."""


@dataclass(frozen=True, kw_only=True)
class RankRun:
    """The record of an epoch, its losses, its steps, and the note of each rank."""

    record: Record
    losses: npt.NDArray[np.float32]
    steps: dict[str, npt.NDArray[Any]]
    notes: list[Any]

    @property
    def job(self) -> JobFacts:
        assert self.record.job is not None
        return self.record.job


def ranked_cell(backend: str, **matrix: Any) -> Cell:
    """Return a cell of MNIST."""
    [cell] = scenario(
        backends=[backend], **({"dataset": "mnist", "ranks": 3, "batch_size": 11} | matrix)
    ).cells()
    return cell


def plain_rank(group: Group, *, job: CellJob) -> tuple[list[Record], None]:
    """Run a rank."""
    return run_replicate(Setup.of(job, group=group)), None


def on_nodes(group: Group, *, job: CellJob, work: RankWork, nodes: int) -> tuple[list[Record], Any]:
    """Run a rank as if the ranks were on several nodes; consecutive ranks are on one node."""
    me = group.membership
    each = me.ranks // nodes
    placed = Membership(
        rank=me.rank, ranks=me.ranks, local_rank=me.rank % each, local_ranks=each, node=me.rank // each
    )
    return work(TorchGroup(placed), job=job)


def run_ranks(cell: Cell, bench: Bench, run: Path, work: RankWork = plain_rank, *, nodes: int = 1) -> RankRun:
    """Run a cell of one epoch: in copies of this process if it has several ranks, else in this one."""
    job = cell_job(cell, bench.stores, run)
    if cell.ranks == 1:
        parts = [work(ALONE, job=job)]
    else:
        parts = in_ranks(cell.ranks, functools.partial(on_nodes, job=job, work=work, nodes=nodes))
    [record] = parts[0][0]
    assert record.steps_file is not None, record.failure
    assert [records for records, _ in parts[1:]] == [[]] * (cell.ranks - 1)
    table = steps_of(record, run)
    return RankRun(
        record=record,
        losses=table["loss"][:: cell.ranks].astype(np.float32),
        steps=table,
        notes=[note for _, note in parts],
    )


NAMED_S = 15
"""A job that lost a rank has failed, with its line, so soon after the fault."""


def failure_of_stuck_job(bench: Bench, folder: Path, backend: str, fault: str, **matrix: Any) -> str:
    """Run a job by the command line in which a rank stops for good, and return its failure. The limit is 4 s."""
    path = write_scenario(
        folder / "stuck.toml",
        {**SMALL_MATRIX, "ranks": 2, "backends": [backend], **matrix},
        stall_s=4,
    )
    faulty = replace(bench, env={**bench.env, "PLANTED_RANK_FAULT": fault})
    done = faulty.cli("bench", path, "--stores", folder / "stores", "--out", folder / "run")
    assert done.returncode == 5, done.stderr
    [record] = read_records(folder / "run")
    return record.failure or ""


def assert_sound(found: RankRun, run: Path) -> None:
    """Check that a record has no failure and no findings of validation."""
    assert found.record.failure is None
    assert [str(finding) for finding in validate_records([(found.record, run / RECORDS_NAME)])] == []
