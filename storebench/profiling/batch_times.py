"""The making of one batch, timed in the process that makes it; the times travel with the batch."""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from storebench.probes.batch_io import IoMeter
from storebench.profiling.guard import Guard, guarded
from storebench.profiling.stacks import Sampler, Seen

clock = time.monotonic_ns

_TELL_EVERY_NS = 100_000_000
"""Counters of the kernel, lines and files travel with a batch if the last did so long ago: reading them takes some time."""


class Schedule:
    """How long a thread has been ready to run without a core; always 0 where the kernel does not count it."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def delayed_ns(self) -> int:
        return 0 if self._file is None else int(os.pread(self._file, 128, 0).split()[1])

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Told(NamedTuple):
    """What a process says of the time since it last did: the kernel's counters, and samples."""

    batches: int
    cpu_ns: int  # of all its threads
    device_bytes: int
    seen: Seen


class Made(NamedTuple):
    """The times of one batch, all of the same clock, which is that of the whole machine."""

    began_ns: int
    collated_ns: int  # the dataset and its transforms end, collate begins
    ended_ns: int
    dataset_cpu_ns: int  # of the thread that makes the batch
    collate_cpu_ns: int
    delayed_ns: int  # ready to run, but without a core
    told: Told | None
    pid: int
    pickling_ns: int = 0  # CPU time
    unpickling_ns: int = 0
    pinning_ns: int = 0
    samples: int = 0  # that were timed one by one
    longest_ns: int = 0  # of them
    longest: int = 0  # its index

    @property
    def making_s(self) -> float:
        """Seconds for this batch, without those for which there was no core."""
        return 1e-9 * (self.ended_ns - self.began_ns - self.delayed_ns)

    @property
    def idle_s(self) -> float:
        """Seconds of it that were not on a CPU."""
        return max(0.0, self.making_s - 1e-9 * (self.dataset_cpu_ns + self.collate_cpu_ns))


class Maker(Guard):
    """Time the batches that this process makes."""

    def __init__(self) -> None:
        self._began = (0, 0, 0)
        self._collated: tuple[int, int] | None = None
        self._samples = self._longest_ns = self._longest = 0
        self._is_busy = False
        self._pid = os.getpid()
        self._told_ns = self._batches = 0
        self._cpu_ns = time.process_time_ns()
        self._meter = IoMeter()
        self._meter.begin()
        self._schedule = Schedule()
        self._sampler = Sampler(lambda: self._is_busy)

    @guarded
    def begin(self) -> None:
        self._began, self._collated = (clock(), time.thread_time_ns(), self._schedule.delayed_ns()), None
        self._samples = self._longest_ns = self._longest = 0
        self._is_busy = True

    def sample(self, index: Any, ns: int) -> None:
        """Note how long a sample took."""
        self._samples += 1
        if ns > self._longest_ns and isinstance(index, int):
            self._longest_ns, self._longest = ns, index

    def collate(self) -> None:
        self._collated = clock(), time.thread_time_ns()

    @guarded
    def end(self) -> Made:
        """Return the times of the batch that `begin` began."""
        self._is_busy = False
        ended_ns, cpu_ns = clock(), time.thread_time_ns()
        began_ns, began_cpu_ns, delayed_ns = self._began
        collated_ns, collated_cpu_ns = self._collated or (ended_ns, cpu_ns)
        self._batches += 1
        return Made(
            began_ns,
            collated_ns,
            ended_ns,
            collated_cpu_ns - began_cpu_ns,
            cpu_ns - collated_cpu_ns,
            self._schedule.delayed_ns() - delayed_ns,
            self._tell(ended_ns) if ended_ns - self._told_ns >= _TELL_EVERY_NS else None,
            self._pid,
            samples=self._samples,
            longest_ns=self._longest_ns,
            longest=self._longest,
        )

    def stop(self) -> Seen:
        """Stop timing; return the samples that no batch has told."""
        self._is_busy = False
        self._sampler.stop()
        self._meter.end()
        self._schedule.close()
        return self._sampler.take()

    def _tell(self, now_ns: int) -> Told:
        io, cpu_ns, batches = self._meter.read(), self._cpu_ns, self._batches
        self._cpu_ns, self._batches, self._told_ns = time.process_time_ns(), 0, now_ns
        return Told(
            batches=batches,
            cpu_ns=self._cpu_ns - cpu_ns,
            device_bytes=io.device_read_bytes if io else 0,
            seen=self._sampler.take(),
        )


class _Moment:
    """The moment when it is pickled, in CPU time; it unpickles as that and the moment of unpickling."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (time.thread_time_ns(),)


def _arrived(sent_cpu_ns: int) -> tuple[int, int]:
    return sent_cpu_ns, clock()


class Stamped:
    """A batch on its way from a worker, with its times."""

    def __init__(self, batch: Any, made: Made) -> None:
        self.batch, self.made = batch, made

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled in this order, so the batch is between the two moments, on both sides. A plain tuple is pickled faster.
        return _restored, (_Moment(), tuple(self.made), self.batch, _Moment())

    def pin_memory(self) -> "Stamped":
        """Pin the batch; torch calls this in its thread."""
        from torch.utils.data._utils.pin_memory import pin_memory

        began_ns = clock()
        self.batch = pin_memory(self.batch)  # type: ignore[no-untyped-call]
        self.made = self.made._replace(pinning_ns=clock() - began_ns)
        return self


def _restored(first: tuple[int, int], made: tuple[Any, ...], batch: Any, last: tuple[int, int]) -> Stamped:
    return Stamped(
        batch, Made(*made)._replace(pickling_ns=last[0] - first[0], unpickling_ns=last[1] - first[1])
    )


class _TimedSamples:
    """A dataset whose samples are timed."""

    def __init__(self, dataset: Any, maker: Maker) -> None:
        self._dataset, self._maker = dataset, maker

    def __getitem__(self, index: Any) -> Any:
        began_ns = clock()
        sample = self._dataset[index]
        self._maker.sample(index, clock() - began_ns)
        return sample


class TimedFetcher:
    """torch's fetcher of batches, timed; `deliver` returns what `fetch` is to return."""

    def __init__(self, fetcher: Any, maker: Maker, deliver: Callable[[Any, Made], Any]) -> None:
        self._fetcher, self._maker, self._deliver = fetcher, maker, deliver
        collate = fetcher.collate_fn
        if type(fetcher).__name__ == "_MapDatasetFetcher" and not hasattr(fetcher.dataset, "__getitems__"):
            fetcher.dataset = _TimedSamples(fetcher.dataset, maker)

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
