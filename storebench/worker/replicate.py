"""Run one replicate of one cell in this process: open, bring the cache into its state, train, count, prove.

``python -P -m storebench.worker.replicate JOB.json`` is what the runner starts, a fresh
process for every replicate. It writes its records to the job's `out` file and
nothing else that anybody reads.
"""

import contextlib
import dataclasses
import datetime as dt
import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from storebench._version import __version__
from storebench.digests import array_digest
from storebench.errors import EXIT_INTEGRITY, CellFailedError, StorebenchError, from_os_error
from storebench.formats.base import Indices
from storebench.formats.origin import code_facts
from storebench.formats.registry import traits_of
from storebench.loading.augment import Augment
from storebench.loading.batch import EpochPlan, LoadJob, Opened
from storebench.loading.checks import PixelCheck, check_pixels, coverage, order_digest
from storebench.loading.kept import SampleKeeper, TimedCheck, Truth
from storebench.loading.loader import Loader, get_loader
from storebench.loading.order import epoch_order, split_batches
from storebench.manifest import Manifest, store_facts
from storebench.probes.below import below_cache, with_below
from storebench.probes.cgroup import MemoryGroup
from storebench.probes.code import package_folder
from storebench.probes.counters import CounterProbe
from storebench.probes.device_rate import device_rates_once
from storebench.probes.environment import environment
from storebench.probes.gather import gather_rate
from storebench.probes.limited import LimitedCache
from storebench.probes.loop_mount import mount_image
from storebench.probes.page_count import resident
from storebench.results import (
    CacheFacts,
    CacheVerdict,
    Ceilings,
    Counters,
    Coverage,
    Digests,
    Portion,
    Record,
    Status,
)
from storebench.runs.records import STEPS_DIR, record_to_dict
from storebench.settings.loop import NO_MODEL
from storebench.settings.words import BOUNDED_STATES, CacheState, ComputeKind
from storebench.stores.find import read_digest_table
from storebench.system.processes import end_with_parent
from storebench.system.unexpected import summary
from storebench.training.calibration import matrix_products_per_s
from storebench.training.evaluate import accuracy
from storebench.training.loop import run_epoch
from storebench.training.models import ModelSpec, get_model
from storebench.training.steps import CpuStep, Step, make_step, warm_up
from storebench.training.trace import StepTable, step_table, write_steps
from storebench.worker.cache_state import StoreCache
from storebench.worker.job import CellJob, read_job, write_answer
from storebench.worker.measure import epoch_record
from storebench.worker.watch import ResidencyWatch

DEVICE_S = 0.8
"""How long each of the device's rates is measured, once per replicate for all cells that only load."""

PROBES_FOLDER = "probes"
"""Folder of a run in which its cells keep for each other what one of them measured."""

_PRODUCERS_END_S = 1.0
"""How long producers may take to end when the cell is told to, before they are killed."""

_LESS_MEMORY = "Use fewer workers, smaller batches or a smaller --size."


@dataclass(frozen=True, kw_only=True)
class _Epoch:
    """What one epoch gave, before it becomes a record."""

    number: int
    started_utc: str
    cache: CacheFacts
    portion: Portion | None = None
    table: StepTable | None = None
    counters: Counters = dataclasses.field(default_factory=Counters)
    coverage: Coverage | None = None
    pixels: PixelCheck = dataclasses.field(default_factory=PixelCheck)
    timed: TimedCheck = dataclasses.field(default_factory=TimedCheck)
    digests: Digests | None = None
    accuracy: tuple[float, int] | None = None


class CellRun:
    """The state of one replicate while it runs."""

    def __init__(self, job: CellJob) -> None:
        cell = job.cell
        self.job, self.cell = job, cell
        self.code = code_facts(cell.backend.format)
        self.manifest = Manifest.read(job.store)
        self.backend = cell.backend
        self.traits = traits_of(self.backend)
        self.pages = StoreCache(cell.cache, self.backend, job.store, drops=job.drop_caches)
        self.model: ModelSpec | None = None if cell.model == NO_MODEL else get_model(cell.model)
        self.augment = self.model.augment if self.model else Augment()
        if cell.threads is not None:
            torch.set_num_threads(cell.threads)
        self.step = self._make_step()
        pin = cell.device.startswith("cuda")
        load = LoadJob(
            store=job.store,
            backend=self.backend,
            augment=self.augment,
            seed=cell.seed,
            batch_size=cell.batch_size,
            threads=cell.threads,
        )
        self.loader: Loader = get_loader(cell.loader)(load, workers=cell.workers, pin=pin)
        self.opened: list[Opened] = []
        self.limit: LimitedCache | None = None
        if job.memory_group is not None and cell.memory_bytes is not None:
            self.limit = LimitedCache(MemoryGroup.at(job.memory_group), cell.memory_bytes, self.pages.files)

    def records(self) -> list[Record]:
        """Run every epoch and return its records; a cell without its cache state fails and is not timed."""
        at_open = self.pages.before_opening()
        self.opened = self.loader.open()
        try:
            epochs = [
                self._epoch(number, at_open or self._prepare_epoch(number))
                for number in range(self.cell.epochs)
            ]
        except StorebenchError:
            # Only then: who is told to stop must not wait until busy producers answer.
            self.loader.close()
            raise
        except RuntimeError as error:
            # How torch says that a worker died, wherever the loop is at that moment.
            casualty = self.loader.casualty()
            if casualty is None:
                raise
            raise casualty from error
        closed = self.loader.close()
        if self.limit is not None:
            self.limit.leave()
        ceilings = self._ceilings()
        notes = {key: value for one in (*self.opened, *closed) for key, value in one.notes.items()}
        return [self._record(epoch, ceilings, notes) for epoch in epochs]

    def _make_step(self) -> Step:
        cell, dataset = self.cell, self.manifest.dataset
        shape = self.augment.output_shape(dataset.image_shape)
        torch.manual_seed(cell.seed)
        step = make_step(cell.compute, self.model, shape, dataset.num_classes, cell.device)
        warm_up(step, (cell.batch_size, *shape))
        torch.manual_seed(cell.seed)
        return step

    def _prepare_epoch(self, number: int) -> CacheFacts:
        """Prepare the cache for an epoch, the store closed and opened again where an earlier one mapped its pages."""
        if number and self.cell.cache == CacheState.COLD:
            self.loader.close()
            self.pages.before_opening()
            self.opened = self.loader.open()
        if self.limit is not None:
            return dataclasses.replace(self.limit.prepare(self._pids()), metadata="hot")
        return self.pages.prepare("epoch", first=not number)

    def _epoch(self, number: int, cache: CacheFacts) -> _Epoch:
        started = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        if cache.verdict is CacheVerdict.FAILED:
            return _Epoch(number=number, started_utc=started, cache=cache)
        batches = self._batches(number)
        with self._outside_the_limit():
            keeper = self._keeper(batches)
            watch = self._watch()
        probe = CounterProbe(self._pids(), self.job.store)
        with watch:
            gc.collect()
            if cache.applies_to == "epoch":
                self.pages.drop()
            probe.start()
            plan = EpochPlan(epoch=number, batches=batches)
            times = run_epoch(watch.over(self.loader.epoch(plan)), self.step, keeper)
            counters = probe.stop(sum(one.payload_bytes for one in times))
            watch.stop()
        after = resident(self.pages.files)
        losses = self.step.losses()
        table = step_table(times, losses, warmup_steps=self.cell.warmup_steps)
        cache, portion = watch.judge(cache, after, table, number)
        cache = cache if self.limit is None else self.limit.judged(cache, after)
        served = [one.indices for one in times]
        timed = self._check_timed(keeper, number)
        check = self._check(number)
        # Drawn anew: readers are given the arrays of a plan, and could write to them.
        counted = coverage(self._batches(number), served, check)
        return _Epoch(
            number=number,
            started_utc=started,
            cache=cache,
            portion=portion,
            table=table,
            counters=counters,
            coverage=dataclasses.replace(
                counted,
                timed_checked=timed.checked,
                timed_wrong=timed.wrong,
                proof_s=float(table["paused_ns"].sum()) / 1e9,
            ),
            pixels=check,
            timed=timed,
            digests=Digests(samples=check.digest, order=order_digest(served), loss=_loss_digest(losses)),
            accuracy=self._accuracy(),
        )

    def _pids(self) -> set[int]:
        return {os.getpid(), *(one.pid for one in self.opened)}

    def _outside_the_limit(self) -> contextlib.AbstractContextManager[None]:
        """Return a context whose memory does not count against the limit on the page cache."""
        return contextlib.nullcontext() if self.limit is None else self.limit.outside()

    def _watch(self) -> ResidencyWatch:
        return ResidencyWatch(
            self.cell,
            self.manifest,
            self.pages.files,
            served_from_store=not self.traits.holds_pixels,
            late=self.pages.drops,
        )

    def _batches(self, number: int, passes: int | None = None) -> list[Indices]:
        """Return the batches of an epoch, or of its first `passes` passes over the samples."""
        cell, every = self.cell, self.cell.passes or 1
        orders = (
            epoch_order(
                self.manifest.count, seed=cell.seed, epoch=number * every + turn, shuffle=cell.shuffle
            )
            for turn in range(passes or every)
        )
        return [batch for order in orders for batch in split_batches(order, cell.batch_size, cell.max_steps)]

    def _keeper(self, batches: Sequence[Indices]) -> SampleKeeper:
        """Return what keeps a sample of the timed batches; of ready-made ones, which are no plan's samples, none."""
        return SampleKeeper(
            [] if self.traits.ready_made else [len(batch) for batch in batches],
            self.augment.output_shape(self.manifest.dataset.image_shape),
            first_step=self.cell.warmup_steps,
            paused=self.loader.paused,
        )

    def _check_timed(self, keeper: SampleKeeper, number: int) -> TimedCheck:
        """Prove the samples that were kept while the clock ran."""
        if self.traits.ready_made:
            return TimedCheck()
        truth = Truth(
            store=self.job.store,
            backend=self.backend,
            table=read_digest_table(self.job.store, self.manifest),
            augment=self.augment,
            seed=self.cell.seed,
        )
        return truth.check(keeper.kept, number)

    def _check(self, number: int) -> PixelCheck:
        """Replay the epoch's first pass through the same loader, untimed, and compare every sample's digest."""
        if not self.job.check_pixels or self.traits.ready_made:
            return PixelCheck()
        table = read_digest_table(self.job.store, self.manifest)
        return check_pixels(
            self.loader.epoch(EpochPlan(epoch=number, batches=self._batches(number, passes=1), check=True)),
            table,
        )

    def _accuracy(self) -> tuple[float, int] | None:
        if self.job.test_store is None or self.model is None or not isinstance(self.step, CpuStep):
            return None
        with self._outside_the_limit():
            return accuracy(self.step, self.model, self.job.test_store)

    def _ceilings(self) -> Ceilings:
        """Measure what physics allows beside the cells that only load, and a yardstick beside those that train."""
        if self.cell.compute.kind is ComputeKind.REAL:
            return Ceilings(matrix_products_per_s=matrix_products_per_s(self.cell.device))
        if self.cell.compute.kind is not ComputeKind.NONE or self.traits.ready_made:
            return Ceilings()
        gather = gather_rate(
            self.manifest.dataset.image_shape, self.cell.batch_size, count=self.manifest.count
        )
        payload = max(1, self.manifest.payload_bytes // max(1, self.manifest.count))
        device = device_rates_once(
            self.pages.data_files,
            payload,
            kept=self.job.run / PROBES_FOLDER / "device.json",
            replicate=self.job.replicate,
            limit_s=DEVICE_S,
            scratch=self.job.store.parent,
        )
        return Ceilings(
            gather_samples_per_s=gather.samples_per_s,
            copy_ceiling_samples_per_s=gather.copy_ceiling_samples_per_s,
            copy_method=gather.copy_method,
            memory_bytes_per_s=gather.memory_bytes_per_s,
            **dataclasses.asdict(device),
        )

    def _with_below(self, facts: CacheFacts) -> CacheFacts:
        if self.cell.cache not in BOUNDED_STATES or self.traits.ready_made:
            return facts
        disk = self.job.store if self.job.image is None else self.job.image.parent
        return with_below(facts, below_cache(disk, fallback=self.job.run / PROBES_FOLDER))

    def _record(self, epoch: _Epoch, ceilings: Ceilings, notes: dict[str, str]) -> Record:
        name = f"{self.cell.cell_id}-r{self.job.replicate}-e{epoch.number}.parquet"
        status, failure = _judge(epoch)
        if epoch.table is not None:
            write_steps(epoch.table, self.job.tables / name)
        record = Record(
            storebench_version=__version__,
            run_id=self.job.run_id,
            cell=self.cell,
            replicate=self.job.replicate,
            epoch=epoch.number,
            status=status,
            failure=failure,
            started_utc=epoch.started_utc,
            au_kind=self.step.kind,
            open_s=max(one.open_ns for one in self.opened) / 1e9,
            digests=epoch.digests,
            coverage=epoch.coverage,
            test_accuracy=epoch.accuracy[0] if epoch.accuracy else None,
            test_samples=epoch.accuracy[1] if epoch.accuracy else 0,
            store=store_facts(self.manifest),
            cache=self._with_below(epoch.cache),
            portion=epoch.portion,
            counters=epoch.counters,
            ceilings=ceilings,
            reader_notes=notes,
            steps_file=f"{STEPS_DIR}/{name}" if epoch.table is not None else None,
            environment=environment(self.job.store, self.cell.device, image=self.job.image),
            code=self.code,
        )
        return record if epoch.table is None else epoch_record(record, epoch.table)


def _judge(epoch: _Epoch) -> tuple[Status, str | None]:
    if epoch.cache.verdict is CacheVerdict.FAILED:
        return Status.FAILED, f"the cache was not {epoch.cache.requested}: {epoch.cache.reason}"
    served = epoch.coverage
    if served is not None and not served.complete:
        return Status.FAILED, (
            f"wrong samples: {served.missing} missing, {served.duplicates} served twice, "
            f"{served.pixels_wrong} of {served.pixels_checked} with wrong pixels{_first(epoch.pixels)}; "
            f"of {served.timed_checked} kept from the timed batches {served.timed_wrong} wrong{_first(epoch.timed)}"
        )
    return Status.OK, None


def _first(check: PixelCheck | TimedCheck) -> str:
    return "" if check.first_wrong is None else f", the first sample {check.first_wrong}"


def _loss_digest(losses: Sequence[float]) -> str | None:
    return array_digest(np.asarray(losses, dtype=np.float32)) if losses else None


def _stop(number: int, _frame: object) -> NoReturn:
    # Producers first: in the middle of a batch they would not hear of the end, and live on.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch raises an error for each of them
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    deadline = time.monotonic() + _PRODUCERS_END_S
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
        child.kill()  # one that is stopped, or busy
    sys.exit(128 + number)


def _end_with_the_runner() -> None:
    """End in order when told to stop, and be told so by the kernel when the runner is killed."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    end_with_parent(signal.SIGTERM)


def main(arguments: Sequence[str]) -> int:
    """Run the job in the named file; a failure is an answer, too."""
    _end_with_the_runner()
    runner = os.getppid()
    job = read_job(Path(arguments[0]))
    try:
        if job.image is not None:
            mount_image(job.image, job.store, job.cell.readahead_kib or 0)
        records = CellRun(job).records()
    except StorebenchError as error:
        return _failed(job, error)
    except OSError as error:
        if error.errno is None:
            return _unexpected(job, error)
        with contextlib.suppress(OSError):  # the log may be what there is no room for
            traceback.print_exc()
        return _failed(job, from_os_error(error, error.filename or job.run))
    except MemoryError:
        return _failed(job, CellFailedError("out of memory", hint=_LESS_MEMORY))
    except Exception as error:  # noqa: BLE001 - the last resort: the record says it, the log holds the traceback
        return _unexpected(job, error)
    finally:
        if job.memory_group is not None and os.getppid() != runner:
            MemoryGroup(job.memory_group, home=job.memory_group.parent).disband()
    answer = [record_to_dict(record) for record in records]
    return write_answer(job, {"records": answer, "package": str(package_folder())}, 0)


def _failed(job: CellJob, error: StorebenchError) -> int:
    return write_answer(job, {"failure": str(error), "exit_code": error.exit_code}, error.exit_code)


def _unexpected(job: CellJob, error: Exception) -> int:
    """Write the traceback of an unexpected error to the log, and its one line to the answer."""
    with contextlib.suppress(OSError):
        traceback.print_exception(error)
    failure = f"unexpected error: {summary(error)}"
    return write_answer(
        job, {"failure": failure, "exit_code": EXIT_INTEGRITY, "see_log": True}, EXIT_INTEGRITY
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
