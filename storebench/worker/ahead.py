"""Start the processes of the next replicates together: they import at the same time, and then wait, idle, for their jobs.

A replicate of seconds spends most of them importing torch on one core. In a group, every process has imported everything
before the first gets its job, and the jobs run one after the other. If a process ends or is late before it has its job, its
replicate gets a process of its own when its turn comes. So do all of a group if the package changed while they imported it.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from storebench.probes.cgroup import memory_room_bytes
from storebench.probes.code import code_digest, package_folder, running_digest
from storebench.probes.machine import memory_bytes
from storebench.runs.schedule import PendingReplicate, ReplicateKey
from storebench.system.scratch import scratch_folder
from storebench.worker.launch import Waiting, waiting_process

MOST = 4
ROOM_BYTES = 2 << 30
"""Free memory for each process that waits. It holds some 160 MB, which the cell that works must not lack."""

READY_S = 60.0
"""Time for a group to import everything; processes that need longer are ended."""


def groups(work: Sequence[PendingReplicate], *, alone: bool) -> list[list[PendingReplicate]]:
    """Divide replicates, in their order, into those whose processes start together.

    A group has at most as many as there are cores, and as memory has room for. A job of ranks is by itself, because
    torchrun starts its processes.

    Parameters
    ----------
    alone
        Start every process by itself.
    """
    rooms = (memory_bytes("MemAvailable"), memory_room_bytes())
    waiting = min((room // ROOM_BYTES for room in rooms if room is not None), default=MOST)
    most = 1 if alone else min(MOST, len(os.sched_getaffinity(0)), 1 + waiting)
    groups: list[list[PendingReplicate]] = []
    for pending in work:
        if groups and len(groups[-1]) < most and groups[-1][-1].cell.ranks == pending.cell.ranks == 1:
            groups[-1].append(pending)
        else:
            groups.append([pending])
    return groups


@dataclass(frozen=True, kw_only=True)
class Start:
    """How the process of a replicate is started.

    Attributes
    ----------
    log
        File to which its output is appended.
    mounts
        Whether it starts in its own mount namespace, because its job mounts a device.
    """

    log: Path
    mounts: bool = False


class Together:
    """The processes of a group of replicates. Those that got no job end with the with statement.

    Parameters
    ----------
    starts
        The replicates of the group, and how the process of each is started. A single one is not started here.

    Attributes
    ----------
    start_s
        Each replicate's share of the seconds that the group took to start; 0 for a single one.
    """

    def __init__(self, starts: Mapping[ReplicateKey, Start]) -> None:
        self._starts = starts
        self.start_s = 0.0
        self._begun = len(starts) < 2
        self._waiting: dict[ReplicateKey, tuple[Waiting, contextlib.ExitStack]] = {}
        self._all = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._all:
            for key in list(self._waiting):
                self._drop(key)

    @contextlib.contextmanager
    def process(self, key: ReplicateKey) -> Iterator[Waiting | None]:
        """Provide the process that waits for the job of a replicate, once; None if there is none.

        The first call starts the group. The process and its folder are gone when the with statement ends.
        """
        if not self._begun:
            self._begun = True
            self._begin()
        waiting, its = self._waiting.pop(key, (None, contextlib.ExitStack()))
        with its:
            yield waiting if waiting is not None and waiting.alive() else None

    def _begin(self) -> None:
        """Start all, and wait until each has imported everything; end those that fail to."""
        begun_s = time.monotonic()
        for key, start in self._starts.items():
            its = self._all.enter_context(contextlib.ExitStack())
            scratch = its.enter_context(scratch_folder("replicate"))
            with contextlib.suppress(OSError):  # if it cannot be started later either, that is an error
                process = waiting_process(scratch, start.log, mounts=start.mounts)
                self._waiting[key] = its.enter_context(process), its
        deadline = time.monotonic() + READY_S
        for key, (waiting, _) in list(self._waiting.items()):
            if not waiting.ready(deadline):
                self._drop(key)
        if not _same_code():
            for key in list(self._waiting):
                self._drop(key)
        self.start_s = (time.monotonic() - begun_s) / len(self._starts)

    def _drop(self, key: ReplicateKey) -> None:
        """End a process without a job, and remove its log if it said nothing."""
        _, its = self._waiting.pop(key)
        its.close()
        log = self._starts[key].log
        if log.is_file() and not log.stat().st_size:
            log.unlink()


def _same_code() -> bool:
    """Return whether the package is still the one that this process runs."""
    try:
        return code_digest(package_folder()) == running_digest()
    except OSError:  # a checkout that is just being changed
        return False
