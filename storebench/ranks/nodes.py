"""The nodes of a run: which one this process is on, and how the first one tells the others what to run."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from storebench.errors import CellFailedError, UsageError
from storebench.probes.code import cell_environment
from storebench.ranks.membership import Membership
from storebench.system import processes

# Time for the nodes of a run to reach the first one, from the start of each.
REACH_S = 60.0
_MOST_PORT = 65_533  # two more follow
_END_S = 3.0
# Time after which a wait on the board begins anew, so that the loss of the first node is noticed.
_PATIENCE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class NodeAddress:
    """One node of a run, and the address at which the nodes meet."""

    node: int
    nodes: int
    host: str
    port: int

    @property
    def leads(self) -> bool:
        """Whether this node decides what is run, and keeps the records."""
        return self.node == 0

    def rendezvous(self, job: int) -> str:
        """Return the address at which the ranks of a job meet; jobs alternate, so that none meets the one before."""
        return f"{_bracketed(self.host)}:{self.port + 1 + job % 2}"


def place_of(nodes: int, rendezvous: str | None, node: int | None, member: Membership) -> NodeAddress:
    """Return the place of this process among the nodes of a run."""
    if rendezvous is None:
        raise UsageError(
            "--nodes needs --rendezvous, the address of the first node", hint="Add --rendezvous HOST:PORT."
        )
    host, _, port = rendezvous.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) <= _MOST_PORT:
        raise UsageError(
            f"not HOST:PORT: {rendezvous!r}", where="--rendezvous", hint=f"The port is 1 to {_MOST_PORT}."
        )
    if node is None:
        if member.ranks != nodes:
            raise UsageError(
                f"the launcher has started {member.ranks} processes for {nodes} nodes",
                where="--nodes",
                hint="Start one per node, as with srun --ntasks-per-node=1, or number them with --node.",
            )
        node = member.rank
    if node >= nodes:
        raise UsageError(
            f"there is no node {node} among {nodes}", where="--node", hint="Nodes are numbered from 0."
        )
    return NodeAddress(node=node, nodes=nodes, host=host, port=int(port))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class Board:
    """The values that the nodes of a run have told each other. Use it as a context manager."""

    def __init__(self, place: NodeAddress, *, reach_s: float = REACH_S) -> None:
        self._place = place
        self._reached = False
        leads = "leads" if place.leads else "follows"
        self._process = processes.start_program(
            [
                *(sys.executable, "-P", "-m", "storebench.ranks.rendezvous"),
                *(place.host, str(place.port), leads, str(reach_s)),
            ],
            env=cell_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def set(self, key: str, value: Mapping[str, Any]) -> None:
        self._command({"set": [key, json.dumps(value)]})

    def get(self, key: str, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return a value, once it is told; None if it is not within `timeout_s` seconds. None waits without limit."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _PATIENCE_S if deadline is None else min(_PATIENCE_S, deadline - time.monotonic())
            answer = self._command({"get": key, "timeout_s": max(0.1, left_s)})
            if "text" in answer:
                value: dict[str, Any] = json.loads(answer["text"])
                return value
            if deadline is not None and time.monotonic() >= deadline:
                return None

    def close(self) -> None:
        """End the process that reaches the board."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _command(self, command: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, and its answer holds the reason
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it has ended"}
        if "error" in answer:
            self.close()
            raise self._lost()
        self._reached = True
        return answer

    def _lost(self) -> CellFailedError:
        where, address = f"node {self._place.node}", f"{_bracketed(self._place.host)}:{self._place.port}"
        if self._reached:
            return CellFailedError(
                "the first node has ended the run", where=where, hint="Its output says why."
            )
        return CellFailedError(
            f"the first node cannot be reached at {address}",
            where=where,
            hint="Start all nodes within a minute, and look for a firewall.",
        )
