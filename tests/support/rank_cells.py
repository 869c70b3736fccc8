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
from storebench.record.schema import Cell, JobFacts, Record, TrainersFacts
from storebench.training.compute import CpuStep
from storebench.worker.job import CellJob
from storebench.worker.replicate import run as run_replicate
from storebench.worker.setup import Setup
from tests.support.harness_tools import SMALL_MATRIX, Bench, cell_job, scenario, steps_of, write_scenario
from tests.support.rank_processes import in_ranks

RankWork = Callable[..., tuple[list[Record], Any]]
"""Runs a job as one rank of a group, and returns its records and a note."""


@dataclass(frozen=True, kw_only=True)
class RankRun:
    """The records of a job's epochs, the folder of its run, and the note of each rank."""

    records: list[Record]
    run: Path
    notes: list[Any]

    @property
    def record(self) -> Record:
        [record] = self.records
        return record

    @property
    def job(self) -> JobFacts:
        assert self.record.job is not None, self.record.failure
        return self.record.job

    @property
    def trainers(self) -> TrainersFacts:
        assert self.job.trainers is not None
        return self.job.trainers

    @property
    def steps(self) -> dict[str, npt.NDArray[Any]]:
        return steps_of(self.record, self.run)

    @property
    def losses(self) -> npt.NDArray[np.float32]:
        """The losses of all steps of all epochs."""
        losses = [steps_of(record, self.run)["loss"][:: record.cell.ranks] for record in self.records]
        return np.concatenate(losses).astype(np.float32)


def ranked_cell(backend: str, **matrix: Any) -> Cell:
    """Return a cell of MNIST."""
    [cell] = scenario(
        backends=[backend], **({"dataset": "mnist", "ranks": 3, "batch_size": 11} | matrix)
    ).cells()
    return cell


def plain_rank(
    group: Group, *, job: CellJob, change: Callable[[Setup], object] = bool
) -> tuple[list[Record], npt.NDArray[np.float32]]:
    """Run a rank, whose setup may be changed first; return also its weights, momentum and statistics, concatenated."""
    setup = Setup.of(job, group=group)
    change(setup)
    records = run_replicate(setup)
    state = setup.step.state() if isinstance(setup.step, CpuStep) else ()
    return records, np.concatenate([np.empty(0, np.float32), *(tensor.numpy().ravel() for tensor in state)])


def on_nodes(group: Group, *, job: CellJob, work: RankWork, nodes: int) -> tuple[list[Record], Any]:
    """Run a rank as if the ranks were on several nodes; consecutive ranks are on one node."""
    me = group.membership
    each = me.ranks // nodes
    placed = Membership(
        rank=me.rank, ranks=me.ranks, local_rank=me.rank % each, local_ranks=each, node=me.rank // each
    )
    return work(TorchGroup(placed), job=job)


def run_ranks(
    cell: Cell, bench: Bench, run: Path, work: RankWork = plain_rank, *, nodes: int = 1, test_limit: int = 0
) -> RankRun:
    """Run a cell: in copies of this process if it has several ranks, else in this one."""
    job = cell_job(cell, bench.stores, run, test_limit)
    if cell.ranks == 1:
        parts = [work(ALONE, job=job)]
    else:
        parts = in_ranks(cell.ranks, functools.partial(on_nodes, job=job, work=work, nodes=nodes))
    assert [records for records, _ in parts[1:]] == [[]] * (cell.ranks - 1)
    return RankRun(records=parts[0][0], run=run, notes=[note for _, note in parts])


def sound_ranks(
    cell: Cell,
    bench: Bench,
    run: Path,
    change: Callable[[Setup], object] = bool,
    *,
    nodes: int = 1,
    test_limit: int = 0,
) -> RankRun:
    """Run a cell whose ranks may be changed first, and check that nothing is wrong with its records."""
    work = functools.partial(plain_rank, change=change)
    found = run_ranks(cell, bench, run, work, nodes=nodes, test_limit=test_limit)
    assert_sound(found)
    return found


NAMED_S = 60
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


def assert_sound(found: RankRun) -> None:
    """Check that no record has a failure or a finding of validation."""
    assert [record.failure for record in found.records] == [None] * len(found.records)
    findings = validate_records([(record, found.run / RECORDS_NAME) for record in found.records])
    assert [str(finding) for finding in findings] == []
