"""Cells that need no interpreter of their own: each runs in a copy of a process that has imported torch already.

What a cell does, counts, writes and returns is the same; the second and a half of importing is missing, and the machine's
ceilings are measured for a moment only (`tests.support.short_yardsticks`). Tests of the launch itself, of
what kills a cell, and of limited memory start interpreters (`storebench.worker.launch`).
"""

import contextlib
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from multiprocessing.context import ForkProcess
from pathlib import Path
from unittest import mock

from storebench.surroundings import Surroundings
from storebench.system.interrupts import Held
from storebench.system.processes import expend
from storebench.worker import launch, replicate
from tests.support.short_yardsticks import shorten

_fresh = launch._fresh_process


def warm_process(job: Path, log: Path, around: Surroundings, timeout_s: float) -> int | None:
    """Run one job in a copy of this process and return its exit code, None if it ran out of time.

    A cell with a memory limit or a device of its own gets a fresh process: its memory and its mounts are counted.
    """
    if around.group is not None or around.image is not None:
        return _fresh(job, log, around, timeout_s)
    with log.open("ab") as output:
        process = multiprocessing.get_context("fork").Process(target=_cell, args=(job, output.fileno()))
        _start(process)
    try:
        expend(process.pid)
        process.join(timeout_s)
        return process.exitcode
    finally:
        with Held():
            while process.exitcode is None:
                process.terminate()
                process.join(launch.GRACE_S)
                process.kill()


def _start(process: ForkProcess) -> None:
    with warnings.catch_warnings():
        # From Python 3.12 on: this process has threads, of pytest-xdist or of a progress bar, which no cell needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()


def _cell(job: Path, output: int) -> None:
    os.environ.update(launch._environment(job.parent))
    tempfile.tempdir = None
    for standard in (1, 2):
        os.dup2(output, standard)
    shorten()
    sys.exit(replicate.main([str(job)]))


@contextlib.contextmanager
def warm_cells() -> Iterator[None]:
    """Let every cell of a run in this process run in a copy of it."""
    with mock.patch.object(launch, "_fresh_process", warm_process):
        yield
