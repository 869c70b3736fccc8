"""The making of one batch, timed in the process that makes it; the times travel with the batch."""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from storebench.probes.batch_io import IoMeter
from storebench.profiling.sampling import Place, Sampler

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
    places: dict[Place, int]
    files: tuple[str, ...]
    init_ns: int = 0  # of the worker, with its first batch


class Maker:
    """Time the batches that this process makes."""

    def __init__(self, init_ns: int = 0) -> None:
        self._init_ns = init_ns
        self._began_ns = self._collated_ns = 0
        self._busy = False
        self._told_ns = clock()
        self._meter = IoMeter()
        self._meter.begin()
        self._schedule: int | None = open_schedule()
        self._counted_ns = 0
        self._before: tuple[int, int] | None = None
        self._sampler = Sampler(lambda: self._busy)

    def begin(self) -> bool:
        """Note that a batch is begun; False if it cannot be timed."""
        try:
            self._began_ns, self._collated_ns = clock(), 0
            if self._began_ns - self._counted_ns >= _COUNT_EVERY_NS:
                self._meter.read()
                self._before = time.process_time_ns(), delayed_ns(self._schedule)
        except Exception:  # noqa: BLE001 - nothing of ours may reach the user's loop
            return False
        self._busy = True
        return True

    def collate(self) -> None:
        self._collated_ns = clock()

    def end(self) -> Made | None:
        """Return the times of the batch that `begin` began; None if they cannot be read."""
        self._busy = False
        try:
            return self._times()
        except Exception:  # noqa: BLE001 - nothing of ours may reach the user's loop
            return None

    def _times(self) -> Made:
        ended_ns = clock()
        counted = None
        if self._before is not None:
            cpu_ns, delayed_before_ns = self._before
            io = self._meter.read()
            counted = Counted(
                cpu_ns=time.process_time_ns() - cpu_ns,
                delayed_ns=delayed_ns(self._schedule) - delayed_before_ns,
                device_bytes=io.device_read_bytes if io else 0,
                major_faults=io.major_faults if io else 0,
            )
            self._before, self._counted_ns = None, ended_ns
        places, files = dict[Place, int](), tuple[str, ...]()
        if ended_ns - self._told_ns >= _TELL_EVERY_NS:
            self._told_ns = ended_ns
            places, files = self._sampler.take()
        init_ns, self._init_ns = self._init_ns, 0
        collated_ns = self._collated_ns or ended_ns
        return Made(self._began_ns, collated_ns, ended_ns, counted, places, files, init_ns)

    def stop(self) -> tuple[dict[Place, int], tuple[str, ...]]:
        """Stop timing; return the lines and files that no batch has told."""
        self._busy = False
        self._sampler.stop()
        self._meter.end()
        if self._schedule is not None:
            os.close(self._schedule)
            self._schedule = None
        return self._sampler.take()


def open_schedule() -> int | None:
    """Open the scheduler's counters of this thread."""
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def delayed_ns(schedule: int | None) -> int:
    """Return how long a thread has been ready to run without a core; 0 if the kernel does not count it."""
    return 0 if schedule is None else int(os.pread(schedule, 128, 0).split()[1])


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
        self.pickling_ns = self.unpickling_ns = self.pinning_ns = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled in this order, so the batch is between the two moments, on both sides.
        return _restored, (_Moment(), self.made, self.batch, _Moment())

    def pin_memory(self) -> "Stamped":
        """Pin the batch; torch calls this in its thread."""
        from torch.utils.data._utils.pin_memory import pin_memory

        began_ns = clock()
        self.batch = pin_memory(self.batch)  # type: ignore[no-untyped-call]
        self.pinning_ns = clock() - began_ns
        return self


def _restored(first: tuple[int, int], made: Made, batch: Any, last: tuple[int, int]) -> Stamped:
    stamped = Stamped(batch, made)
    stamped.pickling_ns, stamped.unpickling_ns = last[0] - first[0], last[1] - first[1]
    return stamped


class _Collate:
    """A loader's collate function, whose beginning is noted."""

    def __init__(self, collate: Callable[[Any], Any], maker: Maker) -> None:
        self._collate, self._maker = collate, maker

    def __call__(self, samples: Any) -> Any:
        self._maker.collate()
        return self._collate(samples)


class TimedFetcher:
    """torch's fetcher of batches, timed; `deliver` returns what `fetch` is to return."""

    def __init__(self, fetcher: Any, maker: Maker, deliver: Callable[[Any, Made], Any]) -> None:
        self._fetcher, self._maker, self._deliver = fetcher, maker, deliver
        fetcher.collate_fn = _Collate(fetcher.collate_fn, maker)

    def fetch(self, index: Any) -> Any:
        began = self._maker.begin()
        try:
            batch = self._fetcher.fetch(index)
        finally:
            made = self._maker.end() if began else None
        return batch if made is None else self._deliver(batch, made)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fetcher, name)


class WorkerInit:
    """A loader's `worker_init_fn`: call the user's own, then have this worker's batches timed."""

    def __init__(self, before: Callable[[int], None] | None) -> None:
        self._before = before

    def __call__(self, worker: int) -> None:
        began_ns = clock()
        if self._before is not None:
            self._before(worker)
        with contextlib.suppress(Exception):  # the batches come without times then, and the report says so
            _time_batches(Maker(clock() - began_ns))


def _time_batches(maker: Maker) -> None:
    """Have torch create timed fetchers, in this worker process only."""
    from torch.utils.data import _DatasetKind, get_worker_info

    create: Callable[..., Any] = _DatasetKind.create_fetcher

    def create_timed(kind: Any, dataset: Any, *rest: Any) -> Any:
        fetcher = create(kind, dataset, *rest)
        info = get_worker_info()
        # A dataset may use a loader of its own in here, whose batches go to the dataset.
        return TimedFetcher(fetcher, maker, Stamped) if info and info.dataset is dataset else fetcher

    _DatasetKind.create_fetcher = staticmethod(create_timed)  # type: ignore[method-assign]
