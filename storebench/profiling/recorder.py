"""The steps of one loader's loop, as they are seen; nothing here ever raises into the loop."""

import collections
import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, TypeVar

from storebench.probes.counters import OtherWork
from storebench.profiling.files import Files, files_of
from storebench.profiling.making import Made, Maker, Stamped, clock, delayed_ns, open_schedule
from storebench.profiling.sampling import Place, Sampler
from storebench.system.unexpected import unexpected_line

MOST_STEPS = 50_000
"""The last so many steps are kept."""

_DELAY_EVERY_NS = 5_000_000

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(slots=True, kw_only=True)
class Step:
    """One step of the loop: the wait for its batch, and the time until the next request, None if there was none."""

    place: int  # in its epoch
    wait_ns: int
    wait_cpu_ns: int
    ready: int | None
    loop_ns: int | None = None
    made: Made | None = None
    pickling_ns: int = 0
    unpickling_ns: int = 0
    pinning_ns: int = 0


@dataclass(kw_only=True)
class Epoch:
    """The beginning of one epoch: when it was asked for, and the time of `iter()` itself."""

    asked_ns: int
    iter_ns: int = 0


def _guarded(
    method: Callable[Concatenate["Recorder", _P], _R],
) -> Callable[Concatenate["Recorder", _P], _R | None]:
    """End the recording, with one line, at the first failure of a method."""

    def guarded(self: "Recorder", /, *args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        if self.failure:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the user's loop goes on
            self.failure = f"{type(error).__name__}: {error}"
            say(f"storebench profile: stopped; the loop goes on. {unexpected_line(error)}")
            return None

    return guarded


def _children_cpu_s() -> float:
    """Return the CPU seconds of this process's workers that still run."""
    import psutil

    seconds = 0.0
    for child in multiprocessing.active_children():
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(child.pid).cpu_times()
            seconds += times.user + times.system
    return seconds


def say(text: str) -> None:
    """Write to standard error, if there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - a notebook or a script has no other place for it


@dataclass(kw_only=True)
class Recorder:
    """Record the steps of a loop."""

    workers: int = 0
    prefetched: int = 0
    opaque: str = ""  # why the inside of the loader is not seen
    steps: collections.deque[Step] = field(default_factory=lambda: collections.deque(maxlen=MOST_STEPS))
    step_count: int = 0
    epochs: list[Epoch] = field(default_factory=list)
    places: collections.Counter[Place] = field(default_factory=collections.Counter)
    files: set[str] = field(default_factory=set)
    first_files: Files | None = None
    init_ns: int = 0  # the longest of a worker
    main_cpu_ns: int = 0
    main_delayed_ns: int = 0
    watched_ns: int = 0
    failure: str = ""

    def __post_init__(self) -> None:
        self._depth = 0
        self._open: Step | None = None  # given, and the next not yet requested
        self._asked_ns = self._given_ns = self._cpu_ns = 0
        self._ready: int | None = None
        self._place = 0
        self._arrived: Stamped | None = None
        self._made: Made | None = None
        self._sampler: Sampler | None = None
        self._thread_schedule: int | None = None
        self._last: tuple[int, int, int] | None = None  # time, CPU time, delay
        self.maker: Maker | None = None  # of a loader without workers
        self._is_beginning = False
        self._other_work: OtherWork | None = None

    def others_cores(self) -> float:
        """Return how many cores other processes have kept busy since the first epoch began."""
        if self._other_work is None:
            return 0.0
        conditions = self._other_work.conditions()
        return (conditions.others_cpu_s or 0.0) / max(conditions.wall_s, 1e-9)

    @property
    def is_inside(self) -> bool:
        """Whether `iter()` or a request for a batch is going on."""
        return self._is_beginning or self._depth > 0

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Note that `iter()` is called, and how long it takes."""
        self._epoch_asked()
        self._is_beginning = True
        try:
            yield
        finally:
            self._is_beginning = False
            self._epoch_began()

    @_guarded
    def _epoch_asked(self) -> None:
        if self._other_work is None:
            self._other_work = OtherWork(_children_cpu_s)
        self._rest()
        self._depth = 0
        self.epochs.append(Epoch(asked_ns=clock()))
        self._place = 0

    @_guarded
    def _epoch_began(self) -> None:
        self.epochs[-1].iter_ns = clock() - self.epochs[-1].asked_ns

    @_guarded
    def asked(self, ready: Callable[[], int] | None = None) -> None:
        """Note that the loop asks for a batch; a call within another adds the number of `ready` batches only."""
        if ready is not None:
            self._ready = ready()
        self._depth += 1
        if self._depth > 1:
            return
        now = clock()
        if self._open is not None:
            self._open.loop_ns, self._open = now - self._given_ns, None
        self._watch(now)
        if self._sampler is None and not self.workers and self.maker is None and not self.opaque:
            self._sampler = Sampler(lambda: self._depth > 0)
        self._asked_ns, self._cpu_ns = now, time.thread_time_ns()

    @_guarded
    def arrived(self, stamped: Stamped) -> None:
        """Note that a batch of a worker is about to be given."""
        self._arrived, self._made = stamped, stamped.made

    @_guarded
    def made(self, made: Made) -> None:
        """Note that this process has made a batch, which is about to be given."""
        self._made = made

    @_guarded
    def given(self) -> None:
        """Note that the loop gets the batch."""
        self._depth -= 1
        if self._depth:
            return
        now = clock()
        step = Step(
            place=self._place,
            wait_ns=now - self._asked_ns,
            wait_cpu_ns=time.thread_time_ns() - self._cpu_ns,
            ready=self._ready,
            made=self._made,
        )
        if (stamped := self._arrived) is not None:
            step.pickling_ns, step.unpickling_ns = stamped.pickling_ns, stamped.unpickling_ns
            step.pinning_ns = stamped.pinning_ns
        if (made := self._made) is not None:
            self._see(made.places, made.files)
            self.init_ns = max(self.init_ns, made.init_ns)
        self._arrived = self._made = self._ready = None
        self.steps.append(step)
        self.step_count += 1
        self._place += 1
        self._open, self._given_ns = step, clock()

    @_guarded
    def ended(self) -> None:
        """Note that no batch was given: the epoch has ended, or the loader failed."""
        self._depth = max(0, self._depth - 1)
        if not self._depth:
            self._rest()

    def _see(self, places: Mapping[Place, int], files: Iterable[str]) -> None:
        self.places.update(places)
        self.files.update(files)
        if self.first_files is None and self.files:
            self.first_files = files_of(self.files)

    def _rest(self) -> None:
        """Stop what costs anything between two epochs."""
        self._open = self._last = None
        if self._sampler is not None:
            self._sampler.stop()
            self._see(*self._sampler.take())
            self._sampler = None
        if self.maker is not None:
            self._see(*self.maker.stop())
            self.maker = None
        if self._thread_schedule is not None:
            os.close(self._thread_schedule)
            self._thread_schedule = None

    def _watch(self, now: int) -> None:
        """Count this process's CPU time, and how long this thread was delayed."""
        if self._last is not None and now - self._last[0] < _DELAY_EVERY_NS:
            return
        if self._thread_schedule is None:
            self._thread_schedule = open_schedule()
        counts = now, time.process_time_ns(), delayed_ns(self._thread_schedule)
        if self._last is not None:
            self.watched_ns += counts[0] - self._last[0]
            self.main_cpu_ns += counts[1] - self._last[1]
            self.main_delayed_ns += counts[2] - self._last[2]
        self._last = counts
