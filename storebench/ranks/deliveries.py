"""The messages of one epoch of a data store, posted a step ahead of the batch that needs them.

A step's messages are posted when the batch before it is being made. Before it posts a step, a rank waits until the
messages that it sent for the step before the previous one have arrived, so two steps are under way at most.
"""

import collections
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch.distributed as dist

from storebench.errors import CellFailedError
from storebench.formats.base import Indices
from storebench.ranks.held import Content, Sizes
from storebench.ranks.messages import Messages
from storebench.ranks.owners import Owners, Rows, Transfer, transfer_of
from storebench.ranks.room import STEPS_UNDER_WAY

Pack = Callable[[Indices], Content]
"""Returns a copy of samples that this rank holds, as the content of a message."""


@dataclass(kw_only=True)
class Traffic:
    """What the exchange of one epoch took, on one rank.

    Attributes
    ----------
    from_store, from_memory, from_ranks
        Samples that it read from the store, had in its own memory, and received.
    sent_bytes, received_bytes
        Bytes of messages.
    exchange_ns, waited_ns
        Time of packing, posting and waiting for messages, and of the waiting alone.
    buffer_bytes, most_buffer_bytes
        Bytes of the messages under way now, and the most at any time.
    """

    from_store: int = 0
    from_memory: int = 0
    from_ranks: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    exchange_ns: int = 0
    waited_ns: int = 0
    buffer_bytes: int = 0
    most_buffer_bytes: int = 0

    def take(self, size: int) -> None:
        """Count the buffer of a message that is posted, or that is done with if `size` is negative."""
        self.buffer_bytes += size
        self.most_buffer_bytes = max(self.most_buffer_bytes, self.buffer_bytes)


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """A batch as it arrives: rows that this rank holds itself, and messages with the others.

    Attributes
    ----------
    held
        Rows of samples that this rank holds, int64.
    messages
        Rows, int64, and the content that fills them, in their order.
    """

    held: Rows
    messages: list[tuple[Rows, Content]]


@dataclass(kw_only=True)
class _Incoming:
    """The messages of one step that this rank receives."""

    transfer: Transfer
    messages: list[tuple[Rows, Content]] = field(default_factory=list)
    works: list[dist.Work] = field(default_factory=list)


@dataclass(kw_only=True)
class _Outgoing:
    """The messages of one step that this rank sends; nobody may write to their content until they have arrived."""

    contents: list[Content] = field(default_factory=list)
    works: list[dist.Work] = field(default_factory=list)


class Deliveries:
    """Exchange the samples of one epoch between ranks, step by step; every rank goes through the same steps.

    Parameters
    ----------
    steps
        The batches of all ranks, step by step.
    owners
        The owner of each sample.
    rank
        This rank.
    pack
        Packs samples that this rank holds.
    sizes
        Bytes of each sample, int64 [count].
    messages
        Sends and receives.
    traffic
        Counts what is exchanged.
    """

    def __init__(
        self,
        steps: Iterable[Sequence[Indices]],
        *,
        owners: Owners,
        rank: int,
        pack: Pack,
        sizes: Sizes,
        messages: Messages,
        traffic: Traffic,
    ) -> None:
        self._steps: Iterator[Sequence[Indices]] = iter(steps)
        self._owners = owners
        self._rank = rank
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
        """Return this rank's batch of the step whose turn it is, and post the messages of the next step.

        Parameters
        ----------
        samples
            The samples that are asked for: those of the plan.

        Raises
        ------
        CellFailedError
            It is another batch's turn.
        RuntimeError
            Another rank has gone.
        """
        start = time.perf_counter_ns()
        if not self._incoming or not np.array_equal(self._incoming[0].transfer.samples, samples):
            raise CellFailedError("the data store was asked for a batch that is not the next one of its plan")
        current = self._incoming.popleft()
        self._post()
        self._wait(current.works)
        traffic = self._traffic
        for rows, content in current.messages:
            traffic.from_ranks += len(rows)
            traffic.take(-content.nbytes)
        traffic.from_memory += len(current.transfer.held)
        traffic.exchange_ns += time.perf_counter_ns() - start
        return Arrived(held=current.transfer.held, messages=current.messages)

    def skip(self) -> None:
        """Pass a step in which this rank has no sample: it only sends."""
        self.take(np.empty(0, np.int64))

    def finish(self) -> None:
        """Wait until everything that was sent has arrived."""
        start = time.perf_counter_ns()
        while self._outgoing:
            self._complete(self._outgoing.popleft())
        self._traffic.exchange_ns += time.perf_counter_ns() - start

    def _post(self) -> None:
        """Post the messages of the next step, if there is one."""
        pieces = next(self._steps, None)
        if pieces is None:
            return
        while len(self._outgoing) >= STEPS_UNDER_WAY:
            self._complete(self._outgoing.popleft())
        transfer = transfer_of(pieces, self._owners, self._rank)
        self._incoming.append(self._receive(transfer))
        self._outgoing.append(self._send(transfer))
        self._number += 1

    def _receive(self, transfer: Transfer) -> _Incoming:
        incoming = _Incoming(transfer=transfer)
        for source, rows in transfer.receive.items():
            content = np.empty(int(self._sizes[transfer.samples[rows]].sum()), np.uint8)
            incoming.messages.append((rows, content))
            incoming.works.append(self._messages.receive(content, source, self._number))
            self._traffic.received_bytes += content.nbytes
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

    def _complete(self, outgoing: _Outgoing) -> None:
        """Wait until the messages of a step that this rank sent have arrived."""
        self._wait(outgoing.works)
        for content in outgoing.contents:
            self._traffic.take(-content.nbytes)

    def _wait(self, works: Sequence[dist.Work]) -> None:
        if not works:
            return
        start = time.perf_counter_ns()
        self._messages.wait(works)
        self._traffic.waited_ns += time.perf_counter_ns() - start
