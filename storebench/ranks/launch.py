"""A job of ranks as its launcher sees it: what is started where, who makes no progress, and how each rank ended."""

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from storebench.probes.machine import read_text
from storebench.ranks.heartbeat import Position
from storebench.ranks.membership import Membership
from storebench.system.processes import signal_name
from storebench.system.whole_files import EXIT_NOT_WRITTEN, not_written, write_message

MEET_S = 60
"""Time for the nodes of a job to meet; all of them are told to start at the same moment."""


@dataclass(frozen=True, kw_only=True)
class Team:
    """The ranks of a job, of which this node starts some."""

    ranks: int
    nodes: int = 1
    node: int = 0
    rendezvous: str = ""

    @property
    def local_ranks(self) -> int:
        """Ranks on each node."""
        return self.ranks // self.nodes

    @property
    def here(self) -> range:
        """Numbers of the ranks on this node."""
        first = self.node * self.local_ranks
        return range(first, first + self.local_ranks)


LOGS_NAME = "logs"
"""Folder of the output of each rank, inside the job's folder."""

_EXITS_NAME = "exits.json"


@dataclass(frozen=True, kw_only=True)
class RankFailure:
    """Why one rank failed, or the agent of a node, which has no rank."""

    rank: int | None
    node: int
    failure: str
    consequence: bool = False
    see_log: bool = False
    at_ns: int = 0

    @classmethod
    def now(cls, membership: Membership, failure: str, *, consequence: bool, see_log: bool) -> Self:
        """Return the failure of this process, at this moment."""
        return cls(
            rank=membership.rank,
            node=membership.node,
            failure=failure,
            consequence=consequence,
            see_log=see_log,
            at_ns=time.monotonic_ns(),
        )

    def write(self, folder: Path) -> None:
        """Write it into the job's folder on this node."""
        write_message(_path(folder, self.rank), dataclasses.asdict(self))

    def __str__(self) -> str:
        """Return the line that names the rank, if it is one, its node and the reason."""
        who = f"node {self.node}" if self.rank is None else f"rank {self.rank} on node {self.node}"
        return f"{who}: {self.failure}"


def write_exits(folder: Path, exits: Mapping[int, int]) -> None:
    """Write the exit code of each rank that failed on this node, negative for a signal, in the order in which they ended."""
    write_message(folder / _EXITS_NAME, {str(rank): code for rank, code in exits.items()})


def read_failures(folder: Path, ranks: range) -> list[RankFailure]:
    """Return the failures that ranks and their agent have written, the earliest first."""
    contents = (_read(_path(folder, rank)) for rank in (*ranks, None))
    return sorted(
        (RankFailure(**content) for content in contents if content is not None),
        key=lambda failure: failure.at_ns,
    )


def failure_of(folder: Path, team: Team) -> RankFailure | None:
    """Return the failure that ended a job: that of the first rank that failed by itself; None if no rank says why."""
    failures = read_failures(folder, team.here)
    causes = [failure for failure in failures if not failure.consequence]
    reported = {failure.rank for failure in failures if failure.rank is not None}
    exits = {int(rank): code for rank, code in (_read(folder / _EXITS_NAME) or {}).items()}
    silent = [
        RankFailure(rank=rank, node=team.node, failure=_ended(code, folder), see_log=code != EXIT_NOT_WRITTEN)
        for rank, code in _unasked(exits, lost=team.nodes == 1 and bool(failures)).items()
        if rank not in reported
    ]
    return next(iter([*causes, *silent, *failures]), None)


def _unasked(exits: Mapping[int, int], *, lost: bool) -> dict[int, int]:
    """Return the exits of ranks that their agent had not asked to end, by SIGTERM, because another one had failed."""
    failed = [(rank, code) for rank, code in exits.items() if code]
    asked = [(rank, code) for rank, code in failed if code == -signal.SIGTERM]
    if asked[:1] == failed[:1]:
        return dict(failed[:1])
    by_itself = [(rank, code) for rank, code in failed if code != -signal.SIGTERM]
    return dict([*by_itself, *(asked[:1] if lost else [])])


def _ended(code: int, folder: Path) -> str:
    if code == EXIT_NOT_WRITTEN:
        return not_written(folder.parent.parent)  # the job's folder is in that of the replicate
    return f"it was killed by {signal_name(code)}" if code < 0 else f"it ended with exit code {code}"


def _path(folder: Path, rank: int | None) -> Path:
    return folder / f"failure-{'agent' if rank is None else rank}.json"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return None
    return content


START_S = 60.0
"""Least time for each phase of a start: importing libraries is not progress that can be counted."""

START_PHASES = 2
"""Phases of a start: joining the other ranks, and making the parts of the replicate (`storebench.worker.rank`)."""

MOST_WAIT_S = 7 * 24 * 3600.0
"""Timeout where torch.distributed needs a finite one; the launcher ends a job that hangs sooner."""


class StallWatch:
    """Watch the progress of a job's ranks on this node."""

    def __init__(
        self,
        folder: Path,
        team: Team,
        stall_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._team = team
        self._stall_s = stall_s
        self._clock = clock
        self.blamed: list[Position] = []
        begun_s = clock()
        self._last = {rank: (Position(rank=rank), begun_s) for rank in team.here}

    @property
    def positions(self) -> list[Position]:
        """Position of each rank on this node at the last poll, in rank order."""
        return [position for position, _ in self._last.values()]

    def failure(self) -> str | None:
        """Return the line that names the rank that hangs; None while all make progress."""
        now_s = self._clock()
        idle = []
        for rank, (before, since_s) in self._last.items():
            position = Position.of(self._folder, rank)
            if position != before:
                self._last[rank] = (position, now_s)
            elif now_s - since_s >= self._limit_s(position):
                idle.append(position)
        self.blamed = self._blamed(idle)
        if not self.blamed:
            return None
        first = self.blamed[0]
        names = " and ".join(f"rank {position.rank} on node {self._team.node}" for position in self.blamed)
        stopped = "; its process is stopped" if _stopped(first.pid) else ""
        # A stopped process may be blamed before its time is over.
        idle_s = min(self._limit_s(first), self._clock() - self._last[first.rank][1])
        return (
            f"{names} made no progress for {idle_s:.3g} s {first}{stopped}; if its work takes longer, "
            "raise stall_s in the scenario"
        )

    def _limit_s(self, position: Position) -> float:
        if position.phase > START_PHASES:
            return self._stall_s
        # While the nodes meet, no rank has started; the agent gives the reason if they do not.
        return max(self._stall_s, START_S + (MEET_S if self._team.nodes > 1 else 0.0))

    def _blamed(self, idle: list[Position]) -> list[Position]:
        """Return the ranks that the others wait for, of those without progress."""
        stopped = [position for position in self.positions if _stopped(position.pid)] if idle else []
        if stopped:
            return stopped
        busy = [position for position in idle if not position.waiting]
        if not busy and not (self._team.nodes == 1 and len(idle) == len(self._last)):
            return []
        candidates = busy or idle
        least = min(position.order for position in candidates)
        if any(position.order < least and not position.waiting for position in self.positions):
            return []
        return [position for position in candidates if position.order == least]


def _stopped(pid: int | None) -> bool:
    """Return whether a process is stopped, by a signal or a debugger."""
    stat = read_text(f"/proc/{pid}/stat") if pid is not None else None
    return stat is not None and stat.rpartition(")")[2].split()[0] in {"T", "t"}


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

_NOISE = b"[Gloo] Rank "
"""Begins the lines that torch.distributed prints about ranks that work."""

Tell = Callable[[Sequence[Position]], None]
"""Called while the job runs, with the position of each rank on this node, in rank order."""


def tell_nobody(_positions: Sequence[Position]) -> None:
    """Show nothing; the default for `Tell`."""


def agent_command(team: Team, folder: Path, program: Sequence[str]) -> list[str]:
    """Return the command that starts the ranks of a job on this node."""
    return [sys.executable, "-P", "-m", AGENT, json.dumps(dataclasses.asdict(team)), str(folder), *program]


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
                code = process.wait(_LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                if ending := self._to_be_ended():
                    return ending
                continue
            failure = failure_of(self._folder, self._team) if code else None
            return _failed(failure, code) if failure else JobEnding(code=code)

    def _to_be_ended(self) -> JobEnding | None:
        """Return the reason to end a running job, or None."""
        failures = read_failures(self._folder, self._team.here)
        if failures and time.monotonic_ns() - failures[0].at_ns > FAILED_GRACE_S * 1e9:
            return _failed(failure_of(self._folder, self._team) or failures[0], None)
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
    files = folder.glob(f"{LOGS_NAME}/*/attempt_*/*/std*.log")
    with log.open("ab") as output:
        for file in sorted(files, key=lambda file: (file.parent.name.zfill(9), file.stem != "stdout")):
            lines = file.read_bytes().splitlines(keepends=True)
            if printed := b"".join(line for line in lines if not line.startswith(_NOISE)):
                output.write(f"--- local rank {file.parent.name}, {file.stem} ---\n".encode() + printed)
