"""One reader per node: the first rank there reads for the others, and sends what was read to them."""

import contextlib
import dataclasses
import itertools
import os
import pickle
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

import numpy as np
import torch

from storebench.formats.base import Indices
from storebench.loading.batch import (
    LOOP_WORKER,
    BatchRequest,
    EpochPlan,
    LoadedBatch,
    LoadJob,
    ReaderReport,
    Spans,
    empty_batch,
)
from storebench.loading.batch_memory import Regions
from storebench.loading.loader import BatchLoader, batch_shape, requests_of
from storebench.loading.producer import Producer
from storebench.ranks.group import Group, LostRankError
from storebench.ranks.heartbeat import NO_PROGRESS, RankProgress

_FAMILY = "AF_UNIX"


class Line:
    """A connection to another rank of this node."""

    def __init__(self, connection: Connection, other: str, progress: RankProgress = NO_PROGRESS) -> None:
        self._connection = connection
        self._other = other
        self._progress = progress

    @contextlib.contextmanager
    def _talking(self, *, waits: bool = False) -> Iterator[None]:
        try:
            with self._progress.waiting() if waits else contextlib.nullcontext():
                yield
        except (EOFError, OSError, RuntimeError) as error:
            raise _lost(self._other) from error

    def send(self, message: Any) -> None:
        with self._talking():
            self._connection.send_bytes(pickle.dumps(message))

    def receive(self) -> Any:
        with self._talking(waits=True):
            content = self._connection.recv_bytes()
        return pickle.loads(content)  # noqa: S301 - a rank of the same job wrote it, and proved that it is one

    def send_file(self, handle: int) -> None:
        with self._talking():
            send_handle(self._connection, handle, 0)  # the process id matters on Windows only

    def receive_file(self) -> int:
        """Wait for an open file, and return its descriptor in this process."""
        with self._talking(waits=True):
            return recv_handle(self._connection)

    def close(self) -> None:
        self._connection.close()


def connect_node(group: Group, progress: RankProgress = NO_PROGRESS) -> list[Line]:
    """Connect the ranks of each node with the first one there, and return the connections of this rank."""
    return _answered(group, progress) if group.membership.leads_node else [_asked(group, progress)]


def _answered(group: Group, progress: RankProgress) -> list[Line]:
    """Return the connections of the first rank of a node to the others."""
    me = group.membership
    # Messages are pickled, so the key must keep out processes of other jobs.
    address, key = f"\0storebench-{uuid.uuid4().hex}", os.urandom(32)
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


# Batches of a node that fit into the shared memory.
HALVES = 2


class _Piece(NamedTuple):
    """A rank's piece of a batch, in a message: its place in the shared memory, and all but the pixels."""

    half: int
    rows: slice
    spans: Spans
    labels: Indices
    indices: Indices


class NodeLoader(BatchLoader, ABC):
    """Serve the batches of one rank. The first rank of its node reads them for all ranks there."""

    serves_empty = True

    def __init__(self, job: LoadJob, *, group: Group, workers: int = 0, pin: bool = False) -> None:
        super().__init__(job, workers=workers, pin=pin)
        self._group = group
        self._rows = group.membership.local_ranks * job.batch_size
        self._shape = batch_shape(job)[1:]
        self._lines: list[Line] = []
        self._is_open = False

    def open(self) -> list[ReaderReport]:
        """Connect the ranks of the node, allocate their shared memory, and open the reader on the first rank."""
        # If a thread waits for other ranks, the loop does not.
        quiet = self._group.membership.leads_node and self.workers
        self._lines = connect_node(self._group, NO_PROGRESS if quiet else self._group.progress)
        opened = self._opened()
        self._is_open = True
        return [opened]

    def close(self) -> list[ReaderReport]:
        if not self._is_open:
            return []
        self._is_open = False
        return [self._closed()]

    @abstractmethod
    def _opened(self) -> ReaderReport: ...

    @abstractmethod
    def _closed(self) -> ReaderReport: ...

    def _take_memory(self, file: int | None) -> None:
        size = self._rows * int(np.prod(self._shape))
        self._memory = Regions(file, pin=self.pin)
        self._memory.fit(size)
        if file is None:
            for _ in range(HALVES):
                self._memory.lend()
        places = [half * self._memory.region_bytes for half in range(HALVES)]
        self._halves = [
            self._memory.at(place, self._memory.region_bytes)[:size].reshape(self._rows, *self._shape)
            for place in places
        ]

    def _release(self) -> None:
        for line in self._lines:
            line.close()
        self._memory.close()


class NodeReader(NodeLoader):
    """The loader of the first rank of a node."""

    def _opened(self) -> ReaderReport:
        self._made: deque[Future[LoadedBatch | None]] = deque()
        self._half = 0
        self._producer = Producer(
            dataclasses.replace(self.job, batch_size=self._rows),
            lambda shape: torch.from_numpy(self._halves[self._half][: shape[0]]),
            0 if self.workers else LOOP_WORKER,
        )
        self._take_memory(None)
        for line in self._lines:
            line.send_file(self._memory.file)
        opened = self._producer.open()
        ranks = len(self._lines) + 1
        return dataclasses.replace(opened, notes={**opened.notes, "share": f"one reader for {ranks} ranks"})

    def epoch(self, plan: EpochPlan) -> Iterator[LoadedBatch]:
        """Read the batches of all ranks of the node, one call per step, and yield those of this rank."""
        plans = [plan.batches, *(line.receive() for line in self._lines)]
        steps = list(zip(*plans, strict=True))
        full = dataclasses.replace(
            plan, batches=[np.concatenate(step) for step in steps if any(map(len, step))]
        )
        batches = self._serve(steps, iter(requests_of(full, 1)))
        if self.workers:
            batches = _beside(batches, self._made)
        yield from batches

    def _serve(
        self, steps: Sequence[Sequence[Indices]], requests: Iterator[BatchRequest]
    ) -> Iterator[LoadedBatch]:
        """Yield this rank's piece of each step after sending the others theirs."""
        owed = [0] * len(self._lines)
        produce = self._producer.produce_counted if self.workers else self._producer.produce
        for number, step in enumerate(steps):
            self._half = number % HALVES
            self._wait_for_room(owed, HALVES - 1)
            batch = produce(next(requests)) if any(map(len, step)) else empty_batch(self._shape)
            stops = list(itertools.accumulate(map(len, step)))
            for guest, line in enumerate(self._lines):
                piece = slice(stops[guest], stops[guest + 1])
                line.send(_Piece(self._half, piece, batch.spans, batch.labels[piece], batch.indices[piece]))
                owed[guest] += 1
            rows = slice(stops[0])
            # With the payload bytes of the entire batch, which this rank requested.
            yield dataclasses.replace(
                batch, pixels=batch.pixels[rows], labels=batch.labels[rows], indices=batch.indices[rows]
            )
        self._wait_for_room(owed, 0)

    def _wait_for_room(self, owed: list[int], most: int) -> None:
        """Wait until no other rank holds more than `most` batches."""
        for guest, line in enumerate(self._lines):
            while owed[guest] > most:
                line.receive()
                owed[guest] -= 1

    def _closed(self) -> ReaderReport:
        if any(not made.done() for made in self._made):
            # After an error elsewhere, the thread may still be reading. It ends with the process.
            return ReaderReport(pid=os.getpid(), open_ns=0)
        closed = self._producer.close()
        self._release()
        return closed


class NodeGuest(NodeLoader):
    """The loader of each of the other ranks of a node."""

    def _opened(self) -> ReaderReport:
        [self._line] = self._lines
        self._take_memory(self._line.receive_file())
        return ReaderReport(pid=os.getpid(), open_ns=0)

    def epoch(self, plan: EpochPlan) -> Iterator[LoadedBatch]:
        """Send this rank's batches to the reader once the first is requested, and yield the pieces as they arrive."""
        self._line.send(plan.batches)
        for _ in plan.batches:
            piece: _Piece = self._line.receive()
            yield LoadedBatch(
                pixels=torch.from_numpy(self._halves[piece.half][piece.rows]),
                labels=piece.labels,
                indices=piece.indices,
                spans=piece.spans,
            )
            # The loop asks for the next batch when it has finished with this one.
            self._line.send(None)

    def _closed(self) -> ReaderReport:
        self._release()
        return ReaderReport(pid=os.getpid(), open_ns=0)


def _beside(
    batches: Iterator[LoadedBatch], made: "deque[Future[LoadedBatch | None]]"
) -> Iterator[LoadedBatch]:
    """Yield batches that a thread makes beside the loop; `made` holds those that it has to make or has made."""
    thread = ThreadPoolExecutor(1, "storebench-node-reader")
    made.extend(thread.submit(next, batches, None) for _ in range(HALVES))
    while (batch := made[0].result()) is not None:
        yield batch
        # The loop has finished with this batch.
        made.popleft()
        made.append(thread.submit(next, batches, None))
    made.clear()
    thread.shutdown()
