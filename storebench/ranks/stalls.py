"""Find the rank that makes no progress, so that a job that hangs is ended and the rank is named."""

import time
from collections.abc import Callable
from pathlib import Path

from storebench.probes.machine import read_text
from storebench.ranks.progress import Position
from storebench.ranks.team import MEET_S, Team

START_S = 60.0
"""Least time for each phase of a start: importing libraries is not progress that can be counted."""

START_PHASES = 2
"""Phases of a start: joining the other ranks, and making the parts of the replicate (`storebench.worker.rank`)."""

MOST_WAIT_S = 7 * 24 * 3600.0
"""Timeout where torch.distributed needs a finite one; the launcher ends a job that hangs sooner."""

_STOPPED = ("T", "t")


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
        return self._line(self.blamed) if self.blamed else None

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

    def _line(self, blamed: list[Position]) -> str:
        names = " and ".join(f"rank {position.rank} on node {self._team.node}" for position in blamed)
        place = f"{blamed[0]}"
        stopped = "; its process is stopped" if _stopped(blamed[0].pid) else ""
        # A stopped process may be blamed before its time is over.
        idle_s = min(self._limit_s(blamed[0]), self._clock() - self._last[blamed[0].rank][1])
        return (
            f"{names} made no progress for {idle_s:.3g} s {place}{stopped}; if its work takes longer, "
            "raise stall_s in the scenario"
        )


def _stopped(pid: int | None) -> bool:
    """Return whether a process is stopped, by a signal or a debugger."""
    stat = read_text(f"/proc/{pid}/stat") if pid is not None else None
    return stat is not None and stat.rpartition(")")[2].split()[0] in _STOPPED
