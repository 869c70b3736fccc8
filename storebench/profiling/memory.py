"""The memory of a loop and its workers: how much, whether it grows, and at which step it is full."""

import collections
import contextlib
import itertools
import os
import re
import statistics
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import psutil

from storebench.probes.cgroup import memory_room_bytes
from storebench.profiling.guard import Guard, say
from storebench.units import rounded_bytes

# Seconds between samples, and later this share of the time so far.
_EVERY_S, _SHARE = 0.5, 1 / 200
# Seconds between walks, as many times as long as one took.
_REST = 400
# Growth: so many parts of the loop, Student's 97.5% quantile for them, and the least that is told.
_PARTS, _T, _LEAST_BYTES, _LEAST_FRAC = 6, 2.571, 8 << 20, 0.01
_LEAST_COPIED = 96 << 20  # by each worker: less is the interpreter's own
# Of the last batches noted, so many that are still there are kept; loops that accumulate or shuffle have fewer.
_LAST, _KEPT = 400, 40
# A warning is given if the memory lasts for less than this share of the steps so far; little is left below that.
_SOON, _LITTLE = 0.25, 0.1
_SHM = "/dev/shm"  # noqa: S108 - asked for its size


class MemorySample(NamedTuple):
    """Bytes at a step: of this process, in /dev/shm, and what workers have added since they were first seen."""

    step: int
    seconds: float
    own: int
    shared: int
    workers: int

    @property
    def total(self) -> int:
        return sum(self[2:])


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Bytes per 100 steps with the 95% interval, the part of samples, and the step at which memory is full."""

    mid: float
    low: float
    high: float
    part: str
    full_step: int

    def __str__(self) -> str:
        interval = f"{self.low / 2**20:,.2f} to {self.high / 2**20:,.2f} MiB per 100 steps"
        return f"memory grows by {interval}, full at step {self.full_step:,}"


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """The memory of a loop in bytes; `growth` is None where none is certain."""

    sizes: Mapping[str, int]
    growth: Growth | None
    advice: Sequence[str]
    samples: Sequence[MemorySample]

    def lines(self) -> list[str]:
        sizes = ", ".join(f"{name} {rounded_bytes(size)}" for name, size in self.sizes.items() if size)
        return [
            *([f"memory: {sizes}"] if sizes else []),
            *([str(self.growth)] if self.growth else []),
            *self.advice,
        ]


def end_of(batch: Any, side: Callable[[Any], Iterator[Any]] = iter) -> Any:
    """Return the first tensor of a batch, or the last one by `reversed`."""
    while isinstance(batch, dict | list | tuple) and batch:
        batch = next(side(batch.values() if isinstance(batch, dict) else batch))
    return batch


class MemoryWatch(Guard):
    """Sample the memory of this process and of those that it started while a loop goes on."""

    def __init__(self, every_s: float = _EVERY_S, share: float = _SHARE) -> None:
        self._every_s, self._share = every_s, share
        self.step = 0
        self.objects = ""  # of the dataset
        self._batches: collections.deque[weakref.ref[Any]] = collections.deque(maxlen=_LAST)
        self._samples: list[MemorySample] = []
        self._sizes: dict[str, int] = {}
        self._limit = self._shm_limit = 0  # of the totals of samples
        self._began = self._due = self._walk_due = 0.0
        # Anonymous bytes of each worker, and of this process, when it was first seen.
        self._bases: dict[int, tuple[int, int]] = {}
        self._has_warned = False
        self.ended = threading.Event()

    def note(self, batch: Any, *, is_first: bool) -> None:
        """Note a batch of the loop, the first one of an epoch by when its workers have been forked."""
        self.step += 1
        with contextlib.suppress(TypeError):  # no tensor or array
            self._batches.append(weakref.ref(end_of(batch)))
        if is_first and sys.platform.startswith("linux"):
            self._began, self.ended = self._began or time.monotonic(), threading.Event()
            threading.Thread(target=self._run, args=(self.ended,), daemon=True).start()

    def _run(self, ended: threading.Event) -> None:
        while not self.has_failed and not ended.wait(max(0.0, self._due - time.monotonic())):
            self.attempt(self._sample)
            self._due = time.monotonic() + max(self._every_s, self._share * (time.monotonic() - self._began))

    def _sample(self) -> None:
        began, (own, locked) = time.thread_time(), _counters("self")
        workers = {pid: counters[0] for pid in _children() if any(counters := _counters(pid))}
        if self._bases and not workers:  # they have just ended: this is no moment of the loop
            self._bases.clear()
            return
        self._bases = {pid: self._bases.get(pid, (size, own)) for pid, size in workers.items()}
        added = sum(max(0, size - self._bases[pid][0]) for pid, size in workers.items())
        shm = psutil.disk_usage(_SHM)  # batches of workers, which this process may not have touched
        sample = MemorySample(self.step, time.monotonic() - self._began, own, shm.used, added)
        if time.monotonic() >= self._walk_due:
            self._shm_limit = shm.used + shm.free
            self._walk(sample, locked)
            self._walk_due = time.monotonic() + _REST * (time.thread_time() - began)
        self._samples.append(sample)  # with sizes and a limit, also for a report at this moment
        growth = None if self._has_warned or len(self._samples) % 8 else self._growth()
        if growth and growth.full_step < (1.0 + _SOON) * self.step:
            self._has_warned = True
            say(f"storebench profile: {'; '.join((str(growth), *self._advice(growth)))}")

    def _walk(self, sample: MemorySample, locked: int) -> None:
        here, *workers = [_sizes(f"/proc/{pid}/smaps_rollup") for pid in ("self", *self._bases)]
        alone = [pages["Private_Clean"] + pages["Private_Dirty"] for pages in (here, *workers)]
        copied = 0
        for pages, (_, forked) in zip(workers, self._bases.values(), strict=True):
            shared = pages["Anonymous"] - pages["Private_Dirty"]
            # A process that was not forked shares nothing.
            size = min(pages["Private_Dirty"], forked - shared) if shared > 0 else 0
            copied += size if size > _LEAST_COPIED else 0
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            locked += torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
        free, allowed = psutil.virtual_memory().available, memory_room_bytes()
        self._limit = sample.total + max(0, min(free, free if allowed is None else allowed))
        total = sum(pages["Pss"] + pages["SwapPss"] for pages in (here, *workers))
        peak = max(before.total for before in (*self._samples, sample)) - sample.total + total
        self._sizes = {
            "in all": total,
            "peak": max(peak, self._sizes.get("peak", 0)),
            "this process alone": alone[0],
            "each worker alone": round(statistics.mean(alone[1:] or [0])),
            "copied by workers": copied,
            "page-locked": locked,
            _SHM: sample.shared,
        }

    def report(self) -> MemoryReport:
        growth, samples = self._growth(), [*self._samples]
        return MemoryReport(sizes=self._sizes, growth=growth, advice=[*self._advice(growth)], samples=samples)

    def _advice(self, growth: Growth | None) -> Iterator[str]:
        kept = sum(batch() is not None for batch in self._batches)
        if growth and kept >= _KEPT:
            yield f"del batches after their step: {kept} of {len(self._batches)} that were noted are kept"
        elif growth and growth.part == "workers":
            yield "bound what each worker caches, or share it: memory:shared"
        elif growth:
            yield "keep loss.item(), not loss, and bound what the dataset caches"
        if self._sizes.get("copied by workers"):
            yield f"workers copy {self.objects}: an array or Arrow in its place, or fewer workers"
        if (
            self._samples
            and self._bases
            and not growth
            and self._samples[-1].total > (1.0 - _LITTLE) * self._limit
        ):
            yield "little memory is left: fewer workers, or a smaller prefetch_factor"

    def _growth(self) -> Growth | None:
        """Return the growth after the first quarter of the steps, if each part of the rest says so."""
        samples = [sample for sample in self._samples if sample.step >= self.step / 4]
        if len(samples) < 2 * _PARTS:
            return None
        picked = samples[:: -((len(samples) - 1) // _PARTS)][_PARTS::-1]
        rates = [
            100 * (to.total - at.total) / max(1, to.step - at.step) for at, to in itertools.pairwise(picked)
        ]
        mid, half = statistics.mean(rates), _T * statistics.stdev(rates) / _PARTS**0.5
        first, last = picked[0], picked[-1]
        if (mid - half) * (last.step - first.step) / 100 < max(_LEAST_BYTES, _LEAST_FRAC * last.total):
            return None
        part = max(("own", "shared", "workers"), key=lambda name: getattr(last, name) - getattr(first, name))
        room = self._limit - last.total
        room = min(room, self._shm_limit - last.shared) if part == "shared" else room
        full_step = last.step + round(100 * max(0, room) / mid)
        return Growth(mid=mid, low=mid - half, high=mid + half, part=part, full_step=full_step)


def _children() -> Iterator[int]:
    """Return the processes that this one started and that go on."""
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children", "rb") as file:  # noqa: PTH123
            yield from map(int, file.read().split())


def _sizes(path: str) -> dict[str, int]:
    """Return the sizes in a file of the kernel, in bytes; none of a process that has ended."""
    lines: list[tuple[str, str]] = []
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123
        lines = re.findall(r"^(\w+):\s+(\d+) kB$", file.read(), re.MULTILINE)
    return collections.Counter({name: int(kib) << 10 for name, kib in lines})


def _counters(pid: int | str) -> tuple[int, int]:
    """Return anonymous and page-locked bytes of a process."""
    sizes = _sizes(f"/proc/{pid}/status")
    return sizes["RssAnon"] + sizes["VmSwap"], sizes["VmLck"] + sizes["VmPin"]


def objects_of(dataset: Any) -> str:
    """Return the name of a dataset's largest list, dict or tuple; nothing of its own is called."""
    plain = {
        name: len(value)
        for name, value in getattr(dataset, "__dict__", {}).items()
        if type(value) in (list, dict, tuple)
    }
    name = max(plain, key=plain.__getitem__, default="")
    return f"dataset.{name} ({plain[name]:,} Python objects)" if name else "the dataset's Python objects"
