"""The verdict on a recorded loop: the part whose removal would gain most, and by how much, from its measured times.

With workers, a step takes as long as the longest of the loop, the workers side by side, the pinning thread, and all CPU
time over the cores; without workers, their sum. Waits for a core because of one's own processes are only in the last of
these.
"""

import enum
import linecache
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storebench.plain_text import plain
from storebench.probes.counters import counts_reads
from storebench.probes.machine import mount_of
from storebench.probes.page_count import resident
from storebench.profiling.making import Counted, Made
from storebench.profiling.recorder import MOST_STEPS, Recorder, Step
from storebench.profiling.sampling import Place
from storebench.units import rounded_bytes

LEAST_GAIN = 1.05
"""A part of the loading is the limit only if without it the loop would be this many times as fast."""

_LEAST_STEPS = 4
_STALL = 3.0
"""A wait of this many times what one worker needs for a batch is a stall."""

_ENOUGH = 0.95
"""So many workers are enough that more would be faster by no more than this."""

_MANY = 2
"""More than this many times the workers that are needed are too many."""

_S = 1e-9


class Bound(enum.StrEnum):
    """The limit of a loop."""

    COMPUTE = "compute"
    TRANSFORM = "decode or transform"
    STORAGE = "storage"
    WAITING = "a wait in the dataset"
    LOCK = "a lock"
    COLLATE = "collate"
    HANDOFF = "handoff"
    PINNING = "pinning"
    LOADER = "the loader"
    FEW_WORKERS = "too few workers"
    MANY_WORKERS = "too many workers"
    STARTUP = "the start of epochs"
    STALLS = "stalls"
    UNKNOWN = "unknown"


_REMEDIES = {
    Bound.COMPUTE: "nothing in the loading: a faster accelerator or a smaller network",
    Bound.TRANSFORM: "a faster decoder, cheaper transforms, images stored smaller or decoded",
    Bound.STORAGE: "more reads in flight (workers), fewer bytes, a faster disk, or more memory",
    Bound.WAITING: "find what the dataset waits for: a network, another process, a slow disk; more workers hide it",
    Bound.LOCK: "one file or object per worker, so that no worker waits for another",
    Bound.COLLATE: "collate less: tensors of one shape, made in the dataset",
    Bound.HANDOFF: "larger batches, or fewer tensors per batch",
    Bound.PINNING: "fewer bytes per batch: uint8 images, converted on the device",
    Bound.LOADER: "its inside was not seen",
    Bound.FEW_WORKERS: "more workers",
    Bound.MANY_WORKERS: "fewer workers",
    Bound.STARTUP: "persistent_workers=True, less work in the dataset's start, longer epochs",
    Bound.STALLS: "look at the slowest samples; a larger prefetch_factor hides short stalls",
    Bound.UNKNOWN: "profile more steps",
}


@dataclass(frozen=True, kw_only=True)
class HotLine:
    """A line of code, and its share of the samples that were taken while batches were made."""

    share: float
    file: str
    line: int
    text: str
    calls: str


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files that were seen open, and the share of them that is in the page cache."""

    count: int
    folder: str
    size_bytes: int
    resident_frac: float | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """What limits a loop, how much faster it would be without that, and the evidence.

    Times are means per step, in seconds, without the starts of epochs and stalls. Those of workers are of one batch in one
    worker. None is not known.
    """

    bound: Bound
    gain: float = 1.0
    remedy: str = ""
    feed_gain: float = 1.0  # if loading cost nothing
    steps: int = 0
    epochs: int = 0
    total_s: float = 0.0
    step_s: float = 0.0
    wait_s: float = 0.0
    loop_s: float = 0.0
    workers: int = 0
    workers_needed: int | None = None
    access_s: float | None = None
    collate_s: float | None = None
    pickling_s: float = 0.0
    receiving_s: float = 0.0
    pinning_s: float = 0.0
    on_cpu_frac: float | None = None
    blocked_frac: float | None = None
    delayed_frac: float | None = None
    busy_frac: float | None = None
    ready_batches: float | None = None
    prefetched: int = 0
    cpu_s: float = 0.0
    others_cores: float = 0.0
    device_bytes: float | None = None
    major_faults: float | None = None
    first_wait_s: float = 0.0
    startup_s: float = 0.0
    stall_count: int = 0
    stall_s: float = 0.0
    hot: tuple[HotLine, ...] = ()
    files: Files | None = None
    unseen: tuple[str, ...] = ()

    @property
    def wait_frac(self) -> float:
        """Share of the whole time that the loop waited for data, starts of epochs and stalls included."""
        if not self.total_s:
            return 0.0
        return min(1.0, (self.wait_s * self.steps + self.startup_s + self.stall_s) / self.total_s)

    def __str__(self) -> str:
        lines = [
            f"storebench profile: limited by {self.bound}; {self.wait_frac:.0%} of the time is waiting for data",
            f"  without that limit: {self.gain:.2f} times as fast (predicted); {self.remedy}",
        ]
        rows = [("wait for data", self.wait_s), ("loop", self.loop_s)]
        where = "  per batch in one of the workers" if self.workers else "  per batch"
        made = [("dataset", self.access_s), ("collate", self.collate_s)]
        if self.workers and self.access_s is not None:
            made += [("pickling", self.pickling_s), ("receiving", self.receiving_s)]
        made += [("pinning", self.pinning_s)] if self.pinning_s else []
        lines.append(_table("per step", rows, f"{self.steps:,} steps, first after {self.first_wait_s:.2f} s"))
        if self.access_s is not None:
            shown = [(name, value) for name, value in made if value is not None]
            lines.append(_table(where.strip(), shown, f"workers {self.workers}"))
        if self.on_cpu_frac is not None:
            lines.append(
                f"  making a batch: on a CPU {self.on_cpu_frac:.0%}, blocked {self.blocked_frac or 0:.0%}, "
                f"without a core {self.delayed_frac or 0:.0%}"
            )
        if self.workers and self.ready_batches is not None and self.busy_frac is not None:
            lines.append(
                f"  workers busy {self.busy_frac:.0%}; {self.ready_batches:.1f} of {self.prefetched} batches ready"
            )
        if self.startup_s > 0.01 * self.total_s or self.stall_count:
            lines.append(
                f"  starts of epochs {self.startup_s / max(self.total_s, 1e-9):.0%}, "
                f"stalls {self.stall_s / max(self.total_s, 1e-9):.0%} of the time ({self.stall_count} stalls)"
            )
        lines += [
            f"  {line.share:.0%} in {Path(line.file).name}:{line.line}: {line.text[:60]}"
            for line in self.hot[:2]
        ]
        if self.files is not None:
            known = self.files.resident_frac
            cached = "unknown" if known is None else f"{known:.0%}"
            lines.append(
                f"  files in {self.files.folder}: {cached} in the page cache; "
                f"{rounded_bytes(self.device_bytes or 0)} per batch from devices"
            )
        if self.unseen:
            lines.append(f"  not seen: {'; '.join(self.unseen)}")
        return "\n".join(plain(line) for line in lines)


def _table(title: str, rows: Iterable[tuple[str, float]], more: str) -> str:
    cells = "".join(f"  {name} {1e3 * value:,.2f} ms" for name, value in rows)
    return f"  {title}:{cells}  ({more})"


class _Part(enum.Enum):
    LOOP = enum.auto()
    COMPUTING = enum.auto()
    BLOCKED = enum.auto()
    COLLATE = enum.auto()
    HANDOFF = enum.auto()
    PINNING = enum.auto()


@dataclass(frozen=True, kw_only=True)
class _Costs:
    """Measured times per step or batch, in seconds, without waits for a core, and the CPU seconds of each part."""

    workers: int
    cores: int
    step_s: float
    wall: Mapping[_Part, float]
    cpu: Mapping[_Part, float]
    receiving_s: float
    rest_s: float = 0.0

    def step(self, *, without: _Part | None = None, workers: int | None = None) -> float:
        """Return the time of a step without a part, or with other workers."""
        count = self.workers if workers is None else workers
        wall = {part: 0.0 if part is without else value for part, value in self.wall.items()}
        busy = sum(value for part, value in self.cpu.items() if part is not without)
        making = wall[_Part.COMPUTING] + wall[_Part.BLOCKED] + wall[_Part.COLLATE]
        receiving = 0.0 if without is _Part.HANDOFF else self.receiving_s
        rest = 0.0 if without is _Part.HANDOFF else self.rest_s
        if not count:
            return wall[_Part.LOOP] + making + wall[_Part.PINNING] + receiving + rest
        return (
            max(
                wall[_Part.LOOP] + receiving,
                (making + wall[_Part.HANDOFF]) / count,
                wall[_Part.PINNING],
                busy / self.cores,
            )
            + rest
        )


def report_of(recorder: Recorder) -> Report:
    """Return the verdict on what a recorder has seen."""
    steps = [step for step in recorder.steps if step.loop_ns is not None]
    lag = max(1, recorder.workers)
    steady = [step for step in steps if step.place >= lag] or [step for step in steps if step.place]
    if len(steady) < _LEAST_STEPS:
        return Report(
            bound=Bound.UNKNOWN, remedy=_REMEDIES[Bound.UNKNOWN], steps=len(steps), epochs=len(recorder.epochs),
            workers=recorder.workers,
        )  # fmt: skip
    limit_s = _STALL * _usual(steady, lag)
    stalled = [step for step in steady if step.wait_ns * _S > limit_s]
    even = [step for step in steady if step.wait_ns * _S <= limit_s]
    wait_s, loop_s = _mean(step.wait_ns for step in even), _mean(step.loop_ns or 0 for step in even)
    step_s = wait_s + loop_s
    begun = [step for step in steps if step.place < lag]
    spent_s = sum(step.wait_ns + (step.loop_ns or 0) for step in begun) * _S
    spent_s += sum(epoch.iter_ns for epoch in recorder.epochs) * _S
    startup_s = max(0.0, spent_s - len(begun) * step_s)
    stall_s = sum(step.wait_ns * _S - wait_s for step in stalled)
    total_s = spent_s + sum(step.wait_ns + (step.loop_ns or 0) for step in steady) * _S
    made = [step.made for step in even if step.made is not None]
    counted = [(one, one.counted) for one in made if one.counted is not None]
    costs, shares = _costs(recorder, even, made, counted, wait_s, loop_s)
    device_bytes = _mean_or_none([count.device_bytes for _, count in counted])
    faults = _mean_or_none([count.major_faults for _, count in counted])
    hot = _hot(recorder.places)
    bound, gain, needed = _bound(
        costs,
        total_s / len(steps),
        startup_s / len(steps),
        stall_s / len(steps),
        blocked=_blocked_bound(recorder, made, hot, device_bytes, faults),
        is_opaque=bool(recorder.opaque) and not made,
    )
    ready = [step.ready for step in even if step.ready is not None]
    busy = sum(one.ended_ns - one.began_ns for one in made) * _S
    first = [step.wait_ns * _S for step in steps if not step.place][:1]
    remedy = _REMEDIES[bound]
    if bound in (Bound.FEW_WORKERS, Bound.MANY_WORKERS):
        remedy = f"num_workers={needed}"
    return Report(
        bound=bound,
        gain=gain,
        remedy=remedy,
        feed_gain=total_s / len(steps) / max(loop_s, 1e-9),
        steps=len(steps),
        epochs=len(recorder.epochs),
        total_s=total_s,
        step_s=step_s,
        wait_s=wait_s,
        loop_s=loop_s,
        workers=recorder.workers,
        workers_needed=needed,
        access_s=_mean_or_none([(one.collated_ns - one.began_ns) * _S for one in made]),
        collate_s=_mean_or_none([(one.ended_ns - one.collated_ns) * _S for one in made]),
        pickling_s=_mean(step.pickling_ns for step in even),
        receiving_s=costs.receiving_s,
        pinning_s=_mean(step.pinning_ns for step in even),
        on_cpu_frac=shares[0] if shares else None,
        blocked_frac=shares[1] if shares else None,
        delayed_frac=shares[2] if shares else None,
        busy_frac=min(1.0, busy / (lag * step_s * len(even))) if made else None,
        ready_batches=statistics.fmean(ready) if ready else None,
        prefetched=recorder.prefetched,
        cpu_s=sum(costs.cpu.values()),
        others_cores=recorder.others_cores(),
        device_bytes=device_bytes,
        major_faults=faults,
        first_wait_s=(first[0] if first else 0.0) + recorder.epochs[0].iter_ns * _S,
        startup_s=startup_s,
        stall_count=len(stalled),
        stall_s=stall_s,
        hot=hot,
        files=_files(recorder.files),
        unseen=tuple(_unseen(recorder, made)),
    )


def _mean(values_ns: Iterable[int]) -> float:
    values = list(values_ns)
    return _S * statistics.fmean(values) if values else 0.0


def _mean_or_none(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _usual(steady: list[Step], lag: int) -> float:
    """Return the longest usual wait: workers make their batches side by side, so waits come in bursts of one per worker."""
    times = [step.wait_ns + (step.loop_ns or 0) for step in steady]
    turns = [sum(times[at : at + lag]) for at in range(0, len(times) - lag + 1, lag)] or [sum(times)]
    making = [step.made.ended_ns - step.made.began_ns for step in steady if step.made is not None] or [0]
    return max(statistics.median(turns), statistics.median(making)) * _S


def _costs(
    recorder: Recorder,
    even: list[Step],
    made: list[Made],
    counted: list[tuple[Made, Counted]],
    wait_s: float,
    loop_s: float,
) -> tuple[_Costs, tuple[float, float, float] | None]:
    """Return what each part costs, and the shares of making a batch: on a CPU, blocked, without a core."""
    workers, step_s = recorder.workers, wait_s + loop_s
    delay, main_cpu_s = 0.0, 0.0
    if recorder.watched_ns:
        delay = min(1.0, recorder.main_delayed_ns / recorder.watched_ns)
        main_cpu_s = step_s * recorder.main_cpu_ns / recorder.watched_ns
    cpu_in_wait_s = _mean(step.wait_cpu_ns for step in even)
    receiving_s = max(cpu_in_wait_s, _mean(step.unpickling_ns for step in even if not step.pinning_ns))
    receiving_s = min(receiving_s, wait_s)
    pinning_s = _mean(step.pinning_ns + (step.unpickling_ns if step.pinning_ns else 0) for step in even)
    shares = None
    if made:
        access_s = _mean(one.collated_ns - one.began_ns for one in made)
        collate_s = _mean(one.ended_ns - one.collated_ns for one in made)
        pickling_s = _mean(step.pickling_ns for step in even)
        shares = _shares(counted)
    elif workers:  # its inside is not seen
        access_s, collate_s, pickling_s = wait_s * workers, 0.0, 0.0
    else:
        on_cpu = min(1.0, cpu_in_wait_s / wait_s) if wait_s else 1.0
        access_s, collate_s, pickling_s, shares = wait_s, 0.0, 0.0, (on_cpu, 1.0 - on_cpu, 0.0)
    on_cpu, blocked, delayed = shares or (1.0, 0.0, 0.0)
    if not workers:
        receiving_s = 0.0
    making_s = access_s + collate_s
    cpu = {
        _Part.LOOP: max(0.0, main_cpu_s - cpu_in_wait_s),
        _Part.COMPUTING: on_cpu * access_s,
        _Part.COLLATE: on_cpu * collate_s,
        _Part.HANDOFF: on_cpu * pickling_s + (cpu_in_wait_s if workers else 0.0),
    }
    own = sum(cpu.values()) / step_s
    others = recorder.others_cores()
    delayed_by_own = own / (own + others) if own else 0.0
    fair, fair_made = 1.0 - delay * delayed_by_own, 1.0 - delayed * delayed_by_own
    blocked_s = min(blocked * making_s, access_s)  # collating only computes
    costs = _Costs(
        workers=workers,
        cores=len(os.sched_getaffinity(0)),
        step_s=step_s,
        wall={
            _Part.LOOP: loop_s * fair,
            _Part.COMPUTING: (access_s - blocked_s) * fair_made,
            _Part.BLOCKED: blocked_s,
            _Part.COLLATE: collate_s * fair_made,
            _Part.HANDOFF: pickling_s * fair_made,
            _Part.PINNING: pinning_s,
        },
        cpu=cpu,
        receiving_s=receiving_s,
    )
    rest_s = max(0.0, step_s - costs.step())
    return _Costs(**{**costs.__dict__, "rest_s": rest_s}), shares


def _shares(counted: list[tuple[Made, Counted]]) -> tuple[float, float, float] | None:
    wall = sum(made.ended_ns - made.began_ns for made, _ in counted)
    if not wall:
        return None
    on_cpu = min(1.0, sum(count.cpu_ns for _, count in counted) / wall)
    delayed = min(1.0 - on_cpu, sum(count.delayed_ns for _, count in counted) / wall)
    return on_cpu, 1.0 - on_cpu - delayed, delayed


def _bound(
    costs: _Costs, mean_s: float, startup_s: float, stall_s: float, *, blocked: Bound, is_opaque: bool
) -> tuple[Bound, float, int | None]:
    """Return the limit, the speed-up without it, and the workers that are enough.

    All times are per step, over the whole of the recording.
    """

    def gain(step_s: float) -> float:
        return mean_s / max(mean_s - max(0.0, costs.step_s - step_s), 1e-9)

    gains = {
        Bound.TRANSFORM: gain(costs.step(without=_Part.COMPUTING)),
        blocked: gain(costs.step(without=_Part.BLOCKED)),
        Bound.COLLATE: gain(costs.step(without=_Part.COLLATE)),
        Bound.HANDOFF: gain(costs.step(without=_Part.HANDOFF)),
        Bound.PINNING: gain(costs.step(without=_Part.PINNING)),
        Bound.STARTUP: mean_s / max(mean_s - startup_s, 1e-9),
        Bound.STALLS: mean_s / max(mean_s - stall_s, 1e-9),
    }
    spent = {
        Bound.TRANSFORM: costs.wall[_Part.COMPUTING],
        blocked: costs.wall[_Part.BLOCKED],
        Bound.COLLATE: costs.wall[_Part.COLLATE],
        Bound.HANDOFF: costs.wall[_Part.HANDOFF] + costs.receiving_s + costs.rest_s,
    }
    needed = _workers_needed(costs)
    bound = max(gains, key=lambda part: (round(gains[part], 2), spent.get(part, 0.0)))
    if gains[bound] < LEAST_GAIN:
        without_loop = max(costs.step(without=_Part.LOOP), 1e-9)
        return Bound.COMPUTE, max(1.0, gain(without_loop)), needed
    if is_opaque and bound is not Bound.STARTUP and bound is not Bound.STALLS:
        return Bound.LOADER, gains[bound], None
    if bound is Bound.STARTUP and costs.workers > _MANY * needed:
        return Bound.MANY_WORKERS, gains[bound], needed
    if bound in (Bound.TRANSFORM, Bound.COLLATE, blocked) and needed > costs.workers:
        more = gain(costs.step(workers=needed))
        # Workers that wait do not need a core each, so it is the wait that is worth naming unless they hide all of it.
        if more >= (_ENOUGH * gains[bound] if bound is blocked else LEAST_GAIN):
            return Bound.FEW_WORKERS, more, needed
    return bound, gains[bound], needed


def _workers_needed(costs: _Costs) -> int:
    """Return the fewest workers that reach the speed of as many as there are cores, or as there are now."""
    most = max(1, costs.workers, costs.cores)
    best = costs.step(workers=most)
    return next(count for count in range(1, most + 1) if best >= _ENOUGH * costs.step(workers=count))


def _blocked_bound(
    recorder: Recorder,
    made: list[Made],
    hot: tuple[HotLine, ...],
    device_bytes: float | None,
    faults: float | None,
) -> Bound:
    if device_bytes or faults:
        return Bound.STORAGE
    if hot and any(word in (hot[0].text + hot[0].calls).lower() for word in ("lock", "acquire", "semaphore")):
        return Bound.LOCK
    return Bound.WAITING if made or not recorder.workers else Bound.LOADER


def _hot(places: Counter[Place]) -> tuple[HotLine, ...]:
    total = places.total()
    lines: Counter[tuple[str, int]] = Counter()
    calls: dict[tuple[str, int], Counter[str]] = {}
    for place, count in places.items():
        key = (place.file, place.line)
        lines[key] += count
        calls.setdefault(key, Counter())[f"{Path(place.inner_file).name} {place.inner_function}"] += count
    return tuple(
        HotLine(
            share=count / total,
            file=file,
            line=line,
            text=linecache.getline(file, line).strip(),
            calls=calls[file, line].most_common(1)[0][0],
        )
        for (file, line), count in lines.most_common(5)
    )


_SIBLINGS = 64
_FOLDERS = 8


def _files(seen: Iterable[str]) -> Files | None:
    """Count the resident share of the files that were seen, or of some in the same folders if there are many."""
    paths = [Path(path) for path in sorted(seen)]
    try:
        paths = [path for path in paths if path.is_file() and path.stat().st_size]
        if not paths:
            return None
        folder = os.path.commonpath([path.parent for path in paths])
        counted = paths
        if len(paths) >= _FOLDERS:  # each was read just before it was seen
            folders = sorted({path.parent for path in paths})[:_FOLDERS]
            counted = [
                Path(entry.path)
                for each in folders
                for entry, _ in zip(os.scandir(each), range(_SIBLINGS // len(folders)), strict=False)
                if entry.is_file()
            ]
        size = sum(path.stat().st_size for path in paths)
        return Files(count=len(paths), folder=folder, size_bytes=size, resident_frac=resident(counted).frac)
    except Exception:  # noqa: BLE001 - files come and go, and not every kernel counts
        return None


def _unseen(recorder: Recorder, made: list[Made]) -> Iterable[str]:
    if recorder.opaque:
        yield f"the inside of the loader: {recorder.opaque}"
    elif not made and recorder.workers:
        yield "the inside of the workers: the batches came without times"
    elif not made:
        yield "the inside of the loader: it is not a torch DataLoader"
    if recorder.step_count > MOST_STEPS:
        yield f"all but the last {MOST_STEPS:,} steps"
    for path in recorder.files:
        try:
            kind = mount_of(path).fstype
        except OSError:
            continue
        if not counts_reads(kind):
            yield f"device reads: {kind} does not attribute them"
            return
