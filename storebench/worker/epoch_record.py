"""An epoch becomes a record: its proof, its figures, and the facts of all ranks."""

import dataclasses
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storebench._version import __version__
from storebench.digests import array_digest, set_digest
from storebench.formats.base import Indices
from storebench.formats.reader import RequestTable
from storebench.loading.augment import round_seed
from storebench.loading.order import order_digest
from storebench.loading.proof import TimedCheck, Truth, coverage, same_order
from storebench.probes.environment import environment
from storebench.ranks.communication import Communication
from storebench.ranks.membership import Membership
from storebench.ranks.trainers import Trainer
from storebench.record.figures import epoch_record, with_cold_rates
from storebench.record.lines import STEPS_DIR
from storebench.record.manifest import store_facts
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
    CacheVerdict,
    Ceilings,
    Cell,
    Counters,
    Coverage,
    DataStoreFacts,
    Digests,
    JobFacts,
    RankFacts,
    Record,
    RequestFacts,
    Status,
    TierFacts,
    TrainersFacts,
)
from storebench.record.steps import StepTable, step_ends, timed_rows, write_steps
from storebench.settings.words import ComputeKind, Sync, TrainerData
from storebench.stores.find import read_digest_table
from storebench.training.steps import CpuStep
from storebench.units import number_of
from storebench.worker.epoch import EpochMeasurement, Evidence, Judge
from storebench.worker.setup import Setup
from storebench.worker.tournament import TrainerPart, trainer_part, trainers_facts


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was served in an epoch, by one rank or by all of a job, compared with what should have been."""

    served: list[Indices]
    timed: TimedCheck
    coverage: Coverage
    digests: Digests
    weights: str | None = None
    out_of_order: int | None = None

    @property
    def failure(self) -> str | None:
        """The reason why the epoch must not be used, in one line; None if all samples were right."""
        served = self.coverage
        if served.complete and self.out_of_order is None:
            return None
        if served.complete:
            return f"rank {self.out_of_order} was not served the samples of its plan in the drawn order"
        first = "" if self.timed.first_wrong is None else f", the first sample {self.timed.first_wrong}"
        return (
            f"wrong samples: {served.missing} missing, {served.duplicates} served twice; "
            f"of {served.timed_checked} kept from the timed batches {served.timed_wrong} wrong{first}"
        )


def prove(setup: Setup, number: int, evidence: Evidence) -> Proof:
    """Compare the kept samples with the store's digests, and count the served samples."""
    # Draw the batches again: readers get the arrays of a plan and could write to them.
    planned = setup.sampling.batches(number)
    proof = _proof(
        planned,
        evidence.served,
        _check_timed(setup, number, evidence),
        evidence.losses,
        evidence.keeper.paused_s,
    )
    in_order = same_order(planned, evidence.served)
    step, weights = setup.step, None
    if setup.trainer.ranks > 1 and setup.cell.sync is not Sync.NONE and isinstance(step, CpuStep):
        arrays = (parameter.detach().cpu().numpy() for parameter in step.network.parameters())
        weights = set_digest(bytes.fromhex(array_digest(array)) for array in arrays)
    return dataclasses.replace(
        proof, weights=weights, out_of_order=None if in_order else setup.membership.rank
    )


def joined_proof(setup: Setup, number: int, proofs: Sequence[Proof], losses: Sequence[float]) -> Proof:
    """Return the proof of a job's epoch from those of its ranks: over all samples of all ranks together."""
    served = [batch for step in zip(*(proof.served for proof in proofs), strict=True) for batch in step]
    timed = TimedCheck(
        checked=sum(proof.timed.checked for proof in proofs),
        wrong=sum(proof.timed.wrong for proof in proofs),
        first_wrong=next((proof.timed.first_wrong for proof in proofs if proof.timed.wrong), None),
    )
    proof_s = sum(proof.coverage.proof_s for proof in proofs)
    proof = _proof(setup.sampling.expected(number), served, timed, losses, proof_s)
    out_of_order = next((proof.out_of_order for proof in proofs if proof.out_of_order is not None), None)
    return dataclasses.replace(proof, out_of_order=out_of_order)


def _proof(
    planned: Sequence[Indices],
    served: list[Indices],
    timed: TimedCheck,
    losses: Sequence[float],
    proof_s: float,
) -> Proof:
    return Proof(
        served=served,
        timed=timed,
        coverage=dataclasses.replace(coverage(planned, served, timed), proof_s=proof_s),
        digests=Digests(
            order=order_digest(served),
            loss=array_digest(np.asarray(losses, dtype=np.float32)) if losses else None,
        ),
    )


def _check_timed(setup: Setup, number: int, evidence: Evidence) -> TimedCheck:
    """Compare the samples that were kept during the timed pass."""
    if setup.traits.ready_made:
        return TimedCheck()
    truth = Truth(
        store=setup.job.store,
        backend=setup.cell.backend,
        table=read_digest_table(setup.job.store, setup.manifest),
        augment=setup.augment,
        seed=round_seed(setup.cell.seed, setup.job.replicate),
    )
    return truth.check(evidence.keeper.kept, number)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch of a replicate. It is neither timed nor proven if the cache state could not be reached."""

    number: int
    started_utc: str
    cache: CacheFacts
    measured: EpochMeasurement | None = None
    proof: Proof | None = None
    accuracy: tuple[float, int] | None = None
    held_out_score: float | None = None

    @property
    def failure(self) -> str | None:
        """The reason why its record must not be used, in one line; None if it may be."""
        return (
            cache_failure(self.cache)
            or tier_failure(self.measured.tier if self.measured else None)
            or (self.proof.failure if self.proof else None)
        )


def cache_failure(cache: CacheFacts | None) -> str | None:
    """Return the reason why an epoch must not be used for the state of its page cache; None if it may be."""
    if cache is None or cache.verdict is not CacheVerdict.FAILED:
        return None
    return f"the cache was not {cache.requested}: {cache.reason}"


def tier_failure(tier: TierFacts | None) -> str | None:
    """Return the reason why an epoch must not be used for the storage that it emulated; None if it may be."""
    return f"the storage was not emulated: {tier.exceeded}" if tier and tier.exceeded else None


@dataclass(frozen=True, kw_only=True)
class RankEpoch:
    """One rank's part of an epoch; of a process that is alone, all of it."""

    membership: Membership
    record: Record
    table: StepTable | None
    proof: Proof | None
    data_store: DataStoreFacts | None = None
    barrier_ns: int = 0
    trainer: TrainerPart | None = None
    requests: RequestTable | None = None


def part_of(setup: Setup, epoch: Epoch, ceilings: Ceilings, notes: dict[str, str]) -> RankEpoch:
    """Return this rank's part of an epoch."""
    job, cell, measured, proof = setup.job, setup.cell, epoch.measured, epoch.proof
    name = f"{cell.cell_id}-r{job.replicate}-e{epoch.number}.parquet"
    record = Record(
        storebench_version=__version__,
        run_id=job.run_id,
        cell=cell,
        replicate=job.replicate,
        epoch=epoch.number,
        status=Status.OK if epoch.failure is None else Status.FAILED,
        failure=epoch.failure,
        started_utc=epoch.started_utc,
        au_kind=setup.step.kind,
        open_s=max(producer.open_ns for producer in setup.opened) / 1e9,
        digests=proof.digests if proof else None,
        coverage=proof.coverage if proof else None,
        test_accuracy=epoch.accuracy[0] if epoch.accuracy else None,
        test_samples=epoch.accuracy[1] if epoch.accuracy else 0,
        store=store_facts(setup.manifest),
        cache=epoch.cache,
        portion=measured.portion if measured else None,
        counters=measured.counters if measured else Counters(),
        tier=measured.tier if measured else None,
        served=measured.served if measured else None,
        ceilings=ceilings,
        reader_notes=notes,
        steps_file=f"{STEPS_DIR}/{name}" if measured else None,
        environment=environment(job.store, cell.device, image=job.image),
        code=setup.code,
    )
    table = measured.table if measured else None
    record = record if table is None else with_cold_rates(epoch_record(record, table), table)
    trainer = None
    if measured:
        trainer = trainer_part(setup, measured.played, epoch.held_out_score, record.test_accuracy)
    return RankEpoch(
        membership=setup.membership,
        record=record,
        table=table,
        proof=proof,
        data_store=measured.data_store if measured else None,
        barrier_ns=measured.barrier_ns if measured else 0,
        trainer=trainer,
    )


def recorded(
    setup: Setup, parts: Sequence[RankEpoch], cost: Communication | None, judge: Judge | None
) -> Record:
    """Write the step table of an epoch and return its record."""
    part = parts[0] if len(parts) == 1 or judge is None else joined(setup, parts, cost, judge)
    logs = [own.requests for own in parts if own.requests is not None]
    if logs:
        facts = request_facts(np.concatenate(logs))
        part = dataclasses.replace(part, record=dataclasses.replace(part.record, requests=facts))
    if part.table is not None and part.record.steps_file is not None:
        write_steps(part.table, setup.job.tables / part.record.steps_file.removeprefix(f"{STEPS_DIR}/"))
    return part.record


def requests_in(table: StepTable | None, logs: Sequence[RequestTable]) -> RequestTable | None:
    """Return those requests that ended while the steps of an epoch ran; None if no reader made any."""
    if table is None or not logs:
        return None
    rows: RequestTable = np.concatenate(logs)
    ended, last = rows[:, 1], step_ends(table)[-1]
    within: RequestTable = rows[(ended > table["start_ns"][0]) & (ended <= last)]
    return within


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


def joined(setup: Setup, parts: Sequence[RankEpoch], cost: Communication | None, judge: Judge) -> RankEpoch:
    """Return the epoch of a job, which all ranks timed, as one part: its steps, counters, proof and facts over all ranks."""
    first = parts[0]
    tables = [part.table for part in parts if part.table is not None]
    proofs = [part.proof for part in parts if part.proof is not None]
    assert len(tables) == len(proofs) == len(parts)
    nodes = [part.membership.node for part in parts]
    table = merged_table(set_to_first_node(tables, nodes, [part.barrier_ns for part in parts]))
    losses = job_steps(table)["loss"]
    known = [] if np.isnan(losses).all() else [float(loss) for loss in losses]
    proof = joined_proof(setup, first.record.epoch, proofs, known)
    records = [part.record for part in parts]
    curve_facts, portion = judge(job_steps(table))
    cache = first.record.cache
    if cache is not None:
        cache = dataclasses.replace(cache, curve=curve_facts.curve, reason=curve_facts.reason)
    # Torchrun's count of how often it has started the ranks again.
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    trainer_parts = [part.trainer for part in parts if part.trainer is not None]
    trainers = trainers_facts(trainer_parts) if trainer_parts else None
    accuracy = first.record.test_accuracy
    if trainers is not None and trainers.best_trainer is not None:
        accuracy = trainers.per_trainer[trainers.best_trainer].test_accuracy
    failure = next(_job_failures(setup.cell, parts, cache, proof, restarts), None)
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
        facts = job_facts(setup.cell, parts, table, proof, cost, restarts=restarts, trainers=trainers)
    return dataclasses.replace(first, record=dataclasses.replace(record, job=facts), table=table, proof=proof)


def _job_failures(
    cell: Cell, parts: Sequence[RankEpoch], cache: CacheFacts | None, proof: Proof, restarts: int
) -> Iterator[str]:
    """Yield the reasons why a job's epoch must not be used: its storage first, then its samples and its ranks."""
    yield from filter(None, [cache_failure(cache)])
    for part in parts:
        if part.membership.node and (reason := cache_failure(part.record.cache)):
            yield f"node {part.membership.node}: {reason}"
    yield from filter(None, [tier_failure(parts[0].record.tier), proof.failure])
    yield from filter(None, [_other_code(parts), _other_weights(parts, cell.trainers)])
    if restarts:
        yield f"the launcher started the ranks again ({number_of(restarts, 'time')})"


def _other_code(parts: Sequence[RankEpoch]) -> str | None:
    """Return which rank ran other code than rank 0, as nodes with an installation of their own may; None if none did."""
    # Commits are left out, because a node may have no git.
    codes = [
        [facts.digest, *facts.plugin.split()[-1:]] if (facts := part.record.code) else [] for part in parts
    ]
    for part, code in zip(parts, codes, strict=True):
        if code != codes[0]:
            me, words = part.membership, [" and ".join(text[:12] for text in its) for its in (code, codes[0])]
            return f"rank {me.rank} on node {me.node} ran other code than rank 0: {words[0]}, not {words[1]}"
    return None


def _other_weights(parts: Sequence[RankEpoch], trainers: int) -> str | None:
    """Return which rank has other weights than a rank with which it trains; None if there is none."""
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
    cost: Communication | None,
    *,
    restarts: int,
    trainers: TrainersFacts | None = None,
) -> JobFacts:
    """Return the facts about the ranks of a job for its record."""
    nodes = 1 + max(part.membership.node for part in parts)
    timed = timed_rows(table)
    ranks = _rank_facts(cell, parts, timed, one_clock=nodes == 1)
    rates, seconds = [rank.samples_per_s for rank in ranks], [rank.seconds for rank in ranks]
    waits = [rank.wait_for_slowest_s for rank in ranks if rank.wait_for_slowest_s is not None]
    cost = cost or Communication()
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
        barrier_s=cost.barrier_s,
        gradient_bytes=cost.gradient_bytes,
        exposed_communication_s=cost.exposed_s,
        step_without_sync_s=cost.step_s,
        exposed_pairs=cost.pairs,
        **_link_facts(cost, len(parts) // cell.trainers),
        restarts=restarts,
        trainers=trainers,
    )


def _link_facts(cost: Communication, ranks: int) -> dict[str, Any]:
    """Return the fields of a job about the link between its ranks; empty if it was not measured."""
    link, size = cost.link, cost.gradient_bytes
    if link is None or size is None:
        return {}
    ring_s = ideal_ring_s(size, ranks, link.bytes_per_s, link.latency_s)
    return {
        "link": link.kind,
        "link_bytes_per_s": link.bytes_per_s,
        "link_latency_s": link.latency_s,
        "ring_bound_s": ring_s,
        "exposed_over_bound": cost.exposed_s / ring_s if ring_s and cost.exposed_s is not None else None,
    }


def _rank_facts(
    cell: Cell, parts: Sequence[RankEpoch], timed: StepTable, *, one_clock: bool
) -> tuple[RankFacts, ...]:
    together = cell.compute.kind is not ComputeKind.NONE and cell.sync is not Sync.NONE
    together = together and len(parts) > cell.trainers
    waits = waits_for_slowest_s(timed, cell.trainers) if together and one_clock else [None] * len(parts)
    tables = rank_tables(timed)
    own = [epoch_record(part.record, steps) for part, steps in zip(parts, tables, strict=True)]
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
        for part, record, wait, steps in zip(parts, own, waits, tables, strict=True)
    )
