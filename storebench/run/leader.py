"""Jobs on several nodes: what the first node tells the others, and which node is to blame for a failure."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from storebench.errors import CellFailedError
from storebench.ranks.nodes import Board, NodeAddress
from storebench.worker.job import CellJob, job_text

OVER = {"over": True}

# Time for the other nodes to say how their part of a failed job ended.
_ENDED_S = 10.0

# Time for the other nodes to leave at the end of a run.
_LEFT_S = 10.0


class Leader:
    """The first node of a run."""

    def __init__(self, place: NodeAddress, board: Board) -> None:
        self._place = place
        self._board = board
        self._jobs = 0

    @property
    def nodes(self) -> int:
        """Number of nodes of the run."""
        return self._place.nodes

    @property
    def _others(self) -> range:
        return range(1, self._place.nodes)

    def wait_for_nodes(self, timeout_s: float) -> None:
        """Wait until every other node has its stores."""
        for node in self._others:
            answer = self._board.get(f"ready/{node}", timeout_s)
            if answer is None:
                raise CellFailedError(f"it is not ready after {timeout_s:g} s", where=f"node {node}")
            if "failure" in answer:
                raise CellFailedError(answer["failure"], where=f"node {node}")

    def announced(self, job: CellJob) -> CellJob:
        """Have the other nodes start their part of a job, and return the part of this node; one rank needs no other."""
        if job.cell.ranks == 1:
            return job
        place, number = self._place, self._jobs
        self._jobs += 1
        job = dataclasses.replace(job, nodes=place.nodes, rendezvous=place.rendezvous(number))
        self._board.set(f"job/{number}", {"job": job_text(job)})
        return job

    def blamed(self, job: CellJob, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a job, with the failure of the node that caused it."""
        if job.nodes == 1 or "records" in answer:
            return answer
        number = self._jobs - 1
        endings = [answer] + [
            self._board.get(f"ended/{number}/{node}", _ENDED_S) or {} for node in self._others
        ]
        causes = [ending for ending in endings if "failure" in ending and not ending.get("consequence")]
        # A rank that gives a reason comes first, then ranks without progress, the one that has come least far first.
        return min(causes, key=lambda ending: tuple(ending.get("position") or (-1,)), default=answer)

    def close(self) -> None:
        """Tell the other nodes that the run is over, and wait until they have left."""
        self._board.set(f"job/{self._jobs}", OVER)
        for node in self._others:
            self._board.get(f"left/{node}", _LEFT_S)


@contextlib.contextmanager
def leading(place: NodeAddress) -> Iterator[Leader]:
    """Lead the nodes of a run for the duration of a with statement; after an error the others end by themselves."""
    with Board(place) as board:
        leader = Leader(place, board)
        yield leader
        leader.close()
