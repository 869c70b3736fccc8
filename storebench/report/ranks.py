"""Jobs of ranks: what more of them deliver, where their steps go, what the exchange costs, and who wins tournaments."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from storebench.analysis.comparison import Estimate, estimate
from storebench.analysis.labels import backend_label
from storebench.analysis.summary import (
    RANK_COLUMNS,
    SHARE_COLUMNS,
    CellSummary,
    ceiling_key,
    key_without,
    last_epochs,
)
from storebench.settings.words import Share, Sync

EXPOSED = "job_exposed_communication_s"

_CORNER_PARTS = {"step": "timed_s", "data wait": "data_wait_s", "compute": "compute_s"}


def job_name(cell: CellSummary) -> str:
    """Return the backend of a cell, its ranks, and how they share and exchange."""
    ranks, sync = cell.cell.ranks, cell.cell.sync
    words = [backend_label(cell.backend), "1 process" if ranks == 1 else f"{ranks} ranks"]
    if ranks > 1 and sync is not Sync.OVERLAPPED:
        words.append("exchange after" if sync is Sync.AFTER else "no exchange")
    words += ["global batch"] if cell.cell.global_batch_size is not None else []
    words += [f"share {cell.cell.share}"] if cell.cell.share is not Share.NONE else []
    return ", ".join(words)


def alone_of(job: CellSummary, cells: Iterable[CellSummary]) -> CellSummary | None:
    """Return the cell of one process that does the work of a job: as many samples per step as each rank, or as all."""
    key = (job.backend, *key_without(job, *RANK_COLUMNS))
    batch = job.cell.global_batch_size or job.cell.batch_size
    single = [cell for cell in cells if cell.cell.ranks == 1 and cell.cell.batch_size == batch]
    alike = (cell for cell in single if (cell.backend, *key_without(cell, *RANK_COLUMNS)) == key)
    return next((cell for cell in alike if cell.median("samples_per_s")), None)


def sharing_base(job: CellSummary, cells: Iterable[CellSummary]) -> CellSummary | None:
    """Return the job whose ranks read for themselves and that is like this one otherwise."""
    key = (job.backend, *key_without(job, *SHARE_COLUMNS))
    separate = (cell for cell in cells if cell.cell.share is Share.NONE)
    return next((c for c in separate if (c.backend, *key_without(c, *SHARE_COLUMNS)) == key), None)


def step_parts(cell: CellSummary) -> dict[str, float]:
    """Return the mean seconds of each part of a step; they add up to the time of the loop."""
    compute_s = cell.per_step("whole_compute_s")
    slowest_s = min(cell.per_step("whole_job_wait_for_slowest_s"), compute_s)
    exposed_s = min(max(0.0, cell.median(EXPOSED) or 0.0), compute_s - slowest_s)
    return {
        "data wait": cell.per_step("whole_data_wait_s"),
        "copy": cell.per_step("whole_h2d_s"),
        "compute": compute_s - slowest_s - exposed_s,
        "exposed communication": exposed_s,
        "wait for the slowest rank": slowest_s,
    }


@dataclass(frozen=True, eq=False)
class Corners:
    """What loading and exchanging add to a part of a job's step, alone and together beyond their sum, in seconds."""

    cell: CellSummary
    part: str
    loading: Estimate
    exchange: Estimate
    interaction: Estimate


def corners(cells: Iterable[CellSummary]) -> list[Corners]:
    """Return the effects of each job that also ran without loading (`null`), without exchange, and without both."""
    jobs = [cell for cell in cells if cell.cell.ranks > 1 and cell.values("samples_per_s")]
    nulls = {ceiling_key(cell): cell for cell in jobs if cell.is_null}
    silent = {
        (cell.backend, *key_without(cell, "sync")): cell
        for cell in jobs
        if not cell.is_null and cell.cell.sync is Sync.NONE
    }
    listed = []
    for both in jobs:
        loading = silent.get((both.backend, *key_without(both, "sync")))
        exchange = nulls.get(ceiling_key(both))
        neither = None if loading is None else nulls.get(ceiling_key(loading))
        if both.is_null or both.cell.sync is Sync.NONE or not (loading and exchange and neither):
            continue
        for part, column in _CORNER_PARTS.items():
            sides = [cell.rounds_per(column, "timed_steps") for cell in (both, loading, exchange, neither)]
            rounds = [key for key in sides[0] if all(key in side for side in sides)]
            if rounds:
                b, lo, ex, no = (np.array([side[key] for key in rounds]) for side in sides)
                effects = (estimate(seconds.tolist()) for seconds in (lo - no, ex - no, b - lo - ex + no))
                listed.append(Corners(both, part, *effects))
    return listed


@dataclass(frozen=True, kw_only=True, eq=False)
class TournamentResult:
    """Trainers with tournaments beside the same trainers without: test accuracy of the best one, as shares."""

    cell: CellSummary
    accuracy: float
    control: float | None
    games: int
    moved: int
    """Games after which a trainer continued with its partner's network."""


def tournaments(cells: Sequence[CellSummary]) -> list[TournamentResult]:
    """Return every cell with tournaments, with its control: the same trainers without games."""
    controls = {
        key_without(cell, "tournament_steps"): cell
        for cell in cells
        if cell.cell.trainers > 1 and not cell.cell.tournament_steps
    }
    listed = []
    for cell in cells:
        if not cell.cell.tournament_steps or (accuracy := _last_accuracy(cell)) is None:
            continue
        jobs = [row.record.job for row in cell.usable if row.record.job]
        games = [game for job in jobs if job.trainers for game in job.trainers.games]
        control = controls.get(key_without(cell, "tournament_steps"))
        listed.append(
            TournamentResult(
                cell=cell,
                accuracy=accuracy,
                control=None if control is None else _last_accuracy(control),
                games=len(games),
                moved=sum(game.winner != game.trainer for game in games),
            )
        )
    return listed


def _last_accuracy(cell: CellSummary) -> float | None:
    """Return the test accuracy after the last epoch, the mean over replicates."""
    last = last_epochs(row for row in cell.usable if row.record.test_accuracy is not None)
    return statistics.fmean(row.record.test_accuracy or 0.0 for row in last) if last else None
