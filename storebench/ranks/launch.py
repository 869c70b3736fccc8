"""Start a job of ranks on this node, and watch it until all of its ranks have ended, or one has failed or hangs."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from storebench.ranks.endings import LOGS_NAME, RankFailure, failure_of, read_failures
from storebench.ranks.progress import Position
from storebench.ranks.stalls import StallWatch
from storebench.ranks.team import Team

AGENT = "storebench.ranks.agent"
"""Module of the process that starts the ranks of one node, and is started for each job."""

RANKS_DIR = "ranks"
"""Folder inside a job's temporary folder where its ranks say how far they have come and why they failed."""

TELL_STACKS = signal.SIGUSR1
"""Signal on which a rank, and each of its producers, writes the stacks of its threads to its output."""

_TELLING_S = 0.4
"""Time for a process to write them before the next one does, because they share a file, or before the job is ended."""

FAILED_GRACE_S = 4.0
"""Time for the other ranks to end after one has failed, before they are killed."""

_LOOK_EVERY_S = 0.25

_NOISE = ("[Gloo] Rank ",)
"""Lines that torch.distributed prints about ranks that work."""

Tell = Callable[[Sequence[Position]], None]
"""Called while the job runs, with the position of each rank on this node, in rank order."""


def tell_nobody(_positions: Sequence[Position]) -> None:
    """Show nothing; the default for `Tell`."""


def agent_command(team: Team, folder: Path, program: Sequence[str]) -> list[str]:
    """Return the command that starts the ranks of a job on this node."""
    return [sys.executable, "-P", "-m", AGENT, team.text(), str(folder), *program]


@dataclass(frozen=True, kw_only=True)
class JobEnding:
    """The ending of a job of ranks."""

    code: int | None
    failure: str | None = None
    see_log: bool = False
    consequence: bool = False
    position: tuple[int, int] | None = None


class RankWatch:
    """Watch a job of ranks."""

    def __init__(
        self, folder: Path, team: Team, *, stall_s: float, timeout_s: float, tell: Tell = tell_nobody
    ) -> None:
        folder.mkdir()
        self._tell = tell
        self._folder = folder
        self._team = team
        self._stalls = StallWatch(folder, team, stall_s)
        self._deadline = time.monotonic() + timeout_s

    def wait(self, process: subprocess.Popen[Any]) -> JobEnding:
        """Return how the job ended, or the reason to end it."""
        while True:
            try:
                return self._ended(process.wait(_LOOK_EVERY_S))
            except subprocess.TimeoutExpired:
                ending = self._to_be_ended()
            if ending is not None:
                return ending

    def _ended(self, code: int) -> JobEnding:
        failure = failure_of(self._folder, self._team) if code else None
        if failure is None:
            return JobEnding(code=code)
        return _failed(failure, code)

    def _to_be_ended(self) -> JobEnding | None:
        """Return the reason to end a running job, or None."""
        failures = read_failures(self._folder, self._team.here)
        if failures and time.monotonic_ns() - failures[0].at_ns > FAILED_GRACE_S * 1e9:
            failure = failure_of(self._folder, self._team) or failures[0]
            return _failed(failure, None)
        stalled = self._stalls.failure()
        self._tell(self._stalls.positions)
        if stalled is not None:
            _tell_stacks(self._stalls.blamed)
            return JobEnding(code=None, failure=stalled, see_log=True, position=self._stalls.blamed[0].order)
        return JobEnding(code=None) if time.monotonic() > self._deadline else None


def _tell_stacks(blamed: Iterable[Position]) -> None:
    """Have ranks that hang, and their producers, write where they are; those that are stopped cannot."""
    for position in blamed:
        if position.pid is None:
            continue
        with contextlib.suppress(psutil.Error):
            rank = psutil.Process(position.pid)
            for process in (rank, *rank.children(recursive=True)):
                process.send_signal(TELL_STACKS)
                time.sleep(_TELLING_S)


def _failed(failure: RankFailure, code: int | None) -> JobEnding:
    return JobEnding(
        code=code, failure=str(failure), see_log=failure.see_log, consequence=failure.consequence
    )


def collect_output(folder: Path, log: Path) -> None:
    """Append the output of each rank to a log, under a line with its number."""
    with log.open("ab") as output:
        for rank in sorted(folder.glob(f"{LOGS_NAME}/*/attempt_*/*"), key=_number):
            for name in ("stdout.log", "stderr.log"):
                printed = b"".join(_worth_keeping(rank / name))
                if printed:
                    output.write(
                        f"--- local rank {rank.name}, {name.partition('.')[0]} ---\n".encode() + printed
                    )


def _number(folder: Path) -> int:
    return int(folder.name) if folder.name.isdigit() else -1


def _worth_keeping(path: Path) -> Iterable[bytes]:
    """Return the lines of a rank's output without those that say only that it works."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return []
    return [line for line in lines if not line.startswith(tuple(noise.encode() for noise in _NOISE))]
