"""The steps of one loader's loop, as they are seen; nothing here ever raises into the loop."""

import collections
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from storebench.profiling.files import Files, files_of
from storebench.profiling.guard import Guard, guarded
from storebench.profiling.making import Made, Maker, Schedule, clock
from storebench.profiling.sampling import Place, Seen

MOST_STEPS = 50_000
"""The last so many steps are kept."""


@dataclass(slots=True, kw_only=True)
class Step:
    """One step of the loop: the wait for its batch, and the time until the next request, None if there was none."""

    place: int  # in its epoch
    asked_ns: int
    wait_ns: int  # in the first step, that for `iter()` as well
    wait_cpu_ns: int  # of the thread that waits; if there are no workers, of the process
    wait_delayed_ns: int  # of the loop's thread, ready to run without a core
    ready: int | None  # batches that were made and not yet taken
    made: Made | None
    loop_ns: int | None = None
    delayed_ns: int = 0  # as in the wait
    cpu_ns: int = 0  # of this process, wait and loop


@dataclass(kw_only=True)
class Recorder(Guard):
    """Record the steps of a loop."""

    making: ClassVar["Recorder | None"] = None
    """The recorder of a loader not of torch whose batch is being made."""

    workers: int = 0
    batch_size: int | None = None
    prefetched: int = 0
    tensors: int = 1  # of the first batch
    makes: bool = False  # whether requests make the batches: the loader is not of torch
    maker: Maker | None = None  # of batches that this process makes
    steps: collections.deque[Step] = field(default_factory=lambda: collections.deque(maxlen=MOST_STEPS))
    epochs: int = 0
    ends_ns: int = 0  # of epochs, from the last request on
    places: collections.Counter[Place] = field(default_factory=collections.Counter)
    io_waits: int = 0  # of the samples
    files: Files | None = None

    def __post_init__(self) -> None:
        self._depth = 0  # of calls for a batch: loaders iterate others
        self._place = 0
        self._open: Step | None = None  # given, and the next not yet requested
        self._asked_ns = self._given_ns = self._iter_ns = 0
        self._asked_cpu_ns = self._asked_wait_cpu_ns = self._asked_delayed_ns = self._given_delayed_ns = 0
        self._ready: int | None = None
        self._made: Made | None = None
        self._schedule: Schedule | None = None

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Note that an epoch begins with a call of `iter()`; nothing if that is part of another call or of a request."""
        if self._depth:
            yield
            return
        self.ended()
        began_ns, self._depth = clock(), 1
        self._found_inside(True)
        try:
            yield
        finally:
            self._found_inside(False)
            self._depth = self._place = 0
            self.epochs += 1
            self._iter_ns = clock() - began_ns

    @guarded
    def asked(self, ready: Callable[[], int] | None = None) -> None:
        """Note that the loop asks for a batch; nothing but the batches that are `ready` if that is part of another request."""
        if ready is not None:
            self._ready = ready()
        self._depth += 1
        if self._depth > 1:
            return
        now, cpu_ns = clock(), time.process_time_ns()
        self._schedule = self._schedule or Schedule()
        self._asked_delayed_ns = self._schedule.delayed_ns()
        if self._open is not None:
            self._open.loop_ns, self._open.cpu_ns = now - self._given_ns, cpu_ns - self._asked_cpu_ns
            self._open.delayed_ns = self._asked_delayed_ns - self._given_delayed_ns
            self._open = None
        self._asked_ns, self._asked_cpu_ns, self._asked_wait_cpu_ns = now, cpu_ns, self._cpu_clock()
        if self.makes:
            self._found_inside(True)
            self.maker = self.maker or Maker()
            self.maker.begin()

    @guarded
    def made(self, made: Made) -> None:
        """Note the times of the batch that is about to be given."""
        self._made = made
        if made.told is not None:
            self._see(made.told.seen)

    @guarded
    def given(self, batch: Any) -> None:
        """Note that the loop gets a batch."""
        self._depth -= 1
        if self._depth:
            return
        self._given_ns = clock()
        if self.makes and self.maker is not None and (made := self.maker.end()) is not None:
            self.made(made)
        self._found_inside(False)
        self._given_delayed_ns = self._schedule.delayed_ns() if self._schedule else 0
        self._open = Step(
            place=self._place,
            asked_ns=self._asked_ns - self._iter_ns,
            wait_ns=self._given_ns - self._asked_ns + self._iter_ns,
            wait_cpu_ns=self._cpu_clock() - self._asked_wait_cpu_ns,
            wait_delayed_ns=self._given_delayed_ns - self._asked_delayed_ns,
            ready=self._ready,
            made=self._made,
        )
        if not self.steps:
            self.tensors = max(1, _count_tensors(batch))
        self.steps.append(self._open)
        self._made = self._ready = None
        self._place += 1
        self._iter_ns = 0

    @guarded
    def ended(self) -> None:
        """Note that no batch was given: the epoch has ended, or the loader failed, or its user."""
        is_request = self._depth == 1
        self._depth = max(0, self._depth - 1)
        if self._depth:
            return
        self._found_inside(False)
        if is_request:
            self.ends_ns += clock() - self._asked_ns
        self._open = None
        if self._schedule is not None:
            self._schedule.close()
            self._schedule = None
        if self.maker is not None:
            self._see(self.maker.stop())
            self.maker = None

    def _cpu_clock(self) -> int:
        return time.thread_time_ns() if self.workers else time.process_time_ns()

    def _found_inside(self, is_making: bool) -> None:
        """Let torch's loaders that are used while this one makes a batch report here."""
        if self.makes:
            Recorder.making = self if is_making else None
        elif Recorder.making is self:
            Recorder.making = None

    def _see(self, seen: Seen) -> None:
        self.places.update(seen.places)
        self.io_waits += seen.io_waits
        self.files = self.files.beside(seen.files) if self.files else files_of(seen.files)


def _count_tensors(batch: Any) -> int:
    if isinstance(batch, dict):
        return sum(map(_count_tensors, batch.values()))
    if isinstance(batch, (list, tuple)):
        return sum(map(_count_tensors, batch))
    return int(hasattr(batch, "shape"))
