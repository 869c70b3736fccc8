"""One timed epoch: train on every batch while the kernel's counters count and the store's residency is sampled."""

import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from storebench.formats.base import Indices
from storebench.formats.registry import get_format
from storebench.loading.batch import LOOP_WORKER, LoadedBatch
from storebench.loading.proof import SampleKeeper
from storebench.places.objects import counting
from storebench.probes.batch_io import METER
from storebench.probes.counters import CounterProbe
from storebench.probes.page_count import PAGE_BYTES, Residency, resident
from storebench.probes.residency import Sampler
from storebench.record.figures import ResidencyCurve, residency_points, steady_portion
from storebench.record.manifest import Manifest
from storebench.record.schema import (
    CacheFacts,
    Cell,
    Counters,
    DataStoreFacts,
    Portion,
    ServedFacts,
    TierFacts,
)
from storebench.record.steps import IO_COLUMNS, StepTable, step_ends
from storebench.settings.words import BOUNDED_STATES, CacheState, Share
from storebench.training.loop import run_epoch
from storebench.training.step_table import step_table
from storebench.worker.setup import Setup
from storebench.worker.tournament import Played, Tournament


class AfterStep:
    """The work between two steps of one epoch, for `storebench.training.loop.run_epoch`."""

    def __init__(self, keep: Callable[[LoadedBatch], bool], play: Callable[[], bool] | None = None) -> None:
        self._keep = keep
        self._play = play
        self.own_reads = 0

    def __enter__(self) -> Self:
        METER.begin()
        return self

    def __exit__(self, *_error: object) -> None:
        self.own_reads = METER.end()

    def __call__(self, batch: LoadedBatch) -> bool:
        """Return True if the time that this took is a pause."""
        kept = self._keep(batch)
        read = batch.io is None and batch.worker == LOOP_WORKER
        if read:
            batch.io = METER.read()
        played = self._play is not None and self._play()
        return kept or read or played


def ahead_frac(cell: Cell, manifest: Manifest) -> float:
    """Return the share of a store that all readers of a cell read ahead, if they are told the order of the epoch."""
    reader = get_format(cell.backend.format).readers()[cell.backend.reader].reader
    options = reader.options_type.parse(cell.backend.options, cell.backend.name)
    # Only one node's cache is watched; one reader there may read for all ranks.
    readers = 1 if cell.share is Share.NODE else cell.ranks * max(1, cell.workers)
    return min(1.0, readers * reader.ahead_bytes(options, manifest) / max(1, manifest.payload_bytes))


class ResidencyWatch:
    """Sample the residency of a store's files during an epoch of a cold or limited cell."""

    def __init__(
        self, cell: Cell, manifest: Manifest, files: Sequence[Path], *, served_from_store: bool, late: bool
    ) -> None:
        self._cell = cell
        self._manifest = manifest
        self._late = late
        self._wanted = cell.cache in BOUNDED_STATES and served_from_store
        # Read-ahead never crosses files, so only requested data is read from such a store; and sampling it opens files.
        self._by_counts = late and len(files) >= manifest.count
        sampled = self._wanted and not self._by_counts
        self._sampler = Sampler(files, late=late, limit_bytes=cell.memory_bytes) if sampled else None
        self._curve = ResidencyCurve(reason="residency was not sampled")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._sampler is not None:
            self._sampler.close()

    def begin(self) -> None:
        """Begin to sample, unless files must stay unopened until the first batch; no rank reads yet."""
        if self._sampler is not None and not self._late:
            self._sampler.begin()

    def over(self, batches: Iterator[LoadedBatch]) -> Iterator[LoadedBatch]:
        """Yield the batches; sampling begins with the first one if `begin` was too early for it."""
        if self._sampler is not None and self._late:
            for batch in batches:
                self._sampler.begin()
                yield batch
                break
        yield from batches

    def stop(self) -> None:
        """End the sampling; call it right after the epoch."""
        if self._sampler is not None:
            self._curve = self._sampler.stop()

    def judge(
        self, cache: CacheFacts, after: Residency, table: StepTable, epoch: int
    ) -> tuple[CacheFacts, Portion | None]:
        """Return `cache` with the sampled residency, and the steady steps of a limited cell."""
        cache = dataclasses.replace(cache, resident_frac_after=after.frac)
        if not self._wanted or not len(table["step"]):
            in_memory = "the epoch is served from memory, so the cache state is one of the opening only"
            reason = cache.reason or (in_memory if self._cell.cache in BOUNDED_STATES else "")
            return dataclasses.replace(cache, reason=reason), None
        if self._by_counts:
            before = cache.resident_frac_before
            self._curve = ResidencyCurve(reason=after.reason or "resident pages cannot be counted")
            if before is not None and after.frac is not None:
                at_ns = (int(table["start_ns"][0]) - 1, int(step_ends(table)[-1]))
                self._curve = ResidencyCurve(at_ns=at_ns, resident_frac=(before, after.frac))
        judged: Portion | str = ""
        if self._cell.cache != CacheState.COLD:
            judged = steady_portion(
                table,
                self._curve,
                self._manifest.count,
                after.pages_total * PAGE_BYTES,
                epoch=epoch,
                memory_bytes=self._cell.memory_bytes or 0,
                ahead_frac=ahead_frac(self._cell, self._manifest),
            )
        cache = dataclasses.replace(
            cache,
            curve=residency_points(table, self._curve, self._manifest.count),
            sampling_cpu_s=self._curve.cpu_s,
            resident_max_frac=max(self._curve.resident_frac, default=None),
            sampling_error_frac=self._curve.error_frac,
            recounts=self._curve.recounts,
            reason=cache.reason or (judged if isinstance(judged, str) else ""),
        )
        return cache, judged if isinstance(judged, Portion) else None


# Returns the facts of the page cache and the steady steps of a limited cell, from one row per step.
Judge = Callable[[StepTable], tuple[CacheFacts, Portion | None]]


@dataclass(kw_only=True)
class Epoch:
    """One epoch of a replicate. It is neither timed nor proven if the cache state could not be reached."""

    number: int
    started_utc: str
    cache: CacheFacts
    portion: Portion | None = None
    table: StepTable | None = None
    counters: Counters = field(default_factory=Counters)
    tier: TierFacts | None = None
    judge: Judge | None = None
    played: Played = field(default_factory=Played)
    data_store: DataStoreFacts | None = None
    barrier_ns: int = 0
    server: ServedFacts | None = None
    accuracy: tuple[float, int] | None = None
    held_out_score: float | None = None
    # For its proof.
    served: list[Indices] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    keeper: SampleKeeper | None = None


def timed_epoch(setup: Setup, epoch: Epoch) -> None:
    """Train on every batch of an epoch, and note its figures and the evidence for its proof."""
    number, cache, from_memory = epoch.number, epoch.cache, setup.from_memory
    batches = setup.sampling.batches(number)
    setup.progress.begin(f"epoch {number}", len(batches))
    with setup.outside_limit():
        keeper = SampleKeeper(
            [] if setup.traits.ready_made else [len(batch) for batch in batches],
            setup.augment.output_shape(setup.manifest.dataset.image_shape),
            first_step=setup.cell.warmup_steps,
        )
        watch = ResidencyWatch(
            setup.cell,
            setup.manifest,
            setup.pages.files,
            served_from_store=not from_memory and setup.membership.leads_node,
            late=setup.pages.drops,
        )
    probe, games = CounterProbe(setup.pids, setup.job.store), Tournament(setup, number)
    with watch:
        gc.collect()
        if cache.applies_to == "epoch" and setup.membership.leads_node:
            setup.pages.drop()
        setup.step.begin(setup.sampling.global_sizes())
        served = counting(setup.job.counters if setup.membership.leads else "")
        probe.start()
        if setup.tier is not None:
            setup.tier.begin()
        watch.begin()
        setup.group.barrier()
        epoch.barrier_ns = time.perf_counter_ns()
        plan = setup.sampling.plan(number, batches)
        with games, AfterStep(keeper, games if games.due else None) as after_step:
            times = run_epoch(watch.over(setup.served(plan)), setup.step, after_step)
        reported = sum(step.io.own_reads for step in times if step.io is not None)
        payload_bytes = sum(step.payload_bytes for step in times)
        epoch.tier = None if setup.tier is None else setup.tier.end()
        epoch.counters = probe.stop(payload_bytes, own_reads=reported + after_step.own_reads)
        setup.group.barrier()  # until no rank is timed any more
        epoch.server = served()
        watch.stop()
    if games.due:
        reason = "tournaments between steps read and computed, too"
        epoch.counters = Counters(reasons=dict.fromkeys(IO_COLUMNS, reason))
    epoch.data_store = setup.loader.close_epoch()
    after = resident(setup.pages.files) if setup.limit is None else setup.limit.count()
    setup.group.barrier()  # until no rank counts any more: the proofs read from the store
    epoch.losses = setup.step.losses()
    table = step_table(times, epoch.losses, warmup_steps=setup.cell.warmup_steps)
    # Without counters that are unknown for the epoch, such as reads that no process is charged for.
    unknown = [name for name in IO_COLUMNS if getattr(epoch.counters, name) is None]
    epoch.table = {name: column for name, column in table.items() if name not in unknown}
    epoch.cache, epoch.portion = watch.judge(cache, after, epoch.table, number)
    if not setup.membership.alone:
        # Which samples had been requested at each moment is known only with the steps of all ranks.
        epoch.cache, epoch.portion = dataclasses.replace(epoch.cache, curve=(), reason=cache.reason), None
    if setup.limit is not None:
        epoch.cache = setup.limit.judged(epoch.cache, after)
    epoch.judge = functools.partial(watch.judge, epoch.cache, after, epoch=number)
    epoch.played = games.played
    epoch.served, epoch.keeper = [step.indices for step in times], keeper
