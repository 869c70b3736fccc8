"""The steps of one loader's loop, as they are seen; nothing here ever raises into the loop."""

import collections
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from storebench.profiling.files import Files, files_of
from storebench.profiling.guard import Guard, guarded
from storebench.profiling.making import Made, Maker, clock
from storebench.profiling.sampling import Place, Seen

MOST_STEPS = 50_000
"""The last so many steps are kept."""


@dataclass(slots=True, kw_only=True)
class Step:
    """One step of the loop: the wait for its batch, and the time until the next request, None if there was none."""

    place: int  # in its epoch
    wait_ns: int  # in the first step, that for `iter()` as well
    wait_cpu_ns: int  # of the thread that waits
    made: Made | None
    loop_ns: int | None = None
    cpu_ns: int = 0  # of this process, wait and loop


@dataclass(kw_only=True)
class Recorder(Guard):
    """Record the steps of a loop."""

    workers: int = 0
    makes: bool = False  # whether requests make the batches: the loader is not of torch
    maker: Maker | None = None  # of batches that this process makes
    steps: collections.deque[Step] = field(default_factory=lambda: collections.deque(maxlen=MOST_STEPS))
    epochs: int = 0
    places: collections.Counter[Place] = field(default_factory=collections.Counter)
    first_files: Files | None = None

    def __post_init__(self) -> None:
        self._depth = 0  # of calls for a batch: loaders iterate others
        self._place = 0
        self._open: Step | None = None  # given, and the next not yet requested
        self._asked_ns = self._given_ns = self._iter_ns = 0
        self._asked_cpu_ns = self._asked_thread_cpu_ns = 0
        self._made: Made | None = None

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Note that an epoch begins with a call of `iter()`; nothing if that is part of another call or of a request."""
        if self._depth:
            yield
            return
        self.ended()
        began_ns, self._depth = clock(), 1
        try:
            yield
        finally:
            self._depth = self._place = 0
            self.epochs += 1
            self._iter_ns = clock() - began_ns

    @guarded
    def asked(self) -> None:
        """Note that the loop asks for a batch; nothing if that is part of another request."""
        self._depth += 1
        if self._depth > 1:
            return
        now, cpu_ns = clock(), time.process_time_ns()
        if self.makes:
            self.maker = self.maker or Maker()
            self.maker.begin()
        if self._open is not None:
            self._open.loop_ns, self._open.cpu_ns = now - self._given_ns, cpu_ns - self._asked_cpu_ns
            self._open = None
        self._asked_ns, self._asked_cpu_ns, self._asked_thread_cpu_ns = now, cpu_ns, time.thread_time_ns()

    @guarded
    def made(self, made: Made) -> None:
        """Note the times of the batch that is about to be given."""
        self._made = made
        self._see(made.seen)

    @guarded
    def given(self) -> None:
        """Note that the loop gets the batch."""
        self._depth -= 1
        if self._depth:
            return
        self._given_ns = clock()
        if self.makes and self.maker is not None and (made := self.maker.end()) is not None:
            self.made(made)
        self._open = Step(
            place=self._place,
            wait_ns=self._given_ns - self._asked_ns + self._iter_ns,
            wait_cpu_ns=time.thread_time_ns() - self._asked_thread_cpu_ns,
            made=self._made,
        )
        self.steps.append(self._open)
        self._made = None
        self._place += 1
        self._iter_ns = 0

    @guarded
    def ended(self) -> None:
        """Note that no batch was given: the epoch has ended, or the loader failed, or its user."""
        self._depth = max(0, self._depth - 1)
        if self._depth:
            return
        self._open = None
        if self.maker is not None:
            self._see(self.maker.stop())
            self.maker = None

    def _see(self, seen: Seen) -> None:
        self.places.update(seen.places)
        if self.first_files is None:
            self.first_files = files_of(seen.files)
