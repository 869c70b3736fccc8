"""Run one replicate of one cell in this process: prepare the cache, open, run epochs, count, prove, record."""

import contextlib
import dataclasses
import datetime as dt
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from storebench.errors import StorebenchError
from storebench.loading.loader import BatchLoader
from storebench.loading.producer import ProcessSettings
from storebench.probes.cgroup import MemoryGroup
from storebench.probes.loop_mount import mount_image
from storebench.ranks.group import Group
from storebench.ranks.heartbeat import RankProgress
from storebench.ranks.launch import RANKS_DIR
from storebench.record.schema import CacheFacts, CacheVerdict, Ceilings, Record
from storebench.settings.words import CacheState, ComputeKind
from storebench.system.libc import keep_freed_memory
from storebench.training.compute import CpuStep
from storebench.training.evaluate import accuracy
from storebench.worker.ceilings import measure_ceilings
from storebench.worker.epoch import Epoch, timed_epoch
from storebench.worker.epoch_proof import Proof, prove
from storebench.worker.epoch_record import part_of, requests_in
from storebench.worker.job import failed_answer, read_job, write_answer, write_records
from storebench.worker.job_record import recorded
from storebench.worker.rank import end_with_the_runner, run_rank
from storebench.worker.setup import Setup
from storebench.worker.tournament import held_out_score


def before_opening(setup: Setup) -> CacheFacts | None:
    setup.progress.begin("the preparation of the page cache")
    return _once_per_node(setup, setup.pages.before_opening)


def prepare_cache(setup: Setup, number: int) -> CacheFacts:
    """Bring the cache into the cell's state for an epoch, and return the counts."""
    if number and setup.cell.cache == CacheState.COLD and not setup.loader.filled:
        setup.loader.close()
        before_opening(setup)
        setup.opened = setup.loader.open()
    setup.progress.begin("the preparation of the page cache")
    limit = setup.limit

    def prepare() -> CacheFacts:
        if limit is not None:
            return limit.prepare(setup.pids)
        if not setup.loader.filled:
            return setup.pages.prepare("epoch", first=not number)
        # An epoch from memory has the state of the preceding reads.
        facts = setup.pages.prepare("open", first=not number)
        setup.pages.drop()
        return facts

    facts = _once_per_node(setup, prepare)
    assert facts is not None
    if limit is None:
        return facts
    # All ranks of a node enter its memory group, after the first of them has evicted the store.
    if facts.verdict is not CacheVerdict.FAILED:
        limit.enter(setup.pids)
    return dataclasses.replace(facts, metadata="hot")


def _once_per_node(setup: Setup, prepare: Callable[[], CacheFacts | None]) -> CacheFacts | None:
    """Prepare the cache on one rank of each node while the others wait, and return the facts of this rank's node."""
    me = setup.membership
    setup.group.barrier()
    mine = {me.node: prepare()} if me.leads_node else {}
    by_node = {node: facts for part in setup.group.exchange(mine) for node, facts in part.items()}
    for node, facts in by_node.items():
        if facts is not None and facts.verdict is CacheVerdict.FAILED:
            named = f"node {node}: {facts.reason}" if len(by_node) > 1 else facts.reason
            return dataclasses.replace(facts, reason=named)
    return by_node[me.node]


def run(setup: Setup, *, owns_process: bool = False) -> list[Record]:
    """Run every epoch of a replicate, write its step tables and return its records."""
    cost: dict[str, Any] = {}
    if not setup.membership.alone:
        from storebench.ranks.communication import measure_link

        setup.progress.begin("the measurement of the link")
        cost |= measure_link(setup.step, setup.group)
    at_open = before_opening(setup)
    setup.progress.begin("the opening of the store")
    settings = ProcessSettings.now()
    setup.opened = setup.loader.open()
    on_cpu = setup.cell.compute.kind is ComputeKind.REAL and not setup.cell.device.startswith("cuda")
    keeps = owns_process and on_cpu and setup.limit is None and keep_freed_memory()
    with _closed_after_an_error(setup.loader):
        epochs = [_run_epoch(setup, number, at_open) for number in range(setup.cell.epochs)]
        settings.require_unchanged(setup.cell.backend.name)
        if not setup.membership.alone and any(epoch.judge for epoch, _ in epochs):
            from storebench.ranks.communication import communication

            setup.progress.begin("the measurement of communication")
            cost |= communication(setup.step, setup.group, setup.cell.batch_size)
    closed = setup.loader.close()
    if setup.limit is not None:
        setup.limit.leave()
    setup.group.barrier()
    setup.progress.begin("the measurement of ceilings")
    ceilings = measure_ceilings(setup) if setup.membership.leads else Ceilings()
    notes = {"freed_memory": "kept"} if keeps else {}
    notes |= {key: text for producer in (*setup.opened, *closed) for key, text in producer.notes.items()}
    logs = [producer.requests for producer in closed if producer.requests is not None]
    parts = [
        dataclasses.replace(part, requests=requests_in(part.table, logs))
        for part in (part_of(setup, *epoch, ceilings, notes) for epoch in epochs)
    ]
    by_rank = setup.group.gather(parts)
    if by_rank is None:
        return []
    return [
        recorded(parts, setup.sampling, setup.job.tables, cost, epoch.judge)
        for (epoch, _), *parts in zip(epochs, *by_rank, strict=True)
    ]


def _run_epoch(setup: Setup, number: int, at_open: CacheFacts | None) -> tuple[Epoch, Proof | None]:
    """Prepare the cache, train on every batch while everything is counted, and prove the epoch."""
    cache = at_open or prepare_cache(setup, number)
    started_utc = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
    epoch = Epoch(number=number, started_utc=started_utc, cache=cache)
    if cache.verdict is CacheVerdict.FAILED:
        return epoch, None
    timed_epoch(setup, epoch)
    proof = prove(setup, epoch)
    epoch.keeper = None  # its memory is free for the next epoch
    setup.progress.begin(f"the test of epoch {number}")
    store, step = setup.job.test_store, setup.step
    if store is not None and isinstance(step, CpuStep) and setup.trainer.leads:
        with setup.outside_limit():
            epoch.accuracy = accuracy(step, setup.augment, store, after_batch=setup.progress.batch)
    epoch.held_out_score = held_out_score(setup)
    return epoch, proof


@contextlib.contextmanager
def _closed_after_an_error(loader: BatchLoader) -> Iterator[None]:
    """Close the loader after an error; if one of its workers died, raise an error that says so."""
    try:
        yield
    except StorebenchError:
        # Close only on this path: a process that has been asked to stop must not wait for busy producers.
        loader.close()
        raise
    except RuntimeError as error:
        # torch raises this for a worker that died, wherever the loop is at that moment.
        casualty = loader.casualty()
        if casualty is None:
            raise
        raise casualty from error


def main(arguments: Sequence[str]) -> int:
    """Run the job in the named file, write the answer, which may be a failure, and return the exit code."""
    end_with_the_runner()
    runner = os.getppid()
    path = Path(arguments[0])
    job = read_job(path)
    if job.cell.ranks > 1:
        return run_rank(job, path.parent / RANKS_DIR, functools.partial(run, owns_process=True))
    group: MemoryGroup | None = None
    try:
        # Found now: below a delegating group of version 2, only the process's own group takes it back.
        group = None if job.memory_group is None else MemoryGroup.at(job.memory_group)
        if job.image is not None:
            mount_image(job.image, job.store, job.cell.readahead_kib or 0)
        records = run(Setup.of(job, Group(RankProgress.create(path.parent, 0))), owns_process=True)
    except Exception as error:  # noqa: BLE001 - the last resort: the record names it, the log holds the traceback
        return write_answer(job, *failed_answer(job, error))
    finally:
        if group is not None and os.getppid() != runner:
            group.disband()
    return write_records(job, records)
