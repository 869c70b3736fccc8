"""A job of ranks as its launcher sees it: what is started where, who makes no progress, and how it ended."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench.probes.machine import read_text
from storebench.ranks.heartbeat import Position
from storebench.system.processes import signal_name
from storebench.system.whole_files import EXIT_NOT_WRITTEN, not_written, write_message

# Module of the process that starts the ranks of one node, and is started for each job.
AGENT = "storebench.ranks.agent"
# Folder inside a job's temporary folder where its ranks say how far they have come and why they failed.
RANKS_DIR = "ranks"
# Folder of the output of each rank, inside the job's folder.
LOGS_NAME = "logs"
# Time for the nodes of a job to meet; all of them are told to start at the same moment.
MEET_S = 60
# Least time for each phase of a start: importing libraries is not progress that can be counted.
START_S = 60.0
# Phases of a start: joining the other ranks, and making the parts of the replicate (`storebench.worker.rank`).
START_PHASES = 2
# Timeout where torch.distributed needs a finite one; the launcher ends a job that hangs sooner.
MOST_WAIT_S = 7 * 24 * 3600.0
_LOOK_EVERY_S = 0.25
# Begins the lines that torch.distributed prints about ranks that work.
_NOISE = b"[Gloo] Rank "

# Called while the job runs, with the position of each rank on this node, in rank order.
Tell = Callable[[Sequence[Position]], None]


def tell_nobody(_positions: Sequence[Position]) -> None:
    """Show nothing; the default for `Tell`."""


@dataclass(frozen=True, kw_only=True)
class Team:
    """The ranks of a job, of which this node starts some."""

    ranks: int
    nodes: int = 1
    node: int = 0
    rendezvous: str = ""

    @property
    def local_ranks(self) -> int:
        return self.ranks // self.nodes

    @property
    def here(self) -> range:
        first = self.node * self.local_ranks
        return range(first, first + self.local_ranks)


def agent_command(team: Team, folder: Path, program: Sequence[str]) -> list[str]:
    """Return the command that starts the ranks of a job on this node."""
    return [sys.executable, "-P", "-m", AGENT, json.dumps(dataclasses.asdict(team)), str(folder), *program]


@dataclass(frozen=True, kw_only=True)
class JobEnding:
    """The ending of a job of ranks on this node."""

    code: int | None
    failure: str | None = None
    see_log: bool = False
    consequence: bool = False
    position: tuple[int, int] | None = None


def write_failure(
    folder: Path, rank: int | None, failure: str, *, see_log: bool = False, consequence: bool = False
) -> None:
    """Say why a rank failed, or that of its node which ended the job; `consequence` if only others were lost."""
    content = {"failure": failure, "see_log": see_log, "consequence": consequence}
    write_message(_failure_path(folder, rank), content)


def read_failure(folder: Path, rank: int | None) -> dict[str, Any]:
    """Return the written failure, or an empty dict."""
    path = _failure_path(folder, rank)
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _failure_path(folder: Path, rank: int | None) -> Path:
    return folder / f"failure{'' if rank is None else f'-{rank}'}.json"


def blame(folder: Path, team: Team, exits: Mapping[int, int]) -> None:
    """Write the failure that ended a job, given the exit codes of its ranks, in the order in which they ended.

    A rank that failed by itself comes before one that only lost others, and before those that the agent has ended
    because another had failed.
    """

    def guilt(rank: int) -> int:
        told = read_failure(folder, rank)
        if told:
            return 0 if not told["consequence"] else 3 if team.nodes == 1 else 2
        was_asked = exits[rank] == -signal.SIGTERM and rank != next(iter(exits))
        return 1 if not was_asked else 2 if team.nodes == 1 else 3

    rank = min((rank for rank, code in exits.items() if code), key=guilt)
    told, code = read_failure(folder, rank), exits[rank]
    if not told:
        told = {"failure": f"it ended with exit code {code}", "see_log": True}
        if code == EXIT_NOT_WRITTEN:  # the job's folder is in that of the replicate
            told = {"failure": not_written(folder.parent.parent)}
        elif code < 0:
            told["failure"] = f"it was killed by {signal_name(code)}"
    write_failure(folder, None, f"rank {rank} on node {team.node}: {told.pop('failure')}", **told)


class RankWatch:
    """Watch the progress of a job's ranks on this node."""

    def __init__(
        self, folder: Path, team: Team, stall_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._team, self._stall_s, self._clock = folder, team, stall_s, clock
        self.positions = [Position(rank) for rank in team.here]
        self._since_s = clock()
        self.blamed: list[Position] = []

    def wait(self, process: subprocess.Popen[Any], timeout_s: float, tell: Tell = tell_nobody) -> JobEnding:
        """Return the ending of the job, or the reason to end it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() <= deadline:
            try:
                code = process.wait(_LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                stalled = self.failure()
                tell(self.positions)
                if stalled is not None:
                    order = self.blamed[0].order
                    return JobEnding(code=None, failure=stalled, see_log=True, position=order)
            else:
                return JobEnding(code=code, **(read_failure(self._folder, None) if code else {}))
        return JobEnding(code=None)

    def failure(self) -> str | None:
        """Return the line that names the ranks that all others wait for; None while any makes progress."""
        before, self.positions = self.positions, [Position.of(self._folder, rank) for rank in self._team.here]
        if self.positions != before:
            self._since_s = self._clock()
        limit_s = self._stall_s
        if min(position.phase for position in self.positions) <= START_PHASES:
            # While the nodes meet, no rank has started; the agent gives the reason if they do not.
            limit_s = max(limit_s, START_S + (MEET_S if self._team.nodes > 1 else 0.0))
        if self._clock() - self._since_s < limit_s:
            return None
        stopped = [position for position in self.positions if _is_stopped(position.pid)]
        busy = [position for position in self.positions if not position.waiting]
        # If all ranks here wait, then maybe for those of another node.
        candidates = stopped or busy or (self.positions if self._team.nodes == 1 else [])
        least = min((position.order for position in candidates), default=(0, 0))
        self.blamed = [position for position in candidates if position.order == least]
        if not self.blamed:
            return None
        names = " and ".join(f"rank {position.rank} on node {self._team.node}" for position in self.blamed)
        return (
            f"{names} made no progress for {limit_s:.3g} s {self.blamed[0]}"
            f"{'; its process is stopped' if stopped else ''}; if its work takes longer, "
            "raise stall_s in the scenario"
        )


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger."""
    stat = read_text(f"/proc/{pid}/stat") if pid else None
    return stat is not None and stat.rpartition(")")[2].split()[0] in {"T", "t"}


def collect_output(folder: Path, log: Path) -> None:
    """Append the output of each rank to a log, under a line with its number."""
    files = folder.glob(f"{LOGS_NAME}/*/attempt_*/*/std*.log")
    with log.open("ab") as output:
        for file in sorted(files, key=lambda file: (file.parent.name.zfill(9), file.stem != "stdout")):
            lines = file.read_bytes().splitlines(keepends=True)
            if printed := b"".join(line for line in lines if not line.startswith(_NOISE)):
                output.write(f"--- local rank {file.parent.name}, {file.stem} ---\n".encode() + printed)
