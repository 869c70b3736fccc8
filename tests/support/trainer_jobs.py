"""Jobs of several trainers in copies of this process: their records, and the state of every rank's training."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.analysis.checks.records import validate_records
from storebench.ranks.games import packed
from storebench.ranks.group import Group
from storebench.record.lines import RECORDS_NAME
from storebench.record.schema import Cell, JobFacts, Record, TrainersFacts
from storebench.training.steps import CpuStep
from storebench.worker.job import CellJob
from storebench.worker.replicate import run as run_replicate
from storebench.worker.setup import Setup
from tests.support.harness_tools import Bench, cell_job, scenario
from tests.support.rank_processes import in_ranks

State = npt.NDArray[np.float32]
"""Weights, momentum and statistics, concatenated."""

TRAINERS, STEPS = 4, 3

Answer = tuple[list[Record], State]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The records of a job, the state of each of its ranks at the end, and the folder of the run."""

    records: list[Record]
    states: list[State]
    run: Path

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

    def findings(self) -> list[str]:
        """Return the findings of validation about the records."""
        assert [record.failure for record in self.records] == [None] * len(self.records)
        sourced = [(record, self.run / RECORDS_NAME) for record in self.records]
        return [str(finding) for finding in validate_records(sourced)]


def trainers_cell(backend: str = "lmdb", **matrix: Any) -> Cell:
    """Return a cell of four trainers of one rank each, with a tournament every three steps."""
    asked: dict[str, Any] = {
        "dataset": "mnist",
        "synthetic": True,
        "limit": 160,
        "model": "tiny",
        "batch_size": 6,
        "ranks": TRAINERS,
        "trainers": TRAINERS,
        "tournament_steps": STEPS,
    }
    [cell] = scenario(backends=[backend], **(asked | matrix)).cells()
    return cell


def rank(group: Group, *, job: CellJob, prepare: Callable[[Setup], None] | None = None) -> Answer:
    """Run a rank of a job; `prepare` may change its setup first."""
    setup = Setup.of(job, group=group)
    if prepare is not None:
        prepare(setup)
    records = run_replicate(setup)
    state = packed(setup.step.state()).numpy() if isinstance(setup.step, CpuStep) else np.empty(0, np.float32)
    return records, state


def trained(
    cell: Cell,
    bench: Bench,
    run: Path,
    *,
    test_limit: int = 0,
    prepare: Callable[[Setup], None] | None = None,
) -> Trained:
    """Run a cell of several ranks."""
    job = replace(cell_job(cell, bench.stores, run, test_limit), ceilings=False)
    answers = in_ranks(cell.ranks, functools.partial(rank, job=job, prepare=prepare))
    return Trained(records=answers[0][0], states=[state for _, state in answers], run=run)
