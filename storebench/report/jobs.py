"""The cells that a job of ranks is compared with: one process, and jobs that exchange gradients or read in another way."""

from collections.abc import Iterator, Sequence

from storebench.report.cells import RANK_COLUMNS, SHARE_COLUMNS, CellSummary, key_without
from storebench.report.panels import Panel
from storebench.settings.words import Share, Sync


def stored_jobs(panels: Sequence[Panel]) -> Iterator[CellSummary]:
    """Yield the measured jobs of several ranks that read a store."""
    return (cell for panel in panels for cell in panel.stored if cell.cell.ranks > 1)


def work_of_ranks(cell: CellSummary) -> tuple[object, ...]:
    """Return the key shared by a job and the process that does the same work."""
    return (cell.backend, *key_without(cell, *RANK_COLUMNS))


def does_the_work(job: CellSummary, alone: CellSummary) -> bool:
    """Return True if each rank of a job, or all ranks together, serve as many samples per step as one process."""
    return (job.cell.global_batch_size or job.cell.batch_size) == alone.cell.batch_size


def ways_to_exchange(panels: Sequence[Panel]) -> list[list[CellSummary]]:
    """Return groups of jobs that differ only in the moment of the exchange, in the order of `Sync`."""
    groups: dict[object, list[CellSummary]] = {}
    for cell in stored_jobs(panels):
        groups.setdefault((cell.backend, *key_without(cell, "sync")), []).append(cell)
    return [
        sorted(group, key=lambda job: list(Sync).index(job.cell.sync))
        for group in groups.values()
        if len(group) > 1
    ]


def data_stores(panels: Sequence[Panel]) -> list[tuple[CellSummary, CellSummary]]:
    """Return the jobs that keep samples in a data store, each with the job whose ranks read for themselves."""
    jobs = list(stored_jobs(panels))
    separate = {_but_for_sharing(job): job for job in jobs if job.cell.share is Share.NONE}
    keeping = (job for job in jobs if job.cell.share is Share.STORE)
    return [(job, separate[key]) for job in keeping if (key := _but_for_sharing(job)) in separate]


def _but_for_sharing(job: CellSummary) -> tuple[object, ...]:
    return (job.backend, *key_without(job, *SHARE_COLUMNS))


def jobs_beside(cell: CellSummary, panels: Sequence[Panel]) -> list[CellSummary]:
    """Return the measured jobs of several ranks that do the work of one process, in the order of their ranks.

    Each rank, or all ranks together, serve as many samples per step as the process.
    """
    if cell.cell.ranks > 1:
        return []
    key = work_of_ranks(cell)
    jobs = [job for job in stored_jobs(panels) if work_of_ranks(job) == key and does_the_work(job, cell)]
    return sorted(jobs, key=lambda job: job.cell.ranks)
