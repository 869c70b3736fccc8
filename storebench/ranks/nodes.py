"""The nodes of a run: which one this process is on, and how the first one tells the others what to run."""

import contextlib
import functools
import json
import math
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from storebench.errors import CellFailedError, UsageError
from storebench.ranks.membership import Membership

# Time for the nodes of a run to reach the first one, from the start of each.
REACH_S = 60.0
_MOST_PORT = 65_533  # two more follow
_RETRY_S = 0.2
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
    """The values that the nodes of a run have told each other, kept by the first one. Use it as a context manager."""

    def __init__(self, place: NodeAddress, *, reach_s: float = REACH_S) -> None:
        self._place = place
        self._server = _Server(place.port) if place.leads else None
        try:
            self._connection = self._connected(reach_s)
        except BaseException:
            self._end_server()
            raise
        self._lines = self._connection.makefile("rwb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def set(self, key: str, value: Mapping[str, Any]) -> None:
        self._answer({"key": key, "value": value})

    def get(self, key: str, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return a value, once it is told; None if it is not within `timeout_s` seconds. None waits without limit."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            wait_s = min(_PATIENCE_S, max(0.1, deadline - time.monotonic()))
            value: dict[str, Any] | None = self._answer({"key": key, "timeout_s": wait_s})
            if value is not None or time.monotonic() >= deadline:
                return value

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._lines.close()
        self._connection.close()
        self._end_server()

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _connected(self, reach_s: float) -> socket.socket:
        place, deadline = self._place, time.monotonic() + reach_s
        while True:
            try:
                connection = socket.create_connection(
                    (place.host, place.port), max(1.0, deadline - time.monotonic())
                )
            except OSError:
                if time.monotonic() > deadline:
                    raise CellFailedError(
                        f"the first node cannot be reached at {_bracketed(place.host)}:{place.port}",
                        where=f"node {place.node}",
                        hint="Start all nodes within a minute, and look for a firewall.",
                    ) from None
                time.sleep(_RETRY_S)
            else:
                connection.settimeout(2 * _PATIENCE_S)
                return connection

    def _answer(self, command: Mapping[str, Any]) -> Any:
        try:
            self._lines.write(json.dumps(command).encode() + b"\n")
            self._lines.flush()
            return json.loads(self._lines.readline())
        except (OSError, ValueError):
            raise CellFailedError(
                "the first node has ended the run",
                where=f"node {self._place.node}",
                hint="Its output says why.",
            ) from None


class _Server(socketserver.ThreadingTCPServer):
    """Keeps the values on the first node, one thread per connected node."""

    allow_reuse_address = daemon_threads = True
    block_on_close = False

    def __init__(self, port: int) -> None:
        self.values: dict[str, Any] = {}
        self.told = threading.Condition()
        if socket.has_dualstack_ipv6():
            self.address_family = socket.AF_INET6
        try:
            super().__init__(("", port), _Answers)
        except OSError as error:
            raise CellFailedError(
                f"port {port} cannot be used: {error.strerror}",
                where="--rendezvous",
                hint="Name another port.",
            ) from None
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, *_request: object) -> None:
        """Say nothing: a node that has ended is noticed where its answer is missing."""


class _Answers(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        values, told = self.server.values, self.server.told
        for line in self.rfile:
            command = json.loads(line)
            key, value = command["key"], command.get("value")
            with told:
                if value is not None:
                    values[key] = value
                    told.notify_all()
                elif told.wait_for(functools.partial(values.__contains__, key), command["timeout_s"]):
                    value = values[key]
            self.wfile.write(json.dumps(value).encode() + b"\n")
