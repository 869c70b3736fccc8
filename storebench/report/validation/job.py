"""Rules for the record of a job: the figures of ranks follow from steps, and the job's from those of ranks."""

import math
import statistics
from collections.abc import Iterator

from storebench.ranks.merging import (
    RANK,
    ideal_ring_s,
    job_steps,
    rank_tables,
    rate_until_first_end,
    waits_for_slowest_s,
)
from storebench.report.validation.data_store import check_waits
from storebench.report.validation.findings import ROUNDING, Finding, Rule, agree, finding
from storebench.report.validation.trainers import check_pauses, check_trainers, teams
from storebench.results import JobFacts, RankFacts, Record
from storebench.settings.words import ComputeKind, Share
from storebench.training.step_table import StepTable, step_ends, timed_rows, wall_ns
from storebench.units import number_of

_BEGIN_FRAC = 0.05
_BEGIN_S = 0.05
"""The first rank may begin this much after the barrier: a share of the job, and a few preemptions of a busy machine."""


def check_job(record: Record) -> Iterator[Finding]:
    """Yield the findings about the ranks of one usable record; none for one process."""
    job, ranks = record.job, record.cell.ranks
    if job is None:
        if ranks > 1 and record.timed_steps:
            yield finding(
                Rule.SCHEMA,
                record,
                "job",
                f"the cell has {ranks} ranks, but the record has no facts about them",
            )
        return
    if not job.ranks == len(job.per_rank) == ranks:
        message = f"{job.ranks} ranks, of which {len(job.per_rank)} are described, in a cell of {ranks}"
        yield finding(Rule.ARITHMETIC, record, "job.ranks", message)
        return
    if job.restarts:
        yield finding(
            Rule.RUN,
            record,
            "job.restarts",
            f"the ranks were started again ({number_of(job.restarts, 'time')})",
        )
    yield from _asked(record, job)
    yield from _shares(record, job)
    yield from _since_barrier(record, job)
    yield from _spread(record, job)
    yield from _samples(record, job)
    yield from _readers(record, job)
    yield from _ring(record, job)
    yield from check_trainers(record, job)


def check_ranks(record: Record, steps: StepTable) -> Iterator[Finding]:
    """Yield findings where the steps of one usable record contradict the figures of its ranks.

    Parameters
    ----------
    steps
        The step table of the job, one row per step and rank.
    """
    job = record.job
    timed = timed_rows(steps)
    if job is None or RANK not in steps or not len(timed[RANK]):
        return
    for number, (rank, table) in enumerate(zip(job.per_rank, rank_tables(timed), strict=False)):
        seconds = wall_ns(table) / 1e9
        figures = {
            "samples": int(table["samples"].sum()),
            "seconds": seconds,
            "samples_per_s": float(table["samples"].sum()) / seconds,
            "data_wait_s": float(table["data_wait_ns"].sum()) / 1e9,
            "compute_s": float(table["compute_ns"].sum()) / 1e9,
        }
        if rank.requested_bytes is not None:  # None in older records
            figures["requested_bytes"] = int(table["payload_bytes"].sum())
        figures |= _moments(job, timed, table)
        yield from _differing(record, rank, figures, f"job.per_rank[{number}]")
    figures = {"samples_per_s_until_first_end": rate_until_first_end(timed)}
    if all(rank.wait_for_slowest_s is not None for rank in job.per_rank):
        figures["wait_for_slowest_s"] = statistics.fmean(waits_for_slowest_s(timed, teams(record)))
    yield from _differing(record, job, figures, "job")
    yield from _begin(record, job, steps, timed)
    yield from check_waits(record, steps)
    yield from check_pauses(record, steps)
    timed_s = wall_ns(job_steps(timed)) / 1e9
    if not agree(record.timed_s, timed_s):
        message = f"{record.timed_s:.6g}, but the steps of its ranks last {timed_s:.6g}"
        yield finding(Rule.STEPS, record, "timed_s", message)


def _moments(job: JobFacts, timed: StepTable, table: StepTable) -> dict[str, float]:
    """Return a rank's begin and end since the barrier, relative to rank 0's begin; empty for older records."""
    begin_s = job.per_rank[0].begin_s
    if begin_s is None:
        return {}
    first_ns = int(timed["start_ns"][0])
    return {
        "begin_s": begin_s + (int(table["start_ns"][0]) - first_ns) / 1e9,
        "end_s": begin_s + (int(step_ends(table)[-1]) - first_ns) / 1e9,
    }


def _begin(record: Record, job: JobFacts, steps: StepTable, timed: StepTable) -> Iterator[Finding]:
    """Find a job whose ranks were all at work between the barrier and their first requests: that would be in no rate."""
    begin_s = job.per_rank[0].begin_s
    if begin_s is None:
        return
    first_s = begin_s + (int(steps["start_ns"].min()) - int(timed["start_ns"][0])) / 1e9
    most_s = max(_BEGIN_S, _BEGIN_FRAC * record.timed_s)
    if first_s > most_s:
        message = f"the first rank began {first_s:.6g} s after the barrier, which is in no rate; at most {most_s:.6g} s are idle"
        yield finding(Rule.STEPS, record, "job.per_rank.begin_s", message)


def _differing(
    record: Record, recorded_facts: JobFacts | RankFacts, figures: dict[str, float], part: str
) -> Iterator[Finding]:
    """Find figures of a job or a rank that contradict its steps."""
    for name, right in figures.items():
        recorded = getattr(recorded_facts, name)
        if recorded is None or not agree(recorded, right):
            words = "nothing" if recorded is None else f"{recorded:.6g}"
            yield finding(Rule.STEPS, record, f"{part}.{name}", f"{words}, but its steps give {right:.6g}")


def _asked(record: Record, job: JobFacts) -> Iterator[Finding]:
    """Find facts that contradict the record's cell."""
    cell = record.cell
    sync = None if cell.compute.kind is ComputeKind.NONE else cell.sync
    expected = {"global_batch_size": cell.batch_size * job.ranks, "sync": sync}
    for name, right in expected.items():
        if getattr(job, name) != right:
            yield finding(
                Rule.ARITHMETIC, record, f"job.{name}", f"{getattr(job, name)}, but its cell has {right}"
            )
    nodes = len({rank.node for rank in job.per_rank})
    if job.nodes != nodes:
        message = f"{job.nodes} nodes, but its ranks ran on {nodes}"
        yield finding(Rule.ARITHMETIC, record, "job.nodes", message)


def _readers(record: Record, job: JobFacts) -> Iterator[Finding]:
    """Find ranks that read although the first rank of their node reads for them."""
    if record.cell.share is not Share.NODE:
        return
    seen: set[int] = set()
    for number, rank in enumerate(job.per_rank):
        if rank.node in seen and rank.requested_bytes:
            message = f"it requested {rank.requested_bytes} bytes, but the first rank of node {rank.node} reads for it"
            yield finding(Rule.ARITHMETIC, record, f"job.per_rank[{number}].requested_bytes", message)
        seen.add(rank.node)


def _shares(record: Record, job: JobFacts) -> Iterator[Finding]:
    """Find ranks that do not add up to their job."""
    samples = sum(rank.samples for rank in job.per_rank)
    if samples != record.timed_samples:
        message = f"the ranks served {samples} samples in timed steps, the job {record.timed_samples}"
        yield finding(Rule.ARITHMETIC, record, "job.per_rank", message)
    longest_s = max(rank.seconds for rank in job.per_rank)
    if longest_s > record.timed_s * (1 + ROUNDING) + ROUNDING:
        message = f"a rank took {longest_s:.6g} s, longer than the {record.timed_s:.6g} s of the job"
        yield finding(Rule.ARITHMETIC, record, "job.per_rank", message)
    for name in ("data_wait_s", "compute_s"):
        mean_s = statistics.fmean(getattr(rank, name) for rank in job.per_rank)
        if not agree(mean_s, getattr(record, name)):
            message = f"{getattr(record, name):.6g}, but the mean of the ranks is {mean_s:.6g}"
            yield finding(Rule.ARITHMETIC, record, name, message)


def _since_barrier(record: Record, job: JobFacts) -> Iterator[Finding]:
    """Find times since the barrier that contradict the duration of the job or of a rank."""
    known = [
        (rank.begin_s, rank.end_s, rank.seconds)
        for rank in job.per_rank
        if rank.begin_s is not None and rank.end_s is not None
    ]
    if not known:
        return
    if len(known) < len(job.per_rank):
        message = f"only {len(known)} of {len(job.per_rank)} ranks have a begin and an end"
        yield finding(Rule.ARITHMETIC, record, "job.per_rank", message)
        return
    first_s, last_s = min(begin for begin, _, _ in known), max(end for _, end, _ in known)
    if first_s < 0:
        message = f"a rank began {-first_s:.6g} s before its node left the barrier"
        yield finding(Rule.ARITHMETIC, record, "job.per_rank", message)
    if record.timed_s > (last_s - first_s) * (1 + ROUNDING) + ROUNDING:
        message = f"{record.timed_s:.6g} s, but its ranks ran for {last_s - first_s:.6g} s since they left the barrier"
        yield finding(Rule.ARITHMETIC, record, "timed_s", message)
    if any(seconds > (end - begin) * (1 + ROUNDING) + ROUNDING for begin, end, seconds in known):
        message = "a rank's duration exceeds the time from its begin to its end"
        yield finding(Rule.ARITHMETIC, record, "job.per_rank", message)


def _spread(record: Record, job: JobFacts) -> Iterator[Finding]:
    """Find a spread that the ranks do not have."""
    rates, seconds = [rank.samples_per_s for rank in job.per_rank], [rank.seconds for rank in job.per_rank]
    middle_s = statistics.median(seconds)
    expected = {
        "samples_per_s_min": min(rates),
        "samples_per_s_median": statistics.median(rates),
        "samples_per_s_max": max(rates),
        "skew": (max(seconds) - min(seconds)) / middle_s if middle_s else math.inf,
    }
    for name, right in expected.items():
        recorded = getattr(job, name)
        if not agree(recorded, right):
            message = f"{recorded:.6g}, but the ranks give {right:.6g}"
            yield finding(Rule.ARITHMETIC, record, f"job.{name}", message)


def _samples(record: Record, job: JobFacts) -> Iterator[Finding]:
    """Find samples that were counted differently, and duplicates without padding."""
    unique = record.coverage.unique if record.coverage else job.unique_samples
    if (job.total_samples, job.unique_samples) != (record.samples, unique):
        message = f"{job.unique_samples} different ones of {job.total_samples}, but {unique} of {record.samples} came"
        yield finding(Rule.COVERAGE, record, "job.unique_samples", message)
    if job.duplicates and not record.cell.pad:
        message = f"{job.duplicates} samples were served again, but the cell has no padding"
        yield finding(Rule.COVERAGE, record, "job.duplicates", message)


def _ring(record: Record, job: JobFacts) -> Iterator[Finding]:
    """Find a time of an ideal ring, or a ratio to it, that does not follow from bytes, link and exposed communication."""
    size, rate, latency_s = job.gradient_bytes, job.link_bytes_per_s, job.link_latency_s
    known = size is not None and rate and latency_s is not None
    ring_s = (
        ideal_ring_s(size or 0, job.ranks // teams(record), rate or 1.0, latency_s or 0.0) if known else None
    )
    exposed_s = job.exposed_communication_s
    expected = {
        "ring_bound_s": ring_s,
        "exposed_over_bound": exposed_s / ring_s if ring_s and exposed_s is not None else None,
    }
    for name, right in expected.items():
        recorded = getattr(job, name)
        agrees = recorded is right is None or (
            recorded is not None and right is not None and agree(recorded, right)
        )
        if not agrees:
            words = [f"{value:.6g}" if value is not None else "nothing" for value in (recorded, right)]
            message = f"{words[0]}, but bytes, link and exposed communication give {words[1]}"
            yield finding(Rule.ARITHMETIC, record, f"job.{name}", message)
