"""One timed epoch: train on every batch while the kernel's counters count and the store's residency is sampled."""

import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storebench.formats.base import Indices
from storebench.loading.evidence import SampleKeeper
from storebench.probes.batch_io import IO_COLUMNS
from storebench.probes.counters import CounterProbe
from storebench.probes.page_count import resident
from storebench.results import CacheFacts, Counters, DataStoreFacts, Portion
from storebench.training.loop import run_epoch
from storebench.training.step_table import StepTable, step_table
from storebench.worker.after_step import AfterStep
from storebench.worker.setup import Setup
from storebench.worker.tournament import Played, Tournament
from storebench.worker.watch import ResidencyWatch

_GAMES = "tournaments between steps read and computed, too"

Judge = Callable[[StepTable], tuple[CacheFacts, Portion | None]]
"""Returns the facts of the page cache and the steady steps of a limited cell, from one row per step."""


@dataclass(frozen=True, kw_only=True)
class EpochMeasurement:
    """The figures of an epoch, from which its record is made."""

    cache: CacheFacts
    portion: Portion | None
    table: StepTable
    counters: Counters
    judge: Judge
    played: Played
    data_store: DataStoreFacts | None = None
    barrier_ns: int


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The data that an epoch leaves for its proof."""

    served: list[Indices]
    losses: list[float]
    keeper: SampleKeeper
    paused_s: float


def timed_epoch(setup: Setup, number: int, cache: CacheFacts) -> tuple[EpochMeasurement, Evidence]:
    """Train on every batch of an epoch, and return its figures and the evidence for its proof."""
    from_memory = setup.from_memory
    batches = setup.batches(number)
    setup.progress.begin(f"epoch {number}", len(batches))
    with setup.outside_limit():
        keeper = _keeper(setup, batches)
        watch = _watch(setup, from_memory=from_memory)
    probe, games = CounterProbe(setup.pids, setup.job.store), Tournament(setup, number)
    with watch:
        gc.collect()
        if cache.applies_to == "epoch" and setup.membership.leads_node:
            setup.pages.drop()
        setup.step.begin(setup.global_sizes())
        probe.start()
        watch.begin()
        setup.group.barrier()
        barrier_ns = time.perf_counter_ns()
        plan = setup.plan(number, batches)
        with games, AfterStep(keeper, setup.loader.paused, games if games.due else None) as after_step:
            times = run_epoch(watch.over(setup.served(plan)), setup.step, after_step)
        reported = sum(step.io.own_reads for step in times if step.io is not None)
        payload_bytes = sum(step.payload_bytes for step in times)
        own_reads = reported + after_step.own_reads
        counters = probe.stop(payload_bytes, own_reads=own_reads)
        setup.group.barrier()  # until no rank is timed any more
        watch.stop()
    if games.due:
        counters = Counters(reasons=dict.fromkeys(IO_COLUMNS, _GAMES))
    data_store = setup.loader.close_epoch()
    after = resident(setup.pages.files) if setup.limit is None else setup.limit.count()
    setup.group.barrier()  # until no rank counts any more: the proofs read from the store
    losses = setup.step.losses()
    table = _with_known_counters(step_table(times, losses, warmup_steps=setup.cell.warmup_steps), counters)
    cache_facts, portion = watch.judge(cache, after, table, number)
    if not setup.membership.alone:
        # Which samples had been requested at each moment is known only with the steps of all ranks.
        cache_facts, portion = dataclasses.replace(cache_facts, curve=(), reason=cache.reason), None
    cache_facts = cache_facts if setup.limit is None else setup.limit.judged(cache_facts, after)
    return (
        EpochMeasurement(
            cache=cache_facts,
            portion=portion,
            table=table,
            counters=counters,
            judge=functools.partial(watch.judge, cache_facts, after, epoch=number),
            data_store=data_store,
            barrier_ns=barrier_ns,
            played=games.played,
        ),
        Evidence(
            served=[step.indices for step in times],
            losses=losses,
            keeper=keeper,
            paused_s=keeper.paused_s,
        ),
    )


def _with_known_counters(table: StepTable, counters: Counters) -> StepTable:
    """Return the table without counters that are unknown for the epoch, such as reads that no process is charged for."""
    unknown = [name for name in IO_COLUMNS if getattr(counters, name) is None]
    return {name: column for name, column in table.items() if name not in unknown}


def _keeper(setup: Setup, batches: Sequence[Indices]) -> SampleKeeper:
    """Return the keeper for samples of the timed batches; it keeps none of ready-made batches."""
    return SampleKeeper(
        [] if setup.traits.ready_made else [len(batch) for batch in batches],
        setup.augment.output_shape(setup.manifest.dataset.image_shape),
        first_step=setup.cell.warmup_steps,
        paused=setup.loader.paused,
    )


def _watch(setup: Setup, *, from_memory: bool) -> ResidencyWatch:
    return ResidencyWatch(
        setup.cell,
        setup.manifest,
        setup.pages.files,
        served_from_store=not from_memory and setup.membership.leads_node,
        late=setup.pages.drops,
    )
