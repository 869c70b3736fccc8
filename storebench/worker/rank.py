"""The process of one rank: it joins the others, runs the replicate, and says why if that fails."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from storebench.errors import CellFailedError
from storebench.probes.loop_mount import mount_image
from storebench.ranks.group import Group, join, lost_another
from storebench.ranks.heartbeat import RankProgress
from storebench.ranks.launch import write_failure
from storebench.ranks.membership import Membership, membership
from storebench.record.schema import Record
from storebench.system.processes import end_with_starter
from storebench.worker.job import CellJob, failed_answer, write_records
from storebench.worker.setup import Setup, device_of

# Seconds that producers may take to end before they are killed.
_PRODUCERS_END_S = 1.0


def end_with_the_runner() -> None:
    """Handle SIGTERM, SIGINT and SIGHUP by ending the producers first; SIGTERM comes if the runner is killed."""
    _on_signals(_stop)
    end_with_starter(signal.SIGTERM)


def _on_signals(handler: Callable[[int, Any], NoReturn] | signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _stop(number: int, _frame: object) -> NoReturn:
    # Producers first: one in the middle of a batch would not notice that this process has ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises an error for each child that ends
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    deadline = time.monotonic() + _PRODUCERS_END_S
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
        child.kill()  # it is stopped or busy
    sys.exit(128 + number)


def run_rank(job: CellJob, folder: Path, replicate: Callable[[Setup], list[Record]]) -> NoReturn:
    """Run a replicate with the other ranks of its job and end the process; rank 0 writes the answer."""
    _on_signals(signal.SIG_DFL)  # which end the process even while it waits for another rank in C code
    me = membership()
    try:
        progress = RankProgress.create(folder, me.rank)
        group = _joined(job, me, progress)
        progress.begin("the preparation")
        records = replicate(Setup.of(job, group))
        progress.begin("the end")
        group.close()
    except Exception as error:  # noqa: BLE001 - the last resort: the failure names it, the log holds the traceback
        # Nothing may be waited for that depends on other ranks.
        failed, code = failed_answer(job, error)
        with contextlib.suppress(OSError):
            write_failure(folder, me.rank, **failed, consequence=lost_another(error))
        _leave(code)
    _leave(write_records(job, records) if me.leads else 0)


def _joined(job: CellJob, me: Membership, progress: RankProgress) -> Group:
    """Join the job and, where the store is on a separate device, mount that once per node."""
    if me.ranks != job.cell.ranks:
        raise CellFailedError(f"the launcher started {me.ranks} ranks for a cell of {job.cell.ranks}")
    progress.begin("the rendezvous")
    group = join(me, device_of(job.cell, me), job.wait_s, progress)
    if job.image is not None:
        # The ranks of a node share the mount namespace of their agent.
        if me.leads_node:
            mount_image(job.image, job.store, job.cell.readahead_kib or 0)
        group.barrier()
    return group


def _leave(code: int) -> NoReturn:
    """End at once: threads of gloo may still be ending, and abort a process that takes its interpreter apart."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)
