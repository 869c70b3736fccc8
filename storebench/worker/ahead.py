"""Start the processes of the next replicates together: one interpreter imports everything, then each waits for its job."""

import contextlib
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
from storebench.system.forking import can_own_pages
from storebench.system.scratch import scratch_folder
from storebench.worker.waiting import Place, Waiting, forked

MOST = 32
ROOM_BYTES = 1 << 30
"""Free memory for each process that waits. It holds some 170 MB, which the cell that works must not lack."""

READY_S = 60.0
"""Time for a group to be ready; processes that need longer are ended."""


def groups(work: Sequence[PendingReplicate], *, alone: bool) -> list[list[PendingReplicate]]:
    """Divide replicates, in their order, into those whose processes start together."""
    rooms = (memory_bytes("MemAvailable"), memory_room_bytes())
    waiting = min((room // ROOM_BYTES for room in rooms if room is not None), default=MOST)
    most = 1 if alone or not can_own_pages() else min(MOST, 1 + waiting)
    groups: list[list[PendingReplicate]] = []
    for pending in work:
        if groups and len(groups[-1]) < most and _start_together(groups[-1][-1], pending):
            groups[-1].append(pending)
        else:
            groups.append([pending])
    return groups


def _start_together(before: PendingReplicate, after: PendingReplicate) -> bool:
    return before.replicate == after.replicate and before.cell.ranks == after.cell.ranks == 1


@dataclass(frozen=True, kw_only=True)
class Start:
    """How the process of a replicate is started."""

    log: Path
    mounts: bool = False


class Together:
    """The processes of a group of replicates. Those that got no job end with the with statement."""

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
        """Provide the process that waits for the job of a replicate, once; None if there is none."""
        if not self._begun:
            self._begun = True
            self._begin()
        waiting, its = self._waiting.pop(key, (None, contextlib.ExitStack()))
        with its:
            yield waiting if waiting is not None and waiting.alive() else None

    def _begin(self) -> None:
        """Start all, and wait until each has imported everything; end those that fail to."""
        begun_s = time.monotonic()
        stacks = {key: self._all.enter_context(contextlib.ExitStack()) for key in self._starts}
        places = [
            Place(
                scratch=stacks[key].enter_context(scratch_folder("replicate")),
                log=start.log,
                mounts=start.mounts,
            )
            for key, start in self._starts.items()
        ]
        with contextlib.suppress(OSError), scratch_folder("replicate") as scratch:
            # If they cannot be started, each replicate is started by itself later, and if that fails, it is an error. Until
            # then, what went wrong is of no replicate's log.
            processes = forked(places, scratch, scratch / "interpreter.log", READY_S)
            for (key, its), process in zip(stacks.items(), processes, strict=True):
                if process is not None:
                    self._waiting[key] = its.enter_context(process), its
        if not _same_code():
            for key in list(self._waiting):
                self._drop(key)
        for key in stacks.keys() - self._waiting.keys():
            stacks[key].close()
            self._remove_empty_log(key)
        self.start_s = (time.monotonic() - begun_s) / len(self._starts)

    def _drop(self, key: ReplicateKey) -> None:
        """End a process without a job, and remove its log if it said nothing."""
        _, its = self._waiting.pop(key)
        its.close()
        self._remove_empty_log(key)

    def _remove_empty_log(self, key: ReplicateKey) -> None:
        log = self._starts[key].log
        if log.is_file() and not log.stat().st_size:
            log.unlink()


def _same_code() -> bool:
    """Return whether the package is still the one that this process runs."""
    try:
        return code_digest(package_folder()) == running_digest()
    except OSError:  # a checkout that is just being changed
        return False
