"""One rank's part of an epoch: its record, steps and proof."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storebench._version import __version__
from storebench.formats.reader import RequestTable
from storebench.probes.environment import environment
from storebench.ranks.membership import Membership
from storebench.record.figures import epoch_record, with_cold_rates
from storebench.record.lines import STEPS_DIR
from storebench.record.manifest import store_facts
from storebench.record.schema import (
    CacheFacts,
    CacheVerdict,
    Ceilings,
    DataStoreFacts,
    Record,
    Status,
    TierFacts,
    TrainerFacts,
)
from storebench.record.steps import StepTable, step_ends
from storebench.worker.epoch import Epoch
from storebench.worker.epoch_proof import Proof
from storebench.worker.setup import Setup
from storebench.worker.tournament import Played, trainer_facts


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
    played: Played
    trainer: TrainerFacts | None = None
    requests: RequestTable | None = None


def part_of(
    setup: Setup, epoch: Epoch, proof: Proof | None, ceilings: Ceilings, notes: dict[str, str]
) -> RankEpoch:
    job, cell, table = setup.job, setup.cell, epoch.table
    name = f"{cell.cell_id}-r{job.replicate}-e{epoch.number}.parquet"
    failure = cache_failure(epoch.cache) or tier_failure(epoch.tier) or (proof.failure if proof else None)
    record = Record(
        storebench_version=__version__,
        run_id=job.run_id,
        cell=cell,
        replicate=job.replicate,
        epoch=epoch.number,
        status=Status.OK if failure is None else Status.FAILED,
        failure=failure,
        started_utc=epoch.started_utc,
        au_kind=setup.step.kind,
        open_s=max(producer.open_ns for producer in setup.opened) / 1e9,
        digests=proof.digests if proof else None,
        coverage=proof.coverage if proof else None,
        test_accuracy=epoch.accuracy[0] if epoch.accuracy else None,
        test_samples=epoch.accuracy[1] if epoch.accuracy else 0,
        store=store_facts(setup.manifest),
        cache=epoch.cache,
        portion=epoch.portion,
        counters=epoch.counters,
        tier=epoch.tier,
        served=epoch.server,
        ceilings=ceilings,
        reader_notes=notes,
        steps_file=None if table is None else f"{STEPS_DIR}/{name}",
        environment=environment(job.store, cell.device, image=job.image),
        code=setup.code,
    )
    trainer = None
    if table is not None:
        record = with_cold_rates(epoch_record(record, table), table)
        trainer = trainer_facts(setup.sampling, epoch.held_out_score, record.test_accuracy)
    return RankEpoch(
        membership=setup.membership,
        record=record,
        table=table,
        proof=proof,
        data_store=epoch.data_store,
        barrier_ns=epoch.barrier_ns,
        played=epoch.played,
        trainer=trainer,
    )


def requests_in(table: StepTable | None, logs: Sequence[RequestTable]) -> RequestTable | None:
    """Return the requests that ended while the steps of an epoch ran; None if no reader made any."""
    if table is None or not logs:
        return None
    rows: RequestTable = np.concatenate(logs)
    ended, last = rows[:, 1], step_ends(table)[-1]
    within: RequestTable = rows[(ended > table["start_ns"][0]) & (ended <= last)]
    return within
