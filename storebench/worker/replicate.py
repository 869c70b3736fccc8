"""Run one replicate of one cell in this process: prepare the cache, open, run epochs, count, prove, record.

The runner starts ``python -P -m storebench.worker.replicate JOB.json``, a fresh process for every replicate. It writes
step tables into the job's folder, and its records, or why there are none, to the job's `out` file.
"""

import contextlib
import dataclasses
import datetime as dt
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from storebench.errors import StorebenchError
from storebench.loading.loader import Loader
from storebench.probes.cgroup import MemoryGroup
from storebench.probes.code import package_folder
from storebench.probes.loop_mount import mount_image
from storebench.results import CacheFacts, CacheVerdict, Record
from storebench.runs.records import record_to_dict
from storebench.settings.words import CacheState
from storebench.training.evaluate import accuracy
from storebench.training.steps import CpuStep
from storebench.worker.answer import answer_failure
from storebench.worker.ceilings import measure_ceilings
from storebench.worker.epoch import timed_epoch
from storebench.worker.job import read_job, write_answer
from storebench.worker.proof import prove
from storebench.worker.record import Epoch, record_of
from storebench.worker.setup import Setup
from storebench.worker.stopping import end_with_the_runner


def run(setup: Setup) -> list[Record]:
    """Run every epoch of a replicate, write its step tables and return its records.

    A cell that is not in its cache state fails and is not timed.
    """
    at_open = setup.pages.before_opening()
    setup.opened = setup.loader.open()
    with _closed_after_an_error(setup.loader):
        epochs = [_run_epoch(setup, number, at_open) for number in range(setup.cell.epochs)]
    closed = setup.loader.close()
    if setup.limit is not None:
        setup.limit.leave()
    ceilings = measure_ceilings(setup)
    notes = {key: text for producer in (*setup.opened, *closed) for key, text in producer.notes.items()}
    return [record_of(setup, epoch, ceilings, notes) for epoch in epochs]


def _run_epoch(setup: Setup, number: int, at_open: CacheFacts | None) -> Epoch:
    """Prepare the cache, train on every batch while everything is counted, and prove the epoch."""
    cache = at_open or _prepare_cache(setup, number)
    started_utc = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
    if cache.verdict is CacheVerdict.FAILED:
        return Epoch(number=number, started_utc=started_utc, cache=cache)
    measured, evidence = timed_epoch(setup, number, cache)
    proof = prove(setup, number, evidence)
    return Epoch(
        number=number,
        started_utc=started_utc,
        cache=measured.cache,
        measured=measured,
        proof=proof,
        accuracy=_test_accuracy(setup),
    )


def _prepare_cache(setup: Setup, number: int) -> CacheFacts:
    """Bring the cache into the cell's state for an epoch, and return the counts.

    Pages that an open reader maps cannot be evicted: a cold cell closes its store after each epoch.
    """
    if number and setup.cell.cache == CacheState.COLD:
        setup.loader.close()
        setup.pages.before_opening()
        setup.opened = setup.loader.open()
    if setup.limit is not None:
        return dataclasses.replace(setup.limit.prepare(setup.pids), metadata="hot")
    return setup.pages.prepare("epoch", first=not number)


def _test_accuracy(setup: Setup) -> tuple[float, int] | None:
    """Return the share of test samples classified rightly, and how many there are; None where nothing is trained."""
    store, step = setup.job.test_store, setup.step
    if store is None or setup.model is None or not isinstance(step, CpuStep):
        return None
    with setup.outside_limit():
        return accuracy(step, setup.augment, store)


@contextlib.contextmanager
def _closed_after_an_error(loader: Loader) -> Iterator[None]:
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
    job = read_job(Path(arguments[0]))
    try:
        if job.image is not None:
            mount_image(job.image, job.store, job.cell.readahead_kib or 0)
        records = run(Setup.of(job))
    except Exception as error:  # noqa: BLE001 - the last resort: the record names it, the log holds the traceback
        return answer_failure(job, error)
    finally:
        if job.memory_group is not None and os.getppid() != runner:
            MemoryGroup(job.memory_group, home=job.memory_group.parent).disband()
    answer = [record_to_dict(record) for record in records]
    return write_answer(job, {"records": answer, "package": str(package_folder())}, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
