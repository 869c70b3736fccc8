"""The making of one batch, timed in the process that makes it; the times travel with the batch."""

import contextlib
import math
import operator
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from storebench.probes.batch_io import IoMeter
from storebench.profiling.guard import guarded
from storebench.profiling.operations import Operations
from storebench.profiling.stacks import Seen, StackSampler
from storebench.profiling.watch import BatchNotes, Carried, WatchedFetcher

clock = time.monotonic_ns

# Samples are counted by such parts of the doubling of their time.
PER_OCTAVE = 8
# Counters, lines and files travel with a batch if the last did so long ago: reading them takes some time.
_TELL_EVERY_NS = 100_000_000


class Moment(NamedTuple):
    """The clocks of a thread."""

    ns: int
    cpu_ns: int  # of the process
    thread_cpu_ns: int
    delayed_ns: int  # ready to run, without a core; always 0 where the kernel does not count it


class ThreadClock:
    """The clocks of the thread that makes it, until it is closed."""

    def __init__(self) -> None:
        self._schedule: int | None = None
        with contextlib.suppress(OSError):
            self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def now(self) -> Moment:
        delayed_ns = 0 if self._schedule is None else int(os.pread(self._schedule, 128, 0).split()[1])
        return Moment(clock(), time.process_time_ns(), time.thread_time_ns(), delayed_ns)

    def close(self) -> None:
        if self._schedule is not None:
            os.close(self._schedule)
            self._schedule = None


class ProcessCounters(NamedTuple):
    """The kernel's counters of a process since it last told them, and what was seen of it."""

    batches: int
    cpu_ns: int  # of all its threads
    device_bytes: int
    seen: Seen


class BatchTimes(NamedTuple):
    """The times of one batch, all of the same clock, which is that of the whole machine."""

    began_ns: int
    collated_ns: int  # the dataset and its transforms end, collate begins
    ended_ns: int
    dataset_cpu_ns: int  # of the thread that makes the batch
    collate_cpu_ns: int
    delayed_ns: int  # ready to run, but without a core
    told: ProcessCounters | None
    pid: int
    pickling_ns: int = 0  # CPU time
    unpickling_ns: int = 0
    pinning_ns: int = 0
    samples: int = 0  # that were timed one by one
    longest_ns: int = 0  # of them
    longest: int = 0  # its index

    @property
    def dataset_ns(self) -> int:
        return self.collated_ns - self.began_ns

    @property
    def making_s(self) -> float:
        """Seconds for this batch, without those for which there was no core."""
        return 1e-9 * (self.ended_ns - self.began_ns - self.delayed_ns)

    @property
    def idle_s(self) -> float:
        """Seconds of it that were not on a CPU."""
        return max(0.0, self.making_s - 1e-9 * (self.dataset_cpu_ns + self.collate_cpu_ns))


class BatchTimer(BatchNotes):
    """Time the batches that this process makes."""

    def __init__(self) -> None:
        self._meter = IoMeter()
        self._meter.begin()
        self._clock = ThreadClock()
        self._told, self._batches = self._clock.now()._replace(ns=0), 0
        self.ended = self._told
        self.sampled: list[int] = []  # when each sample of the batch was there
        self.begin()
        self.is_busy = False
        self.is_idle = False  # whether the batches that follow are not timed
        self._sampler = StackSampler(lambda: self.is_busy, lambda: self.is_idle)
        self.operations = Operations(self._sampler)

    @guarded
    def begin(self, now: Moment | None = None) -> None:
        """Begin a batch, at a moment that was read already or now."""
        self._collated: tuple[int, int] | None = None
        self.sampled.clear()
        self.is_busy = True
        self._began = now or self._clock.now()
        self._fetching_ns = clock()

    def note_fetch(self, indices: Any) -> None:  # noqa: ARG002
        if not self.is_busy:
            self.begin()
        self.operations.begin()

    @guarded
    def note_samples(self, samples: Any) -> None:  # noqa: ARG002
        self.operations.end()
        self._collated = clock(), time.thread_time_ns()

    @guarded
    def end(self, indices: Any = None) -> BatchTimes:
        """End a batch of samples that were asked for by these indices."""
        self.is_busy = False
        self.operations.end()
        began, ended = self._began, self._clock.now()
        self.ended = ended
        collated_ns, collated_cpu_ns = self._collated or (ended.ns, ended.thread_cpu_ns)
        times = list(map(operator.sub, self.sampled, (self._fetching_ns, *self.sampled)))
        longest_ns = max(times, default=0)
        longest = indices[times.index(longest_ns)] if times and isinstance(indices, list) else indices
        self._sampler.seen.costs.update(round(PER_OCTAVE * math.log2(ns)) for ns in times if ns > 0)
        self._batches += 1
        told = None
        if ended.ns - self._told.ns >= _TELL_EVERY_NS:
            io = self._meter.read()
            told = ProcessCounters(
                batches=self._batches,
                cpu_ns=ended.cpu_ns - self._told.cpu_ns,
                device_bytes=io.device_read_bytes if io else 0,
                seen=self._sampler.take(),
            )
            self._told, self._batches = ended, 0
        return BatchTimes(
            began_ns=began.ns,
            collated_ns=collated_ns,
            ended_ns=ended.ns,
            dataset_cpu_ns=collated_cpu_ns - began.thread_cpu_ns,
            collate_cpu_ns=ended.thread_cpu_ns - collated_cpu_ns,
            delayed_ns=ended.delayed_ns - began.delayed_ns,
            told=told,
            pid=os.getpid(),
            samples=len(times),
            longest_ns=longest_ns,
            longest=longest if isinstance(longest, int) else 0,
        )

    def skip(self) -> None:
        """Count a batch that is not timed."""
        self._batches += 1

    def stop(self) -> Seen:
        """Stop timing; return what was seen and no batch has told."""
        self.is_busy = False
        self.operations.stop()
        self._sampler.stop()
        self._meter.end()
        self._clock.close()
        return self._sampler.take()


class _Stamp:
    """The moment when it is pickled, in CPU time; it unpickles as that and the moment of unpickling."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (time.thread_time_ns(),)


def _arrived(sent_cpu_ns: int) -> tuple[int, int]:
    return sent_cpu_ns, clock()


class Stamped(Carried):
    """A batch on its way from a worker, with its times."""

    def __reduce__(self) -> tuple[Any, ...]:
        # In this order, the batch is between the two moments on both sides. A plain tuple is pickled faster.
        return _restored, (_Stamp(), tuple(self.made), self.batch, _Stamp())

    def pin_memory(self) -> "Carried":
        began_ns = clock()
        super().pin_memory()
        self.made = self.made._replace(pinning_ns=clock() - began_ns)
        return self


def _restored(first: tuple[int, int], made: tuple[Any, ...], batch: Any, last: tuple[int, int]) -> Stamped:
    return Stamped(
        batch, BatchTimes(*made)._replace(pickling_ns=last[0] - first[0], unpickling_ns=last[1] - first[1])
    )


class _TimedSamples:
    def __init__(self, dataset: Any, timer: BatchTimer) -> None:
        self._dataset, self._sampled = dataset, timer.sampled

    def __getitem__(self, index: Any) -> Any:
        sample = self._dataset[index]
        self._sampled.append(clock())
        return sample


class TimedFetcher(WatchedFetcher):
    """torch's fetcher of batches, timed."""

    def __init__(self, fetcher: Any, timer: BatchTimer, deliver: Callable[[Any, BatchTimes], Any]) -> None:
        self._timer, self._is_idle, self._other = timer, False, (fetcher.dataset, fetcher.collate_fn)
        if type(fetcher).__name__ == "_MapDatasetFetcher" and not hasattr(fetcher.dataset, "__getitems__"):
            fetcher.dataset = _TimedSamples(fetcher.dataset, timer)
        super().__init__(fetcher, timer, deliver)

    def fetch(self, indices: Any) -> Any:
        if self._is_idle != self._timer.is_idle:
            self._is_idle, fetcher = not self._is_idle, self._fetcher
            watched = fetcher.dataset, fetcher.collate_fn
            (fetcher.dataset, fetcher.collate_fn), self._other = self._other, watched
        return self._fetcher.fetch(indices) if self._is_idle else super().fetch(indices)


def time_batches() -> Callable[[Any], TimedFetcher]:
    """Return what times the fetchers of this worker."""
    timer = BatchTimer()
    return lambda fetcher: TimedFetcher(fetcher, timer, Stamped)
