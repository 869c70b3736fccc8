"""Processes that wait for their jobs: one interpreter imports everything, forks them, and ends."""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from storebench.names import text_of_name
from storebench.system.forking import Adopted, adopting
from storebench.system.processes import end_processes
from storebench.worker.cell_process import (
    end,
    ending_failed,
    exit_code,
    program,
    started,
    variables_of,
)
from storebench.worker.job import WAIT

_LONGEST_ID = 64


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a process waits."""

    scratch: Path
    log: Path
    mounts: bool = False


class Waiting:
    """A cell's process that has imported everything and waits, idle, for one job; it ends with the with statement."""

    def __init__(self, process: Adopted, line: socket.socket, scratch: Path) -> None:
        self._process = process
        self._line = line
        self._ending = ending_failed(process, scratch)
        self.scratch = scratch

    def __enter__(self) -> Self:
        self._ending.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.close()
        self._ending.__exit__(kind, error, trace)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Return whether it can still take a job."""
        return self._process.poll() is None and self.scratch.is_dir()

    def takes(self, job: Path) -> bool:
        """Hand over the file of a job; return False if the process has ended."""
        try:
            self._line.sendall(os.fsencode(job))
        except OSError:
            end(self._process)  # so that its processor time is known from here on
            return False
        return True

    def ended(self, timeout_s: float, each_second: Callable[[], None] | None = None) -> int | None:
        """Return the exit code of the process once it has run its job, None if it ran out of time."""
        with ending_failed(self._process, self.scratch):
            return exit_code(self._process, timeout_s, each_second)


def forked(places: Sequence[Place], scratch: Path, log: Path, ready_s: float) -> list[Waiting | None]:
    """Start a process for each place, and return those that wait for their jobs; None for those that do not."""
    deadline = time.monotonic() + ready_s
    with contextlib.ExitStack() as kept, adopting():
        lines = [_pair(kept) for _ in places]
        requests = [
            {
                "line": theirs.fileno(),
                "log": text_of_name(str(place.log)),
                "scratch": text_of_name(str(place.scratch)),
                "mounts": place.mounts,
                "tmpdir": "TMPDIR" in variables_of(place.scratch),
            }
            for place, (_, theirs) in zip(places, lines, strict=True)
        ]
        request = scratch / "places.json"
        request.write_text(json.dumps(requests), encoding="utf-8")
        command = [sys.executable, *program(WAIT, str(request))]
        passed = [theirs.fileno() for _, theirs in lines]
        with started(command, scratch, log, passed=passed) as interpreter:
            forks = exit_code(interpreter, ready_s) == 0
        for _, theirs in lines:
            theirs.close()  # or nobody would see that a process has ended
        waiting = [
            _ready(ours, place.scratch, deadline) if forks else None
            for place, (ours, _) in zip(places, lines, strict=True)
        ]
        if failed := [
            place.scratch for place, process in zip(places, waiting, strict=True) if process is None
        ]:
            end_processes([scratch, *failed])  # one may not have marked itself yet
        if forks:
            kept.pop_all()
    return waiting


def _pair(kept: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return kept.enter_context(ours), kept.enter_context(theirs)


def _ready(line: socket.socket, scratch: Path, deadline: float) -> Waiting | None:
    """Wait for a process to say who it is; return None if it ends before, or if the deadline passes."""
    line.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        return Waiting(Adopted(int(line.recv(_LONGEST_ID))), line, scratch)
    except (OSError, ValueError):
        line.close()
        return None
