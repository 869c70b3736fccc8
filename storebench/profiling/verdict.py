"""The verdict on a recorded loop: the part whose removal would gain most, and by how much, from its measured times.

With workers, a step takes as long as the longest of the loop, the workers side by side, the pinning thread, and all CPU
time over the cores; without workers, their sum.
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

_ENOUGH = 0.95
"""So many workers are enough that more would be faster by no more than this."""

_MANY = 2
"""More than this many times the workers that are needed are too many."""

_LOCK = re.compile(r"(?<![a-z])[fr]?lock|acquire|semaphore|synchronize")

_S = 1e-9
_NONE = 1e-9


@dataclass(frozen=True, kw_only=True)
class _Costs:
    """Seconds per step or batch of each part, and of CPU time."""

    workers: int
    wall: Mapping[Bound, float]
    cpu: Mapping[Bound, float]
    receiving_s: float
    rest_s: float = 0.0  # of a step, if workers are not its longest stage
    stretch: float = 1.0  # workers take turns unevenly, so a step takes longer than a batch over their number

    @property
    def making_s(self) -> float:
        """Seconds for one batch, side by side with others if there are workers."""
        parts = (Bound.TRANSFORM, Bound.WAITING, Bound.COLLATE, Bound.HANDOFF)
        return sum(self.wall[part] for part in parts) / max(1, self.workers)

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        looping = self.wall[Bound.COMPUTE] + self.receiving_s + self.rest_s
        if not self.workers:
            return looping + self.making_s + self.wall[Bound.PINNING]
        busy = sum(self.cpu.values()) / len(os.sched_getaffinity(0))
        return max(looping, self.stretch * self.making_s, self.wall[Bound.PINNING], busy)

    def fitted(self, step_s: float) -> "_Costs":
        """Return the costs that explain the measured time of a step."""
        if self.workers and self.making_s > self.wall[Bound.COMPUTE] + self.receiving_s:
            return dataclasses.replace(self, stretch=max(1.0, step_s / self.making_s))
        return dataclasses.replace(self, rest_s=max(0.0, step_s - self.step_s))

    def without(self, part: Bound, *, but_s: float = 0.0) -> "_Costs":
        """Return the costs without a part, except for some seconds of it."""
        costs = dataclasses.replace(self, wall={**self.wall, part: but_s}, cpu={**self.cpu, part: 0.0})
        return dataclasses.replace(costs, receiving_s=0.0, rest_s=0.0) if part is Bound.HANDOFF else costs

    def with_workers(self, count: int) -> "_Costs":
        return dataclasses.replace(self, workers=count)


def report_of(recorder: Recorder) -> Report:
    """Return the verdict on what a recorder has seen."""
    steps = [step for step in recorder.steps if step.loop_ns is not None]
    lag = max(1, recorder.workers)
    # Workers make their first batches side by side, so these arrive faster than any later ones can.
    steady = [step for step in steps if step.place >= lag] or [step for step in steps if step.place]
    if len(steady) < _LEAST_STEPS:
        return Report(bound=Bound.UNKNOWN, steps=len(steps), epochs=recorder.epochs, workers=recorder.workers)
    limit_s = max(_STALL * _usual_s(steady, lag), _STALL_S)
    even = [step for step in steady if step.wait_ns * _S <= limit_s]
    stalls = [step.wait_ns * _S for step in steady if step.wait_ns * _S > limit_s]
    wait_s, loop_s = _mean_s(step.wait_ns for step in even), _mean_s(step.loop_ns or 0 for step in even)
    first = [step for step in steps if step.place < lag]
    made = [step.made for step in even if step.made is not None]
    counted = [one.counted for one in made if one.counted is not None]
    shares = _shares(made)
    costs = _costs(recorder.workers, even, made, shares, wait_s, loop_s)
    report = Report(
        bound=Bound.UNKNOWN,
        steps=len(steps),
        epochs=recorder.epochs,
        total_s=_total_s(first) + _total_s(steady),
        wait_s=wait_s,
        loop_s=loop_s,
        workers=recorder.workers,
        parts_s=_parts(costs) if made and not recorder.makes else {},
        shares=shares,
        device_bytes=_mean(count.device_bytes for count in counted),
        major_faults=_mean(count.major_faults for count in counted),
        startup_s=max(0.0, _total_s(first) - len(first) * (wait_s + loop_s)),
        stall_s=sum(stalls) - len(stalls) * wait_s,
        hot=hot_lines(recorder.places),
        files=recorder.first_files,
        unseen=tuple(unseen_of(recorder, is_inside_seen=bool(made))),
    )
    return _judged(report, costs, is_opaque=not made)


def _total_s(steps: Iterable[Step]) -> float:
    return sum(step.wait_ns + (step.loop_ns or 0) for step in steps) * _S


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.fmean(known) if known else None


def _mean_s(values_ns: Iterable[int]) -> float:
    return _S * (_mean(values_ns) or 0.0)


def _usual_s(steady: list[Step], lag: int) -> float:
    """Return the longest usual wait: workers make their batches side by side, so waits come in bursts of one per worker."""
    turns = [_total_s(steady[at : at + lag]) for at in range(0, len(steady) - lag + 1, lag)]
    making = [(step.made.ended_ns - step.made.began_ns) * _S for step in steady if step.made is not None]
    return max(statistics.median(turns or [_total_s(steady)]), statistics.median(making or [0.0]))


def _shares(made: list[Made]) -> dict[str, float]:
    """Return the shares of the time that a batch takes to make: on a CPU, blocked, and without a core."""
    counted = [(one, one.counted) for one in made if one.counted is not None]
    wall = sum(one.ended_ns - one.began_ns for one, _ in counted)
    if not wall:
        return {}
    on_cpu = min(1.0, sum(count.cpu_ns for _, count in counted) / wall)
    delayed = min(1.0 - on_cpu, sum(count.delayed_ns for _, count in counted) / wall)
    return {"on a CPU": on_cpu, "blocked": 1.0 - on_cpu - delayed, "without a core": delayed}


def _parts(costs: _Costs) -> dict[str, float]:
    """Return the seconds of each stage of a batch that were seen."""
    parts = {
        "dataset": costs.wall[Bound.TRANSFORM] + costs.wall[Bound.WAITING],
        "collate": costs.wall[Bound.COLLATE],
    }
    if costs.workers:
        parts |= {"pickling": costs.wall[Bound.HANDOFF], "receiving": costs.receiving_s}
    return parts | ({"pinning": costs.wall[Bound.PINNING]} if costs.wall[Bound.PINNING] else {})


def _costs(
    workers: int,
    even: list[Step],
    made: list[Made],
    shares: Mapping[str, float],
    wait_s: float,
    loop_s: float,
) -> _Costs:
    waiting_cpu_s = min(wait_s, _mean_s(step.wait_cpu_ns for step in even))
    receiving_s = 0.0
    if workers:
        unpickling_s = _mean_s(0 if one.pinning_ns else one.unpickling_ns for one in made)
        receiving_s = min(wait_s, max(waiting_cpu_s, unpickling_s))
    dataset_s, collate_s = wait_s * max(1, workers), 0.0  # if the inside is not seen
    if made:
        dataset_s = _mean_s(one.collated_ns - one.began_ns for one in made)
        collate_s = _mean_s(one.ended_ns - one.collated_ns for one in made)
    pickling_s = _mean_s(one.pickling_ns for one in made)
    on_cpu = shares.get("on a CPU", 1.0)
    # Collating only computes.
    blocked_s = min(shares.get("blocked", 0.0) * (dataset_s + collate_s), dataset_s)
    cpu = {
        Bound.COMPUTE: max(0.0, _mean_s(step.cpu_ns for step in even) - waiting_cpu_s),
        Bound.TRANSFORM: on_cpu * dataset_s,
        Bound.COLLATE: on_cpu * collate_s,
        Bound.HANDOFF: on_cpu * pickling_s + (waiting_cpu_s if workers else 0.0),
    }
    wall = {
        Bound.COMPUTE: loop_s,
        Bound.TRANSFORM: dataset_s - blocked_s,
        Bound.WAITING: blocked_s,
        Bound.COLLATE: collate_s,
        Bound.HANDOFF: pickling_s,
        Bound.PINNING: _mean_s(one.pinning_ns and one.pinning_ns + one.unpickling_ns for one in made),
    }
    return _Costs(workers=workers, wall=wall, cpu=cpu, receiving_s=receiving_s).fitted(wait_s + loop_s)


def _judged(report: Report, costs: _Costs, *, is_opaque: bool) -> Report:
    """Return the report with the limit, the speed-up without it, and the workers that are enough."""
    mean_s = report.total_s / report.steps

    def gain(saved_s: float) -> float:
        return mean_s / max(mean_s - max(0.0, saved_s), _NONE)

    def gain_with(other: _Costs) -> float:
        return gain(report.step_s - other.step_s)

    gains: dict[Bound, float] = {
        **{part: gain_with(costs.without(part)) for part in costs.wall if part is not Bound.COMPUTE},
        Bound.STARTUP: gain(report.startup_s / report.steps),
        Bound.STALLS: gain(report.stall_s / report.steps),
    }
    spent = {**costs.wall, Bound.HANDOFF: costs.wall[Bound.HANDOFF] + costs.receiving_s + costs.rest_s}
    bound: Bound = max(gains, key=lambda part: (round(gains[part], 2), spent.get(part, 0.0)))
    best, needed = gains[bound], _workers_needed(costs)
    if best < LEAST_GAIN:
        bound, best = Bound.COMPUTE, gain_with(costs.without(Bound.COMPUTE))
    elif is_opaque and bound in costs.wall:
        bound = Bound.LOADER
    elif bound is Bound.STARTUP and costs.workers > _MANY * needed:
        bound = Bound.MANY_WORKERS
    elif bound in (Bound.TRANSFORM, Bound.COLLATE, Bound.WAITING):
        # Workers that wait need no core each, so the wait is worth naming unless more workers hide all of it.
        least = _ENOUGH * best if bound is Bound.WAITING else LEAST_GAIN
        more = gain_with(costs.with_workers(needed))
        if bound is Bound.WAITING:
            bound = _kind_of_wait(report)
        if bound is Bound.LOCK:  # one worker at a time still does what the lock is for
            each_s = costs.wall[Bound.WAITING] / max(1, costs.workers)
            best = gain_with(costs.without(Bound.WAITING, but_s=each_s))
        elif needed > costs.workers and more >= least and bound is not Bound.STORAGE and report.parts_s:
            bound, best = Bound.FEW_WORKERS, more
    return dataclasses.replace(report, bound=bound, gain=best, workers_needed=None if is_opaque else needed)


def _workers_needed(costs: _Costs) -> int:
    """Return the fewest workers that reach the speed of as many as there are cores, or as there are now."""
    most = max(costs.workers, len(os.sched_getaffinity(0)))
    best_s = costs.with_workers(most).step_s
    return next(count for count in range(1, most + 1) if best_s >= _ENOUGH * costs.with_workers(count).step_s)


def _kind_of_wait(report: Report) -> Bound:
    if report.device_bytes or report.major_faults:
        return Bound.STORAGE
    line = f"{report.hot[0].text} {report.hot[0].calls}".lower() if report.hot else ""
    return Bound.LOCK if _LOCK.search(line) else Bound.WAITING
