"""The verdict on a recorded loop: the part whose removal would gain most, and by how much, from its measured times.

With workers, a step takes as long as the longest of the loop, the workers side by side, the pinning thread, and all CPU
time over the cores; without workers, their sum. Times without a core are no part's own: they come from all CPU time.
"""

import dataclasses
import os
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storebench.profiling.evidence import Bound, Report, hot_lines, unseen_of
from storebench.profiling.making import Made
from storebench.profiling.recorder import Recorder, Step

LEAST_GAIN = 1.10
"""A part of the loading is the limit only if without it the loop would be this many times as fast."""

_LEAST_STEPS = 4
_STALL, _STALL_S = 3.0, 0.05
"""A wait of so many times the usual, and of at least so many seconds, is a stall."""

_RARE = 0.05
"""A larger share of the waits are no stalls."""

_ENOUGH = 0.95
"""So many workers are enough that more would be faster by no more than this."""

_MANY = 2
"""More than this many times the workers that are needed are too many."""

_FULL_BATCH = 32
"""What is done once for a batch weighs little from so many samples on."""

_MANY_TENSORS = 8
"""So many tensors per batch could be handed over as one."""

_LOCKED_FRAC = 0.3
"""Of two workers that share a lock, one waits for it half of the time."""

_LOCK = re.compile(r"(?<![a-z])[fr]?lock|acquire|semaphore|synchronize")

_MAKING = (Bound.TRANSFORM, Bound.WAITING, Bound.COLLATE, Bound.HANDOFF)
_S = 1e-9
_NONE = 1e-9


@dataclass(frozen=True, kw_only=True)
class _Costs:
    """Seconds per step or batch of each part, and of CPU time."""

    workers: int
    wall: dict[Bound, float]
    cpu: dict[Bound, float]
    receiving_s: float
    rest_s: float = 0.0  # of a step, if workers are not its longest stage
    stretch: float = 1.0  # workers take turns unevenly, so a step takes longer than a batch over their number

    @property
    def making_s(self) -> float:
        """Seconds for one batch, side by side with others if there are workers."""
        return sum(self.wall[part] for part in _MAKING) / max(1, self.workers)

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        looping = self.wall[Bound.COMPUTE] + self.receiving_s + self.rest_s
        if not self.workers:
            return looping + self.making_s + self.wall[Bound.PINNING]
        return max(looping, self.stretch * max(self.making_s, self.busy_s), self.wall[Bound.PINNING])

    @property
    def busy_s(self) -> float:
        """Seconds per step if all cores compute all the time."""
        return sum(self.cpu.values()) / len(os.sched_getaffinity(0))

    def with_share(self, share: float, *parts: Bound) -> "_Costs":
        """Return the costs with only a share of some parts."""
        return dataclasses.replace(
            self,
            wall=self.wall | {part: share * self.wall[part] for part in parts},
            cpu=self.cpu | {part: share * self.cpu.get(part, 0.0) for part in parts},
            receiving_s=self.receiving_s * (share if Bound.HANDOFF in parts else 1.0),
        )

    def with_workers(self, count: int) -> "_Costs":
        return dataclasses.replace(self, workers=count)

    def fitted(self, step_s: float) -> "_Costs":
        """Return the costs with what the model leaves of the measured time of a step."""
        return dataclasses.replace(self, rest_s=max(0.0, step_s - self.step_s))


def report_of(recorder: Recorder, rates: Mapping[int, float] | None = None) -> Report:
    """Return the verdict on what a recorder has seen; `rates` are batches per second by workers, without a loop."""
    if recorder.is_drained:
        return Report(bound=Bound.AHEAD, steps=len(recorder.steps), epochs=recorder.epochs)
    steps = [step for step in recorder.steps if step.loop_ns is not None]
    lag = max(1, recorder.workers)
    # Workers make their first batches side by side, so these arrive faster than any later ones can.
    steady = [step for step in steps if step.place >= lag] or [step for step in steps if step.place]
    if len(steady) < _LEAST_STEPS:
        return Report(bound=Bound.UNKNOWN, steps=len(steps), epochs=recorder.epochs, workers=recorder.workers)
    limit_s = max(_STALL * _usual_s(steady, lag), _STALL_S)
    stalls = [step.wait_ns * _S for step in steady if step.wait_ns * _S > limit_s]
    if len(stalls) > _RARE * len(steady):  # the usual way of a device that serves in bursts
        limit_s, stalls = float("inf"), []
    even = [step for step in steady if step.wait_ns * _S <= limit_s]
    wait_s, loop_s = _mean_s(step.wait_ns for step in even), _mean_s(step.loop_ns for step in even)
    first, starts = [step for step in steps if step.place < lag], [step for step in steps if not step.place]
    ends_s = recorder.ends_ns * _S
    made = [step.made for step in even if step.made is not None]
    told = [one.told for one in made if one.told is not None]
    batches = sum(one.batches for one in told) or None
    report = Report(
        bound=Bound.UNKNOWN,
        steps=len(steps),
        epochs=recorder.epochs,
        total_s=_total_s(first) + _total_s(steady) + ends_s,
        wait_s=wait_s,
        loop_s=loop_s,
        # The first of them waits for the end of the loader.
        cached_s=_mean_s(step.loop_ns for step in recorder.replayed[1:]) or None,
        cuda_s=_mean(step.cuda_ns and step.cuda_ns * _S for step in even),
        cuda_idle_s=_mean(step.cuda_idle_ns and step.cuda_idle_ns * _S for step in even),
        workers=recorder.workers,
        cores=len(os.sched_getaffinity(0)),
        batch_size=recorder.batch_size,
        cpu_s=batches and sum(one.cpu_ns for one in told) * _S / batches,
        device_bytes=batches and sum(one.device_bytes for one in told) / batches,
        major_faults=batches and sum(one.major_faults for one in told) / batches,
        ready_batches=_mean(step.ready for step in even),
        prefetched=recorder.prefetched,
        first_batch_s=_mean_s(step.wait_ns for step in starts),
        worker_start_s=_mean_s(step.made and step.made.began_ns - step.asked_ns for step in starts)
        if recorder.workers
        else None,
        startup_s=max(0.0, _total_s(first) - len(first) * (wait_s + loop_s)) + ends_s,
        stall_s=sum(stalls) - len(stalls) * wait_s,
        looks=recorder.places.total(),
        hot=hot_lines(recorder.places),
        files=recorder.files,
        disturbed=recorder.disturbance() or "",
        unseen=tuple(unseen_of(recorder, is_inside_seen=bool(made))),
    )
    costs, shares = _costs(recorder, even, report, made)
    parts_s = _parts(costs, made) if made and not recorder.makes else {}
    report = dataclasses.replace(report, shares=shares, parts_s=parts_s)
    return _judged(report, costs, recorder, rates or {}, is_opaque=not made)


def _total_s(steps: Iterable[Step]) -> float:
    return sum(step.wait_ns + (step.loop_ns or 0) for step in steps) * _S


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _mean_s(values_ns: Iterable[int | None]) -> float:
    return _S * (_mean(values_ns) or 0.0)


def _usual_s(steady: list[Step], lag: int) -> float:
    """Return the longest usual wait: workers make their batches side by side, so waits come in bursts of one per worker."""
    turns = [_total_s(steady[at : at + lag]) for at in range(0, len(steady) - lag + 1, lag)]
    making = [(step.made.ended_ns - step.made.began_ns) * _S for step in steady if step.made is not None]
    return max(statistics.median(turns or [_total_s(steady)]), statistics.median(making or [0.0]))


def _parts(costs: _Costs, made: list[Made]) -> dict[str, float]:
    """Return the seconds of each stage of a batch that were seen."""
    parts = {
        "dataset": _mean_s(one.collated_ns - one.began_ns for one in made),
        "collate": _mean_s(one.ended_ns - one.collated_ns for one in made),
    }
    if costs.workers:
        parts |= {"pickling": costs.wall[Bound.HANDOFF], "receiving": costs.receiving_s}
    return parts | ({"pinning": costs.wall[Bound.PINNING]} if costs.wall[Bound.PINNING] else {})


def _costs(
    recorder: Recorder, even: list[Step], report: Report, made: list[Made]
) -> tuple[_Costs, dict[str, float]]:
    """Return what each part costs, and the shares of the time that a batch takes to make."""
    waiting_cpu_s = min(report.wait_s, _mean_s(step.wait_cpu_ns for step in even))
    process_cpu_s = (report.cpu_s or 0.0) if recorder.workers else waiting_cpu_s
    wall, cpu, shares = _making(recorder, made, report.wait_s, process_cpu_s)
    wall[Bound.COMPUTE] = report.loop_s
    cpu[Bound.COMPUTE] = max(0.0, _mean_s(step.cpu_ns for step in even) - waiting_cpu_s)
    wall[Bound.PINNING] = _mean_s(one.pinning_ns and one.pinning_ns + one.unpickling_ns for one in made)
    costs = _Costs(workers=recorder.workers, wall=wall, cpu=cpu, receiving_s=0.0)
    if not recorder.workers:
        return costs.fitted(report.step_s), shares
    cpu[Bound.HANDOFF] += waiting_cpu_s
    # A batch that was not yet made when it was asked for is waited for; the rest of the wait is the handoff.
    waits = [(step, step.made) for step in even if step.made is not None]
    starving_s = _mean_s(min(step.wait_ns, max(0, made.ended_ns - step.asked_ns)) for step, made in waits)
    looping_s = report.loop_s - _mean_s(step.delayed_ns for step in even)
    made_s = costs.making_s - wall[Bound.HANDOFF] / recorder.workers
    busy_s = looping_s + waiting_cpu_s + wall[Bound.HANDOFF] / recorder.workers
    if starving_s >= report.wait_s / 2 or made_s > busy_s:
        wall[Bound.COMPUTE] = max(0.0, looping_s)
        costs = dataclasses.replace(costs, receiving_s=waiting_cpu_s)
        stretch = report.step_s / max(costs.making_s, costs.busy_s, _NONE)
        return dataclasses.replace(costs, stretch=max(1.0, stretch)), shares
    received_s = report.wait_s - starving_s - _mean_s(step.wait_delayed_ns for step in even)
    costs = dataclasses.replace(costs, receiving_s=max(waiting_cpu_s, received_s))
    return costs.fitted(report.step_s), shares


def _making(
    recorder: Recorder, made: list[Made], wait_s: float, process_cpu_s: float
) -> tuple[dict[Bound, float], dict[Bound, float], dict[str, float]]:
    """Return the wall and the CPU time of each part of making a batch, and the shares of what the process did."""
    names = ("dataset_cpu_ns", "collate_cpu_ns", "pickling_ns", "delayed_ns")
    dataset_cpu_s, collate_cpu_s, pickling_s, delayed_s = (
        _mean_s(getattr(one, name) for one in made) for name in names
    )
    unpickling_s = _mean_s(0 if one.pinning_ns else one.unpickling_ns for one in made)
    making_s = _mean_s(one.ended_ns - one.began_ns for one in made) or wait_s * max(1, recorder.workers)
    cpu_s = dataset_cpu_s + collate_cpu_s
    delayed_s = min(delayed_s, max(0.0, making_s - cpu_s))
    # Other threads of the process hand tensors over, or compute for the dataset.
    threads_s = max(0.0, process_cpu_s - cpu_s - pickling_s)
    handing_s = pickling_s + min(threads_s, unpickling_s)
    helping_s = max(0.0, threads_s - unpickling_s)
    idle_s = max(0.0, making_s - cpu_s - delayed_s - handing_s)
    blocked_s = max(0.0, idle_s - helping_s)
    delay_s = 0.0 if recorder.workers else delayed_s  # side by side, parts delay each other
    collating_frac = collate_cpu_s / max(cpu_s, _NONE)
    wall = {
        Bound.TRANSFORM: dataset_cpu_s + idle_s - blocked_s + delay_s * (1.0 - collating_frac),
        Bound.WAITING: blocked_s,
        Bound.COLLATE: collate_cpu_s + delay_s * collating_frac,
        Bound.HANDOFF: handing_s,
    }
    cpu = {
        Bound.TRANSFORM: dataset_cpu_s + helping_s,
        Bound.COLLATE: collate_cpu_s,
        Bound.HANDOFF: handing_s,
    }
    if not made:
        return wall, cpu, {}
    seen = recorder.places.total() * blocked_s / making_s
    reading_s = blocked_s * min(1.0, recorder.io_waits / max(1.0, seen))
    parts_s = {
        "on a CPU": making_s - delayed_s - blocked_s,
        "reading": reading_s,
        "blocked": blocked_s - reading_s,
        "without a core": delayed_s,
    }
    return wall, cpu, {name: seconds / making_s for name, seconds in parts_s.items()}


def _judged(
    report: Report, costs: _Costs, recorder: Recorder, rates: Mapping[int, float], *, is_opaque: bool
) -> Report:
    """Return the report with the limit, the speed-up without it, and the workers that are enough."""
    mean_s = report.total_s / report.steps

    def gain(saved_s: float) -> float:
        return mean_s / max(mean_s - saved_s, _NONE)

    def gain_with(other: _Costs) -> float:
        return gain(max(0.0, report.step_s - max(other.step_s, report.least_step_s)))

    per_batch = min(1.0, (recorder.batch_size or _FULL_BATCH) / _FULL_BATCH)
    are_small = recorder.tensors * per_batch < 1.0
    if are_small:
        handed = costs.with_share(per_batch, Bound.HANDOFF, Bound.COLLATE)
    else:
        left = 1.0 / recorder.tensors if recorder.tensors > _MANY_TENSORS else 0.0
        handed = costs.with_share(left, Bound.HANDOFF)
    steps_s = _steps_by_workers(report, costs, rates)
    needed = next(count for count in steps_s if min(steps_s.values()) >= _ENOUGH * steps_s[count])
    more = gain(max(0.0, report.step_s - steps_s[needed]))
    gains = {part: gain_with(costs.with_share(0.0, part)) for part in (*_MAKING, Bound.PINNING)}
    gains[Bound.HANDOFF] = gain_with(handed) if costs.workers else 1.0
    # Workers that persist start once.
    again = 1.0 - 1.0 / report.epochs if costs.workers and report.epochs > 1 else 1.0
    gains[Bound.STARTUP] = gain(again * report.startup_s / report.steps)
    gains[Bound.STALLS] = gain(report.stall_s / report.steps)
    spent = {**costs.wall, Bound.HANDOFF: costs.wall[Bound.HANDOFF] + costs.receiving_s + costs.rest_s}
    bound = max(gains, key=lambda part: (round(gains[part], 2), spent.get(part, 0.0)))
    best = gains[bound]
    if rates and needed != costs.workers and more >= max(LEAST_GAIN, best):
        bound, best = Bound.FEW_WORKERS if needed > costs.workers else Bound.MANY_WORKERS, more
    elif best < LEAST_GAIN:
        alone_s = costs.with_share(0.0, Bound.COMPUTE).step_s
        bound, best = Bound.COMPUTE, gain(max(0.0, report.step_s - alone_s))
    elif is_opaque and bound in costs.wall:
        bound = Bound.LOADER
    elif bound is Bound.HANDOFF and are_small:
        bound = Bound.SMALL_BATCHES
    elif bound is Bound.STARTUP and costs.workers > _MANY * needed:
        bound = Bound.MANY_WORKERS
        best = gain(report.startup_s / report.steps * (1.0 - needed / costs.workers))
    elif bound in (Bound.TRANSFORM, Bound.COLLATE, Bound.WAITING):
        # Workers that wait need no core each, so the wait is worth naming unless more workers hide all of it.
        least = _ENOUGH * best if bound is Bound.WAITING else LEAST_GAIN
        if bound is Bound.WAITING:
            bound = _kind_of_wait(report)
        if bound is Bound.LOCK:  # one worker at a time still does what the lock is for
            best = gain_with(costs.with_share(1.0 / max(1, costs.workers), Bound.WAITING))
        elif needed > costs.workers and more >= least and bound is not Bound.STORAGE and report.parts_s:
            bound, best = Bound.FEW_WORKERS, more
    shown = set(rates) or ({1, report.cores, needed, costs.workers} if report.parts_s else set())
    return dataclasses.replace(
        report,
        bound=bound,
        gain=best,
        workers_needed=None if is_opaque else needed,
        by_workers={
            count: gain(report.step_s - step_s) for count, step_s in steps_s.items() if count in shown
        },
        is_swept=bool(rates),
    )


def _steps_by_workers(report: Report, costs: _Costs, rates: Mapping[int, float]) -> dict[int, float]:
    """Return the seconds per step with other numbers of workers, measured or predicted."""
    if rates:
        looping_s = report.cached_s or costs.wall[Bound.COMPUTE] + costs.receiving_s
        steps_s = {
            count: max(looping_s, 1.0 / rate) if count else looping_s + 1.0 / rate
            for count, rate in rates.items()
        }
        # Both sides of each comparison are of the sweep: the machine may have been busier before it.
        scale = report.step_s / steps_s[costs.workers]
        steps_s = {count: scale * step_s for count, step_s in steps_s.items()}
    else:
        counts = range(1, max(costs.workers, report.cores) + 1)
        steps_s = {count: costs.with_workers(count).step_s for count in counts}
    return {count: max(step_s, report.least_step_s) for count, step_s in steps_s.items()}


def _kind_of_wait(report: Report) -> Bound:
    if report.shares["reading"] >= report.shares["blocked"]:
        return Bound.STORAGE
    locked = sum(line.share for line in report.hot if _LOCK.search(f"{line.text} {line.calls}".lower()))
    return Bound.LOCK if locked >= _LOCKED_FRAC else Bound.WAITING
