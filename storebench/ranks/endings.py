"""The endings of the ranks of a job: the files that they and their agent write, and the launcher's one line about them."""

import dataclasses
import json
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from storebench.fileio.whole_files import EXIT_NOT_WRITTEN, not_written, write_message
from storebench.ranks.membership import Membership
from storebench.ranks.team import Team
from storebench.system.processes import signal_name

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
