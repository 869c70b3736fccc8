"""The messages of one epoch of a data store, posted one step ahead of the batch that needs them."""

import collections
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch.distributed as dist

from storebench.arrays import Bytes
from storebench.errors import CellFailedError
from storebench.formats.base import Indices
from storebench.ranks.held import ByteCounts
from storebench.ranks.messages import Messages
from storebench.ranks.owners import Positions, Transfer
from storebench.ranks.room import STEPS_UNDER_WAY

Pack = Callable[[Indices], Bytes]
"""Returns a copy of samples held by this rank, as the content of a message."""


@dataclass(kw_only=True)
class Traffic:
    """Samples, bytes and time of one rank's exchange in one epoch."""

    from_memory: int = 0
    from_ranks: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    exchange_ns: int = 0
    waited_ns: int = 0
    after_last_ns: int = 0
    buffer_bytes: int = 0
    most_buffer_bytes: int = 0

    def take(self, size: int) -> None:
        """Count the buffer of a message: positive when it is posted, negative when it is released."""
        self.buffer_bytes += size
        self.most_buffer_bytes = max(self.most_buffer_bytes, self.buffer_bytes)


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """A batch that has arrived: rows held by this rank, and messages with the other rows."""

    held: Positions
    messages: list[tuple[Positions, Bytes]]


@dataclass(kw_only=True)
class _Incoming:
    """The messages of one step that this rank receives."""

    transfer: Transfer
    messages: list[tuple[Positions, Bytes]] = field(default_factory=list)
    works: list[dist.Work] = field(default_factory=list)


@dataclass(kw_only=True)
class _Outgoing:
    """The messages of one step that this rank sends. Their content must not change until they have arrived."""

    contents: list[Bytes] = field(default_factory=list)
    works: list[dist.Work] = field(default_factory=list)


class Deliveries:
    """Exchange the samples of one epoch between ranks, step by step; every rank goes through the same steps."""

    def __init__(
        self,
        transfers: Iterable[Transfer],
        *,
        pack: Pack,
        sizes: ByteCounts,
        messages: Messages,
        traffic: Traffic,
    ) -> None:
        self._transfers = iter(transfers)
        self._pack = pack
        self._sizes = sizes
        self._messages = messages
        self._traffic = traffic
        self._number = 0
        self._incoming: collections.deque[_Incoming] = collections.deque()
        self._outgoing: collections.deque[_Outgoing] = collections.deque()

    def begin(self) -> None:
        """Post the messages of the first step."""
        start = time.perf_counter_ns()
        self._post()
        self._traffic.exchange_ns += time.perf_counter_ns() - start

    def take(self, samples: Indices) -> Arrived:
        """Return this rank's batch of the next step, and post the messages of the step after it."""
        start = time.perf_counter_ns()
        if not self._incoming or not np.array_equal(self._incoming[0].transfer.samples, samples):
            raise CellFailedError("the data store was asked for a batch that is not the next one of its plan")
        current = self._incoming.popleft()
        self._post()
        self._traffic.waited_ns += self._wait(current.works)
        traffic = self._traffic
        for rows, content in current.messages:
            traffic.from_ranks += len(rows)
            traffic.received_bytes += content.nbytes
            traffic.take(-content.nbytes)
        traffic.from_memory += len(current.transfer.held)
        traffic.exchange_ns += time.perf_counter_ns() - start
        return Arrived(held=current.transfer.held, messages=current.messages)

    def skip(self) -> None:
        """Take part in a step in which this rank has no samples and only sends."""
        self.take(np.empty(0, np.int64))

    def finish(self) -> None:
        """Wait until all sent messages have arrived."""
        start, traffic = time.perf_counter_ns(), self._traffic
        while self._outgoing:
            self._complete(self._outgoing.popleft())
        traffic.after_last_ns = time.perf_counter_ns() - start
        traffic.exchange_ns += traffic.after_last_ns

    def _post(self) -> None:
        """Post the messages of the next step, if there is one."""
        transfer = next(self._transfers, None)
        if transfer is None:
            return
        while len(self._outgoing) >= STEPS_UNDER_WAY:
            self._traffic.waited_ns += self._complete(self._outgoing.popleft())
        self._incoming.append(self._receive(transfer))
        self._outgoing.append(self._send(transfer))
        self._number += 1

    def _receive(self, transfer: Transfer) -> _Incoming:
        incoming = _Incoming(transfer=transfer)
        for source, rows in transfer.receive.items():
            content = np.empty(int(self._sizes[transfer.samples[rows]].sum()), np.uint8)
            incoming.messages.append((rows, content))
            incoming.works.append(self._messages.receive(content, source, self._number))
            self._traffic.take(content.nbytes)
        return incoming

    def _send(self, transfer: Transfer) -> _Outgoing:
        outgoing = _Outgoing()
        for target, samples in transfer.send.items():
            content = self._pack(samples)
            outgoing.contents.append(content)
            outgoing.works.append(self._messages.send(content, target, self._number))
            self._traffic.sent_bytes += content.nbytes
            self._traffic.take(content.nbytes)
        return outgoing

    def _complete(self, outgoing: _Outgoing) -> int:
        """Wait until this rank's messages of a step have arrived, and return the nanoseconds of the wait."""
        waited_ns = self._wait(outgoing.works)
        for content in outgoing.contents:
            self._traffic.take(-content.nbytes)
        return waited_ns

    def _wait(self, works: Sequence[dist.Work]) -> int:
        if not works:
            return 0
        start = time.perf_counter_ns()
        self._messages.wait(works)
        return time.perf_counter_ns() - start
