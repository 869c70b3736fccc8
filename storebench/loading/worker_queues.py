"""Producers beside the loop, each in a separate lane, and the protocol between the two sides."""

import collections
import enum
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import torch

from storebench.loading.batch import Allocate, BatchRequest, EpochPlan, LoadedBatch, LoadJob, ReaderReport
from storebench.loading.loader import BatchLoader, batch_memory, requests_of
from storebench.loading.producer import Producer, lasting_memory
from storebench.system.interrupts import Held

# Batches that a lane has memory for: one with the loop, one ready, one being filled.
SLOTS = 3


class Ask(enum.Enum):
    """The loop's requests to a producer, besides its share of an epoch (a list of `BatchRequest`)."""

    OPEN = enum.auto()
    CLOSE = enum.auto()
    RELEASE = enum.auto()
    ABANDON = enum.auto()
    STOP = enum.auto()


class Channel(Protocol):
    """One side's end of a lane: messages arrive in the order in which they were sent."""

    lost: bool

    def send(self, message: Any, /) -> None:
        """Send without waiting for an answer."""

    def receive(self) -> Any:
        """Wait for the next message."""

    def waiting(self) -> bool:
        """Return True if a message has arrived."""


class Slots:
    """The memory of a lane's batches, as its producer sees it: a few buffers, some of them free."""

    def __init__(self, buffers: Sequence[Allocate]) -> None:
        self._buffers = buffers
        self._free: list[Allocate] = []
        self._lent: collections.deque[Allocate] = collections.deque()
        self._current = buffers[0]
        self._rows = 0

    @property
    def exhausted(self) -> bool:
        return not self._free

    def reset(self, rows: int) -> None:
        """Take all buffers back: a new epoch begins, whose largest batch has `rows` samples."""
        self._free = list(reversed(self._buffers))
        self._lent.clear()
        self._rows = rows

    def lend(self) -> None:
        """Choose the buffer of the next batch."""
        self._current = self._free.pop()
        self._lent.append(self._current)

    def take_back(self) -> None:
        """Free the buffer that was lent first: the loop asks for batches in order."""
        self._free.append(self._lent.popleft())

    def allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the chosen buffer, cut to `shape`; the producer allocates with this method."""
        if shape[0] < self._rows:
            return self._current((self._rows, *shape[1:]))[: shape[0]]
        return self._current(shape)


def serve(channel: Channel, producer: Producer, slots: Slots) -> None:
    """Answer the loop's requests until it sends `Ask.STOP`; runs in a producer's thread or process."""
    answers = {Ask.OPEN: producer.open, Ask.CLOSE: producer.close, Ask.ABANDON: lambda: Ask.ABANDON}
    message = channel.receive()
    while message is not Ask.STOP:
        if isinstance(message, Ask):
            # RELEASE comes here for the last batches of a share; the next share takes everything back anyway.
            if message in answers:
                channel.send(attempt(answers[message]))
            message = channel.receive()
        else:
            message = _serve_share(channel, producer, slots, message) or channel.receive()


def _serve_share(
    channel: Channel, producer: Producer, slots: Slots, requests: Sequence[BatchRequest]
) -> Ask | None:
    """Make the batches of an epoch's share; return what the loop wants instead, if it does so on the way."""
    slots.reset(rows=max(len(request.indices) for request in requests))
    for request in requests:
        while channel.waiting() or slots.exhausted:
            ask: Ask = channel.receive()
            if ask is not Ask.RELEASE:
                return ask
            slots.take_back()
        slots.lend()
        channel.send(attempt(producer.produce_counted, request))
    return None


def attempt(work: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return work(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the loop: there it is raised
        return error
    except BaseException as error:  # noqa: BLE001 - a producer's end is not the end of the training
        ended = RuntimeError(f"a producer of batches raised {type(error).__name__}: {error}")
        ended.__cause__ = error
        return ended


class Lane(ABC):
    """The loop's side of one producer."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._asked = 0
        self._taken = 0

    def begin(self, requests: list[BatchRequest]) -> None:
        """Send the producer its share of an epoch; it starts at once."""
        self._asked, self._taken = len(requests), 0
        if requests:
            self.channel.send(self._message(requests))

    def take(self) -> LoadedBatch:
        """Wait for the next batch, or raise the error that prevented it."""
        item = self.channel.receive()
        self._taken += 1
        if isinstance(item, BaseException):
            raise item
        return self._batch(item)

    def release(self) -> None:
        """Release the batch that was taken last, so that it may be overwritten."""
        self.channel.send(Ask.RELEASE)

    def abandon(self) -> None:
        """Let the producer drop the rest of its share, and wait until it has."""
        if self._taken == self._asked or self.channel.lost:
            return
        self._taken = self._asked
        self.channel.send(Ask.ABANDON)
        while (item := self.channel.receive()) is not Ask.ABANDON and not self.channel.lost:
            if not isinstance(item, BaseException):
                self._batch(item)  # its memory is free again

    def answer(self) -> ReaderReport | BaseException:
        """Wait for the answer to a request, skipping batches that an interrupted epoch has left."""
        while not isinstance(message := self.channel.receive(), ReaderReport | BaseException):
            pass
        return message

    def _message(self, requests: list[BatchRequest]) -> Any:
        return requests

    def _batch(self, item: Any) -> LoadedBatch:
        assert isinstance(item, LoadedBatch)
        return item

    @abstractmethod
    def stop(self) -> None:
        """End the thread or process, and release its memory."""


class LaneLoader(BatchLoader):
    """Serve an epoch from lanes, in turn. With 0 workers the loop's own thread makes the batches."""

    asks_at_once: ClassVar[bool] = True  # Whether the readers may be opened and closed at the same time.

    def __init__(self, job: LoadJob, *, workers: int, pin: bool = False) -> None:
        super().__init__(job, workers=workers, pin=pin)
        self._own = Producer(job, batch_memory(job, pin=pin), lasting=lasting_memory(pin=pin))
        self._lanes: list[Lane] = []
        self._is_open = False
        self._epoch: object = None

    @property
    def lost(self) -> bool:
        return any(lane.channel.lost for lane in self._lanes)

    @abstractmethod
    def _start_lane(self, worker: int) -> Lane:
        """Start producer number `worker`."""

    def open(self) -> list[ReaderReport]:
        self._is_open = True
        if not self.workers:
            return [self._own.open()]
        try:
            for worker in range(self.workers):
                with Held(blocked=()):  # half a lane could not be stopped
                    self._lanes.append(self._start_lane(worker))
            return self._ask(Ask.OPEN)
        except BaseException:
            self.close()
            raise

    def epoch(self, plan: EpochPlan) -> Iterator[LoadedBatch]:
        """Serve the plan's batches in order, each made ahead as far as its lane has memory."""
        if not self._is_open:
            raise RuntimeError("the loader is not open")
        requests = requests_of(plan, max(1, self.workers))
        return self._from_lanes(requests) if self.workers else map(self._own.produce, requests)

    def close(self) -> list[ReaderReport]:
        """Close every reader and end the threads or processes, in the middle of an epoch as well."""
        if not self._is_open:
            return []
        self._is_open = False
        if not self.workers:
            return [self._own.close()]
        try:
            self._abandon()
            return self._ask(Ask.CLOSE)
        finally:
            while self._lanes:
                self._lanes.pop().stop()

    def _from_lanes(self, requests: list[BatchRequest]) -> Iterator[LoadedBatch]:
        self._abandon()
        epoch = self._epoch = object()
        for number, lane in enumerate(self._lanes):
            lane.begin(requests[number :: len(self._lanes)])
        for lane in itertools.islice(itertools.cycle(self._lanes), len(requests)):
            yield lane.take()
            if self._epoch is not epoch:
                raise RuntimeError("this epoch was abandoned: the loader was closed or has begun another one")
            # Being asked for the next batch means that the loop has done with this one.
            lane.release()

    def _abandon(self) -> None:
        """Drop the rest of an earlier epoch; its producers stop by themselves after a few batches."""
        self._epoch = None
        for lane in self._lanes:
            lane.abandon()

    def _ask(self, request: Ask) -> list[ReaderReport]:
        """Ask every living producer and collect every answer, so that none is left over; then raise the first error."""
        lanes = [lane for lane in self._lanes if not lane.channel.lost]
        answers: list[ReaderReport | BaseException] = []
        for group in [lanes] if self.asks_at_once else [[lane] for lane in lanes]:
            for lane in group:
                lane.channel.send(request)
            answers.extend(lane.answer() for lane in group)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, ReaderReport)]
