"""The making of one batch, timed in the process that makes it; the times travel with the batch."""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from storebench.probes.batch_io import IoMeter
from storebench.profiling.guard import Guard, guarded
from storebench.profiling.sampling import Sampler, Seen

clock = time.monotonic_ns

_COUNT_EVERY_NS = 20_000_000
"""Kernel counters are read for a batch if the last were read so long ago: reading them takes some 40 microseconds."""

_TELL_EVERY_NS = 500_000_000
"""Samples of lines and files travel with a batch if the last did so long ago."""


class Counted(NamedTuple):
    """The kernel's counters of one batch."""

    cpu_ns: int
    delayed_ns: int  # ready to run, but without a core
    device_bytes: int
    major_faults: int


class Made(NamedTuple):
    """The times of one batch, all of the same clock, which is that of the whole machine."""

    began_ns: int
    collated_ns: int  # the dataset and its transforms end, collate begins
    ended_ns: int
    counted: Counted | None
    seen: Seen
    pickling_ns: int = 0
    unpickling_ns: int = 0
    pinning_ns: int = 0


class Maker(Guard):
    """Time the batches that this process makes."""

    def __init__(self) -> None:
        self._began_ns = self._collated_ns = self._counted_ns = 0
        self._is_busy = False
        self._told_ns = clock()
        self._meter = IoMeter()
        self._meter.begin()
        self._schedule: int | None = None  # this thread's counters
        with contextlib.suppress(OSError):
            self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._before: tuple[int, int] | None = None
        self._sampler = Sampler(lambda: self._is_busy)

    @guarded
    def begin(self) -> None:
        self._began_ns, self._collated_ns = clock(), 0
        if self._began_ns - self._counted_ns >= _COUNT_EVERY_NS:
            self._meter.read()
            self._before = time.process_time_ns(), self._delayed_ns()
        self._is_busy = True

    def collate(self) -> None:
        self._collated_ns = clock()

    @guarded
    def end(self) -> Made:
        """Return the times of the batch that `begin` began."""
        self._is_busy = False
        ended_ns = clock()
        counted = None
        if self._before is not None:
            cpu_ns, delayed_ns = self._before
            io = self._meter.read()
            counted = Counted(
                cpu_ns=time.process_time_ns() - cpu_ns,
                delayed_ns=self._delayed_ns() - delayed_ns,
                device_bytes=io.device_read_bytes if io else 0,
                major_faults=io.major_faults if io else 0,
            )
            self._before, self._counted_ns = None, ended_ns
        seen = Seen({}, ())
        if ended_ns - self._told_ns >= _TELL_EVERY_NS:
            self._told_ns = ended_ns
            seen = self._sampler.take()
        return Made(self._began_ns, self._collated_ns or ended_ns, ended_ns, counted, seen)

    def stop(self) -> Seen:
        """Stop timing; return what no batch has told."""
        self._is_busy = False
        self._sampler.stop()
        self._meter.end()
        if self._schedule is not None:
            os.close(self._schedule)
            self._schedule = None
        return self._sampler.take()

    def _delayed_ns(self) -> int:
        """Return how long this thread has been ready to run without a core; 0 if the kernel does not count it."""
        return 0 if self._schedule is None else int(os.pread(self._schedule, 128, 0).split()[1])


class _Moment:
    """The moment when it is pickled; it unpickles as that moment and the one of unpickling."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (clock(),)


def _arrived(sent_ns: int) -> tuple[int, int]:
    return sent_ns, clock()


class Stamped:
    """A batch on its way from a worker, with its times."""

    def __init__(self, batch: Any, made: Made) -> None:
        self.batch, self.made = batch, made

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled in this order, so the batch is between the two moments, on both sides.
        return _restored, (_Moment(), self.made, self.batch, _Moment())

    def pin_memory(self) -> "Stamped":
        """Pin the batch; torch calls this in its thread."""
        from torch.utils.data._utils.pin_memory import pin_memory

        began_ns = clock()
        self.batch = pin_memory(self.batch)  # type: ignore[no-untyped-call]
        self.made = self.made._replace(pinning_ns=clock() - began_ns)
        return self


def _restored(first: tuple[int, int], made: Made, batch: Any, last: tuple[int, int]) -> Stamped:
    return Stamped(batch, made._replace(pickling_ns=last[0] - first[0], unpickling_ns=last[1] - first[1]))


class TimedFetcher:
    """torch's fetcher of batches, timed; `deliver` returns what `fetch` is to return."""

    def __init__(self, fetcher: Any, maker: Maker, deliver: Callable[[Any, Made], Any]) -> None:
        self._fetcher, self._maker, self._deliver = fetcher, maker, deliver
        collate = fetcher.collate_fn

        def timed_collate(samples: Any) -> Any:
            maker.collate()
            return collate(samples)

        fetcher.collate_fn = timed_collate

    def fetch(self, index: Any) -> Any:
        self._maker.begin()
        try:
            batch = self._fetcher.fetch(index)
        finally:
            made = self._maker.end()
        return batch if made is None else self._deliver(batch, made)


def init_worker(before: Callable[[int], None] | None, worker: int) -> None:
    """Call the user's own `worker_init_fn`, then have this worker's batches timed."""
    if before is not None:
        before(worker)
    Guard().attempt(_time_batches)


def _time_batches() -> None:
    """Have torch create timed fetchers, in this worker process only."""
    from torch.utils.data import _DatasetKind, get_worker_info

    create: Callable[..., Any] = _DatasetKind.create_fetcher
    maker = Maker()

    def create_timed(kind: Any, dataset: Any, *rest: Any) -> Any:
        fetcher = create(kind, dataset, *rest)
        info = get_worker_info()
        # A dataset may use a loader of its own in here, whose batches go to the dataset.
        return TimedFetcher(fetcher, maker, Stamped) if info and info.dataset is dataset else fetcher

    _DatasetKind.create_fetcher = staticmethod(create_timed)  # type: ignore[method-assign]
