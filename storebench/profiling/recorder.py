"""The steps of one loader's loop, as they are seen; nothing here ever raises into the loop."""

import collections
import contextlib
import math
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from storebench.probes.counters import OtherWork
from storebench.profiling.batch_times import (
    BatchTimer,
    BatchTimes,
    Moment,
    ThreadClock,
    TimedFetcher,
    clock,
    time_batches,
)
from storebench.profiling.guard import guarded
from storebench.profiling.memory import MemoryWatch, end_of, objects_of
from storebench.profiling.stacks import Seen
from storebench.profiling.watch import Watch, asking

_Batch = TypeVar("_Batch")

# The most steps that are kept, the last ones.
_MOST_STEPS = 50_000
# The most steps in a row that are not measured, and so kept in brief.
_MOST_LEFT = 10_000
# Batches whose ends are watched at once.
_MOST_KEPT = 8
# Batches of more tensors take a while to be freed, which belongs to handing them over.
MANY_TENSORS = 8
# The kernel's counters of a moment are read again after this time.
_SAME_NS = 10_000
# After so long, steps of loops without workers that are shorter than this are measured at random, so that measuring
# takes about an eighth of a percent.
ALL_NS, _LONG_NS = 10_000_000_000, 280_000_000


@dataclass(slots=True, kw_only=True)
class LoopStep:
    """One step of the loop: the wait for its batch, and the time until the next request, None if there was none.

    Of a step that was not measured, only times are known.
    """

    place: int  # in its epoch
    asked_ns: int
    wait_ns: int  # in the first step, that for `iter()` as well
    ready: int | None  # batches that were made and not yet taken
    made: BatchTimes | None
    wait_cpu_ns: int | None = None  # of the thread that waits; if there are no workers, of the process
    wait_delayed_ns: int | None = None  # of the loop's thread, ready to run without a core
    loop_ns: int | None = None  # without `elsewhere_ns`
    elsewhere_ns: int = 0  # of the loop's thread, in requests to other loaders that are watched
    delayed_ns: int | None = None  # as in the wait
    cpu_ns: int | None = None  # of this process, wait and loop


class Recorder(Watch):
    """Record the steps of a loop."""

    fetching = staticmethod(time_batches)

    def __init__(self, name: str = "", *, is_wrapped: bool = False) -> None:
        self.name = name  # of the loader, with the line that iterates it
        self.is_wrapped = is_wrapped
        self.makes = is_wrapped  # whether requests make the batches: no loader of torch does
        self.workers = self.prefetched = 0
        self.persists = False  # whether the workers do
        self.is_stream = False  # whether the dataset is an iterable, which each worker iterates
        self.batch_size: int | None = None
        self.tensors = 1  # of the first batch
        # What the loop took to free batches of many tensors.
        self.freeings_ns = collections.deque[int](maxlen=_MOST_STEPS)
        self.pid, self.cores = os.getpid(), len(os.sched_getaffinity(0))
        self.is_ahead = False  # whether a thread inside the loader asks for batches ahead of the loop
        self.consumer = collections.Counter[
            str
        ]()  # looks at the main thread while another one asks for the batches
        self.timer: BatchTimer | None = None  # of batches that this process makes
        self._steps: collections.deque[LoopStep] = collections.deque(maxlen=_MOST_STEPS)
        self.epochs = 0
        self.ends_ns = 0  # of epochs, from the last request on
        self.seen = Seen.nothing()
        self.memory = MemoryWatch()
        self._loader: Callable[[], Any] = lambda: None
        self._place = self._thread = 0  # in the epoch; the one that began it
        self._open: LoopStep | None = None  # given, and the next not yet requested
        self._clock: ThreadClock | None = None
        self._is_measured = True  # this step
        self._left = 0  # steps until one is measured again
        # When the last steps asked and were given, which are not in `_steps` yet.
        self._brief: list[tuple[int, int]] = []
        self._random = random.Random(7).random
        self._first_ns = 0
        self._asked = self._given = Moment(0, 0, 0, 0)
        self._inside = 0, 0  # time and CPU time of this thread's requests until the batch was given
        self._began_ns = self._iter_ns = 0
        self._ready: int | None = None
        self._made: BatchTimes | None = None
        self._others: OtherWork | None = None
        self._ends = collections.deque[Any](maxlen=_MOST_KEPT)

    def attach(self, loader: Any) -> None:
        """Note that a loader of torch makes the batches."""
        from torch.utils.data import IterableDataset

        self._loader = weakref.ref(loader)
        self.workers, self.batch_size = loader.num_workers, loader.batch_size
        self.persists = loader.persistent_workers
        self.is_stream = isinstance(loader.dataset, IterableDataset)
        self.memory.objects = objects_of(loader.dataset)
        self.prefetched = loader.num_workers * (loader.prefetch_factor or 0)
        self.makes = False
        self._stop_timer()

    def serves(self, loader: Any) -> bool:
        """Whether the batches of a loader of torch are those of this loop, maybe inside of another iterable."""
        if self.makes:
            self.attach(loader)
        return self._loader() is loader

    def around(self, fetcher: Any) -> TimedFetcher:
        self.timer = BatchTimer()
        return TimedFetcher(fetcher, self.timer, self.deliver)

    @property
    def steps(self) -> collections.deque[LoopStep]:
        """The last steps."""
        self._add_brief()
        return self._steps

    def next(self, take: Callable[[], _Batch], ready: Callable[[], int] | None = None) -> _Batch:
        # Even Python code that does little takes long between steps that fill the CPU's caches.
        if self._is_measured or not self._left or not self._place:
            return super().next(take, ready)
        watches = asking.watches
        if watches or (self.is_wrapped and ready is not None):  # inside another iterator
            return take()
        if asking.ns != self._inside[0]:  # other loaders were asked
            self._left = 0
            return super().next(take, ready)
        asked_ns = clock()
        watches.append(self)
        try:
            batch = take()
        except BaseException as error:
            self._asked = Moment(asked_ns, 0, 0, 0)
            self._add_brief()
            self._close(self._asked)
            self.note_end(is_whole=isinstance(error, StopIteration))
            raise
        finally:
            watches.pop()
        given_ns = clock()
        asking.ns += given_ns - asked_ns
        self._inside = asking.ns, asking.cpu_ns
        self._brief.append((asked_ns, given_ns))
        self._left -= 1
        self.memory.step += 1
        return batch

    def _add_brief(self) -> None:
        brief, self._brief = self._brief, []
        for asked_ns, given_ns in brief:
            if self._open is not None:
                self._open.loop_ns = asked_ns - self._given.ns
            wait_ns = given_ns - asked_ns
            self._open = LoopStep(
                place=self._place, asked_ns=asked_ns, wait_ns=wait_ns, ready=None, made=None
            )
            self._given = Moment(given_ns, 0, 0, 0)
            self._steps.append(self._open)
            self._place += 1
            if self.timer is not None and self.timer.is_idle:
                self.timer.skip()

    @guarded
    def note_start(self) -> None:
        self._add_brief()
        if self._place == 1 and self._open is not None:  # `next(iter(loader))` in each step
            self._close(self._now())
        self.ended()
        self._others = self._others or OtherWork(_children_cpu_s)
        self._thread, self._place = threading.get_ident(), 0
        self.epochs += 1
        self._began_ns = clock()

    @guarded
    def note_started(self) -> None:
        self._iter_ns = clock() - self._began_ns
        asking.ns += self._iter_ns
        self._inside = asking.ns, asking.cpu_ns

    @guarded
    def note_inner(self, ready: Callable[[], int] | None) -> None:
        self.is_ahead = self.is_ahead or (not asking.watches and threading.get_ident() != self._thread)
        if ready is not None:
            self._ready = ready()

    @guarded
    def note_request(self, ready: Callable[[], int] | None) -> None:
        self._add_brief()
        if ready is not None:
            self._ready = ready()
        thread = threading.get_ident()
        is_side_thread = not self.is_wrapped and thread != threading.main_thread().ident
        if not self.consumer and (is_side_thread or self._thread not in (0, thread)):
            self.consumer["begun"] = 1
            threading.Thread(target=self._watch_consumer, daemon=True).start()
        was_measured, self._is_measured = self._is_measured, self._measures()
        now = self._now(is_measured=self._is_measured or was_measured)
        if self._open is not None:
            self._close(now)
        self._asked = now
        if self.makes:
            self.timer = self.timer or BatchTimer()
        if self.timer is not None and not self.is_ahead:
            self.timer.is_idle = not self._is_measured
            if self._is_measured:
                self.timer.begin(now)

    def _measures(self) -> bool:
        """Return whether to measure the step that begins: always where a step asks other loaders, too."""
        self._first_ns = self._first_ns or clock()
        ns, has_others = clock() - self._first_ns, asking.ns != self._inside[0]
        if self.workers or has_others or ns < ALL_NS:
            return True
        if self._left:
            self._left -= 1
            return False
        share = ns / (_LONG_NS * max(1, self.memory.step))
        if share < 1.0:
            self._left = min(_MOST_LEFT, int(math.log(1.0 - self._random()) / math.log(1.0 - share)))
        return True

    def _watch_consumer(self) -> None:
        """Look whether the main thread waits for batches: its loop is not that of the thread which asks for them."""
        main, pid = threading.main_thread().ident, self.pid
        while self._thread and os.getpid() == pid and (frame := sys._current_frames().get(main or 0)):  # noqa: SLF001
            file, name = os.path.basename(frame.f_code.co_filename), frame.f_code.co_name  # noqa: PTH119
            is_waiting, is_joining = file in ("threading.py", "queue.py"), "join" in name or "tstate" in name
            self.consumer["joining" if is_joining else "waiting" if is_waiting else "looping"] += 1
            time.sleep(0.02)

    @property
    def waiting_frac(self) -> float | None:
        """The share of the time that the main thread waits for batches of another one; None if the loop asks itself."""
        looks = self.consumer["waiting"] + self.consumer["looping"]
        return self.consumer["waiting"] / looks if looks > self.consumer["joining"] else None

    def _close(self, now: Moment) -> None:
        step, self._open = self._open, None
        if step is None:
            return
        step.elsewhere_ns = asking.ns - self._inside[0]
        step.loop_ns = now.ns - self._given.ns - step.elsewhere_ns
        if step.wait_cpu_ns is None:
            return
        step.cpu_ns = now.cpu_ns - self._asked.cpu_ns - (asking.cpu_ns - self._inside[1])
        step.delayed_ns = now.delayed_ns - self._given.delayed_ns

    @guarded
    def made(self, made: BatchTimes) -> None:
        """Note the times of the batch that is about to be given; not of one that a thread asks for ahead."""
        if not asking.watches:
            return
        self._made = made
        if made.told is not None:
            self.seen.add(made.told.seen)

    @guarded
    def note_batch(self, batch: Any) -> None:
        asked, now = self._asked, self._now(is_measured=self._is_measured)
        if self.timer is not None and self.timer.is_idle:
            self.timer.skip()
        elif self.makes and self.timer is not None and (made := self.timer.end()) is not None:
            self.made(made)
        self._note_wait(now)
        self._given = now
        self._open = LoopStep(
            place=self._place,
            asked_ns=asked.ns - self._iter_ns,
            wait_ns=now.ns - asked.ns + self._iter_ns,
            ready=self._ready,
            made=self._made,
        )
        if self._is_measured:
            cpu_ns, thread_ns = now.cpu_ns - asked.cpu_ns, now.thread_cpu_ns - asked.thread_cpu_ns
            self._open.wait_cpu_ns = thread_ns if self.workers or self.consumer else cpu_ns
            self._open.wait_delayed_ns = now.delayed_ns - asked.delayed_ns
        if not self._steps:
            self.tensors = max(1, _count_tensors(batch))
        if self.tensors > MANY_TENSORS:
            self._time_freeing(batch)
        self._steps.append(self._open)
        self.memory.note(batch, is_first=not self._place)
        self._made = self._ready = None
        self._place += 1
        self._iter_ns = 0

    def _time_freeing(self, batch: Any) -> None:
        """Note the time between the ends of the first and of the last tensor of a batch."""
        ended_ns = list[int]()

        def note(_: Any) -> None:
            ended_ns.append(clock())
            if len(ended_ns) == 2:
                self.freeings_ns.append(ended_ns[1] - ended_ns[0])

        with contextlib.suppress(TypeError):  # no tensor or array
            self._ends.append([weakref.ref(end_of(batch, side), note) for side in (iter, reversed)])

    def _note_wait(self, now: Moment) -> None:
        """Add the request that ends now to the time of this thread's requests."""
        asking.ns += now.ns - self._asked.ns
        if self._is_measured:
            asking.cpu_ns += now.cpu_ns - self._asked.cpu_ns
        self._inside = asking.ns, asking.cpu_ns

    @guarded
    def note_end(self, *, is_whole: bool) -> None:  # noqa: ARG002 - a failure ends the epoch, too
        now = self._now()
        self.ends_ns += now.ns - self._asked.ns
        self._note_wait(now)
        self._asked = now
        self.ended()

    @guarded
    def ended(self) -> None:
        """Note that the epoch has ended, or the loader failed, or its user."""
        self._add_brief()
        self._open, self._thread = None, 0
        if self._clock is not None:
            self._clock.close()
            self._clock = None
        self.memory.ended.set()
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.seen.add(self.timer.stop())
            self.timer = None

    @property
    def waited_ns(self) -> int:
        return self.ends_ns + sum(step.wait_ns for step in self.steps)

    @property
    def looped_ns(self) -> int:
        return sum(step.loop_ns or 0 for step in self.steps)

    @guarded
    def disturbance(self) -> str:
        """Return the share of the machine that other programs took; "" if little, or if they are ranks."""
        is_shared = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1
        return "" if self._others is None or is_shared else self._others.conditions().disturbed

    def _now(self, *, is_measured: bool = True) -> Moment:
        if not is_measured:
            return Moment(clock(), 0, 0, 0)
        if self.timer is not None and not self.is_ahead and clock() - self.timer.ended.ns < _SAME_NS:
            return self.timer.ended
        self._clock = self._clock or ThreadClock()
        return self._clock.now()


def _children_cpu_s() -> float:
    seconds = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            seconds += sum(child.cpu_times()[:4])  # its own and of its children that have ended
    return seconds


def _count_tensors(batch: Any) -> int:
    values = list(dict.values(batch)) if isinstance(batch, dict) else batch
    if isinstance(values, list | tuple):
        return sum(map(_count_tensors, values))
    return int(hasattr(type(batch), "shape"))
