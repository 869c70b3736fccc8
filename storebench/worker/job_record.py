"""The record of an epoch from the parts of all its ranks: one table of steps, one proof, and the facts of each rank."""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storebench.formats.reader import RequestTable
from storebench.ranks.trainers import Trainer
from storebench.record.figures import epoch_record, with_cold_rates
from storebench.record.lines import STEPS_DIR
from storebench.record.merging import (
    ideal_ring_s,
    job_steps,
    merged_counters,
    merged_table,
    rank_tables,
    rate_until_first_end,
    set_to_first_node,
    waits_for_slowest_s,
)
from storebench.record.schema import (
    CacheFacts,
    Cell,
    JobFacts,
    RankFacts,
    Record,
    RequestFacts,
    Status,
    TrainersFacts,
)
from storebench.record.steps import StepTable, step_ends, timed_rows, write_steps
from storebench.settings.words import ComputeKind, Sync, TrainerData
from storebench.worker.epoch import Judge
from storebench.worker.epoch_proof import Proof, joined_proof
from storebench.worker.epoch_record import RankEpoch, cache_failure, tier_failure
from storebench.worker.sharding import Sampling
from storebench.worker.tournament import trainers_facts


def recorded(
    parts: Sequence[RankEpoch], sampling: Sampling, tables: Path, cost: dict[str, Any], judge: Judge | None
) -> Record:
    """Write the step table of an epoch into `tables` and return its record."""
    part = parts[0] if len(parts) == 1 or judge is None else joined(parts, sampling, cost, judge)
    logs = [rank.requests for rank in parts if rank.requests is not None]
    if logs:
        facts = request_facts(np.concatenate(logs))
        part = dataclasses.replace(part, record=dataclasses.replace(part.record, requests=facts))
    if part.table is not None and part.record.steps_file is not None:
        write_steps(part.table, tables / part.record.steps_file.removeprefix(f"{STEPS_DIR}/"))
    return part.record


def request_facts(rows: RequestTable) -> RequestFacts | None:
    if not len(rows):
        return None
    begun, ended, sizes = rows.T
    p50, p99 = np.percentile((ended - begun) / 1e6, (50, 99))
    return RequestFacts(
        count=len(rows),
        received_bytes=int(sizes.sum()),
        p50_ms=round(float(p50), 3),
        p99_ms=round(float(p99), 3),
        in_flight=round(float((ended - begun).sum()) / int(ended.max() - begun.min()), 2),
    )


def joined(parts: Sequence[RankEpoch], sampling: Sampling, cost: dict[str, Any], judge: Judge) -> RankEpoch:
    """Return the epoch of a job as one part: its steps, counters, proof and facts over all ranks."""
    first, cell = parts[0], parts[0].record.cell
    tables = [part.table for part in parts if part.table is not None]
    proofs = [part.proof for part in parts if part.proof is not None]
    assert len(tables) == len(proofs) == len(parts)
    nodes = [part.membership.node for part in parts]
    table = merged_table(set_to_first_node(tables, nodes, [part.barrier_ns for part in parts]))
    losses = job_steps(table)["loss"]
    trained = [] if np.isnan(losses).all() else [float(loss) for loss in losses]
    proof = joined_proof(sampling.expected(first.record.epoch), proofs, trained)
    records = [part.record for part in parts]
    curve_facts, portion = judge(job_steps(table))
    cache = first.record.cache
    if cache is not None:
        cache = dataclasses.replace(cache, curve=curve_facts.curve, reason=curve_facts.reason)
    leading = [part.trainer for part in parts[:: len(parts) // cell.trainers] if part.trainer is not None]
    trainers = trainers_facts(leading, [part.played for part in parts]) if leading else None
    accuracy = first.record.test_accuracy
    if trainers is not None and trainers.best_trainer is not None:
        accuracy = trainers.per_trainer[trainers.best_trainer].test_accuracy
    failure = next(_job_failures(cell, parts, cache, proof), None)
    record = dataclasses.replace(
        first.record,
        status=Status.OK if failure is None else Status.FAILED,
        failure=failure,
        started_utc=min(record.started_utc for record in records),
        open_s=max(record.open_s for record in records),
        digests=proof.digests,
        coverage=proof.coverage,
        cache=cache,
        portion=portion,
        counters=merged_counters(
            [record.counters for record in records], nodes, int(table["payload_bytes"].sum())
        ),
        reader_notes={
            name: text for record in reversed(records) for name, text in record.reader_notes.items()
        },
        test_accuracy=accuracy,
    )
    record = with_cold_rates(epoch_record(record, table), job_steps(table))
    facts = None
    if record.timed_steps:
        facts = job_facts(cell, parts, table, proof, cost, trainers)
    return dataclasses.replace(first, record=dataclasses.replace(record, job=facts), table=table, proof=proof)


def _job_failures(
    cell: Cell, parts: Sequence[RankEpoch], cache: CacheFacts | None, proof: Proof
) -> Iterator[str]:
    """Yield the reasons why a job's epoch must not be used: its storage first, then its samples and its ranks."""
    yield from filter(None, [cache_failure(cache)])
    for part in parts:
        if part.membership.node and (reason := cache_failure(part.record.cache)):
            yield f"node {part.membership.node}: {reason}"
    yield from filter(None, [tier_failure(parts[0].record.tier), proof.failure])
    yield from filter(None, [_other_code(parts), _other_weights(parts, cell.trainers)])


def _other_code(parts: Sequence[RankEpoch]) -> str | None:
    """Name a rank that ran other code than rank 0, as on a node with an installation of its own; None if none did."""
    # Commits are left out, because a node may have no git.
    codes = [
        " ".join([facts.digest[:12], *facts.plugin.split()[-1:]]) if (facts := part.record.code) else ""
        for part in parts
    ]
    for part, code in zip(parts, codes, strict=True):
        if code != codes[0]:
            me = part.membership
            return f"rank {me.rank} on node {me.node} ran other code than rank 0: {code}, not {codes[0]}"
    return None


def _other_weights(parts: Sequence[RankEpoch], trainers: int) -> str | None:
    """Name two ranks that train one network and have different weights; None if there are none."""
    first: dict[tuple[int, int], tuple[int, str]] = {}
    for part in parts:
        me, weights = part.membership, part.proof.weights if part.proof else None
        if weights is None:
            continue
        rank, expected = first.setdefault((me.node, Trainer.of(me, trainers).number), (me.rank, weights))
        if weights != expected:
            return f"ranks {rank} and {me.rank} train one network, but have different weights after the epoch"
    return None


def job_facts(
    cell: Cell,
    parts: Sequence[RankEpoch],
    table: StepTable,
    proof: Proof,
    cost: dict[str, Any],
    trainers: TrainersFacts | None,
) -> JobFacts:
    nodes = 1 + max(part.membership.node for part in parts)
    timed = timed_rows(table)
    ranks = _rank_facts(cell, parts, timed, one_clock=nodes == 1)
    rates, seconds = [rank.samples_per_s for rank in ranks], [rank.seconds for rank in ranks]
    waits = [rank.wait_for_slowest_s for rank in ranks if rank.wait_for_slowest_s is not None]
    left_ns: dict[int, list[int]] = {}
    for part in parts:
        left_ns.setdefault(part.membership.node, []).append(part.barrier_ns)
    _, times = np.unique(np.concatenate(proof.served), return_counts=True)
    planned = (cell.passes or 1) * (cell.trainers if cell.trainer_data is TrainerData.REPLICATED else 1)
    return JobFacts(
        ranks=len(parts),
        nodes=nodes,
        sync=None if cell.compute.kind is ComputeKind.NONE else cell.sync,
        global_batch_size=cell.batch_size * len(parts),
        per_rank=ranks,
        samples_per_s_min=min(rates),
        samples_per_s_median=statistics.median(rates),
        samples_per_s_max=max(rates),
        skew=(max(seconds) - min(seconds)) / statistics.median(seconds),
        barrier_exit_s=max(max(left) - min(left) for left in left_ns.values()) / 1e9,
        samples_per_s_until_first_end=rate_until_first_end(timed),
        wait_for_slowest_s=statistics.fmean(waits) if len(waits) == len(ranks) else None,
        unique_samples=proof.coverage.unique,
        total_samples=proof.coverage.served,
        duplicates=int(np.maximum(times - planned, 0).sum()),
        **cost,
        **_ring_facts(cost, len(parts) // cell.trainers),
        trainers=trainers,
    )


def _ring_facts(cost: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Return the fields of a job that compare its communication with an ideal ring; empty without a measured link."""
    if "link" not in cost:
        return {}
    ring_s = ideal_ring_s(cost["gradient_bytes"], ranks, cost["link_bytes_per_s"], cost["link_latency_s"])
    exposed_s = cost.get("exposed_communication_s")
    over = exposed_s / ring_s if ring_s and exposed_s is not None else None
    return {"ring_bound_s": ring_s, "exposed_over_bound": over}


def _rank_facts(
    cell: Cell, parts: Sequence[RankEpoch], timed: StepTable, *, one_clock: bool
) -> tuple[RankFacts, ...]:
    together = cell.compute.kind is not ComputeKind.NONE and cell.sync is not Sync.NONE
    together = together and len(parts) > cell.trainers
    waits = waits_for_slowest_s(timed, cell.trainers) if together and one_clock else [None] * len(parts)
    tables = rank_tables(timed)
    records = [epoch_record(part.record, steps) for part, steps in zip(parts, tables, strict=True)]
    first = parts[0].membership.node
    left_ns = min(part.barrier_ns for part in parts if part.membership.node == first)
    return tuple(
        RankFacts(
            node=part.membership.node,
            samples=record.timed_samples,
            seconds=record.timed_s,
            samples_per_s=record.timed_samples / (record.timed_s or 1.0),
            data_wait_s=record.data_wait_s,
            compute_s=record.compute_s,
            wait_for_slowest_s=wait,
            device_read_bytes=part.record.counters.device_read_bytes,
            requested_bytes=record.payload_bytes,
            data_store=part.data_store,
            begin_s=(int(steps["start_ns"][0]) - left_ns) / 1e9,
            end_s=(int(step_ends(steps)[-1]) - left_ns) / 1e9,
            resident_frac_before=part.record.cache.resident_frac_before if part.record.cache else None,
            resident_frac_after=part.record.cache.resident_frac_after if part.record.cache else None,
        )
        for part, record, wait, steps in zip(parts, records, waits, tables, strict=True)
    )
