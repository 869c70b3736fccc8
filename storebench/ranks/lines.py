"""Connections between the first rank of a node and the other ranks there, for messages that belong to a timed step."""

import os
import pickle
import uuid
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from storebench.ranks.group import Group, LostRankError
from storebench.ranks.progress import NO_PROGRESS, RankProgress

_FAMILY = "AF_UNIX"
_KEY_BYTES = 32


class Line:
    """A connection to another rank of this node."""

    def __init__(self, connection: Connection, other: str, progress: RankProgress = NO_PROGRESS) -> None:
        self._connection = connection
        self._other = other
        self._progress = progress

    def send(self, message: Any) -> None:
        """Send a message."""
        try:
            self._connection.send_bytes(pickle.dumps(message))
        except OSError as error:
            raise _lost(self._other) from error

    def receive(self) -> Any:
        """Wait for the next message."""
        try:
            with self._progress.waiting():
                content = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise _lost(self._other) from error
        return pickle.loads(content)  # noqa: S301 - a rank of the same job wrote it, and proved that it is one

    def send_file(self, handle: int) -> None:
        """Send an open file; raises as `send` does."""
        try:
            send_handle(self._connection, handle, 0)  # the process id matters on Windows only
        except OSError as error:
            raise _lost(self._other) from error

    def receive_file(self) -> int:
        """Wait for an open file, and return its descriptor in this process; raises as `receive` does."""
        try:
            with self._progress.waiting():
                return recv_handle(self._connection)
        except (EOFError, OSError, RuntimeError) as error:
            raise _lost(self._other) from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def connect_node(group: Group, progress: RankProgress = NO_PROGRESS) -> list[Line]:
    """Connect the ranks of each node with the first one there, and return the connections of this rank."""
    return _answered(group, progress) if group.membership.leads_node else [_asked(group, progress)]


def _answered(group: Group, progress: RankProgress) -> list[Line]:
    """Return the connections of the first rank of a node to the others."""
    me = group.membership
    # Messages are pickled, so the key must keep out processes of other jobs.
    address, key = f"\0storebench-{uuid.uuid4().hex}", os.urandom(_KEY_BYTES)
    lines: dict[int, Line] = {}
    with Listener(address, family=_FAMILY, backlog=me.local_ranks, authkey=key) as listener:
        group.exchange({me.node: (address, key, str(me))})
        with progress.waiting():
            while len(lines) < me.local_ranks - 1:
                try:
                    connection = listener.accept()
                    local_rank, name = connection.recv()
                except (AuthenticationError, EOFError, ConnectionError):
                    continue  # a process of another job, or a rank that has ended since it connected
                lines[local_rank] = Line(connection, name, progress)
    return [lines[local_rank] for local_rank in sorted(lines)]


def _asked(group: Group, progress: RankProgress) -> Line:
    """Return the connection of another rank of a node to the first one."""
    me = group.membership
    offers: dict[int, tuple[str, bytes, str]] = {}
    for offer in group.exchange(offers):
        offers = offers | offer
    address, key, name = offers[me.node]
    try:
        connection = Client(address, family=_FAMILY, authkey=key)
        connection.send((me.local_rank, str(me)))
    except (EOFError, OSError) as error:
        raise _lost(name) from error
    return Line(connection, name, progress)


def _lost(other: str) -> LostRankError:
    return LostRankError(f"{other}, which shares batches with this rank, has ended")
