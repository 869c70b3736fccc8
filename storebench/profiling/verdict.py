"""The verdict on a recorded loop: the part whose removal would gain most, and by how much, from its measured times.

With workers, a step takes as long as the longest of the loop, the workers side by side, the pinning thread, and all CPU
time over the cores; without workers, their sum.
"""

import dataclasses
import os
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

    def step(self, *, without: Bound | None = None, workers: int | None = None) -> float:
        """Return the time of a step without a part, or with other workers."""
        count = self.workers if workers is None else workers
        wall = {part: 0.0 if part is without else value for part, value in self.wall.items()}
        receiving, rest = (0.0, 0.0) if without is Bound.HANDOFF else (self.receiving_s, self.rest_s)
        making = wall[Bound.TRANSFORM] + wall[Bound.WAITING] + wall[Bound.COLLATE]
        if not count:
            return wall[Bound.COMPUTE] + making + wall[Bound.PINNING] + receiving + rest
        busy = sum(value for part, value in self.cpu.items() if part is not without)
        looping = wall[Bound.COMPUTE] + receiving + rest
        return max(
            looping,
            self.stretch * (making + wall[Bound.HANDOFF]) / count,
            wall[Bound.PINNING],
            busy / _cores(),
        )

    def fitted(self, step_s: float) -> "_Costs":
        """Return the costs that explain the measured time of a step."""
        making = self.wall[Bound.TRANSFORM] + self.wall[Bound.WAITING] + self.wall[Bound.COLLATE]
        alone_s = (making + self.wall[Bound.HANDOFF]) / max(1, self.workers)
        if self.workers and alone_s > self.wall[Bound.COMPUTE] + self.receiving_s:
            return dataclasses.replace(self, stretch=max(1.0, step_s / alone_s))
        return dataclasses.replace(self, rest_s=max(0.0, step_s - self.step()))


def report_of(recorder: Recorder) -> Report:
    """Return the verdict on what a recorder has seen."""
    steps = [step for step in recorder.steps if step.loop_ns is not None]
    lag = max(1, recorder.workers)
    # Workers make their first batches side by side, so these arrive faster than any later ones can.
    steady = [step for step in steps if step.place >= lag] or [step for step in steps if step.place]
    if len(steady) < _LEAST_STEPS:
        return Report(
            bound=Bound.UNKNOWN, steps=len(steps), epochs=len(recorder.epochs), workers=recorder.workers
        )
    limit_s = max(_STALL * _usual(steady, lag), _STALL_S)
    even = [step for step in steady if step.wait_ns * _S <= limit_s]
    stalls = [step.wait_ns * _S for step in steady if step.wait_ns * _S > limit_s]
    wait_s, loop_s = _mean(step.wait_ns for step in even), _mean(step.loop_ns or 0 for step in even)
    first = [step for step in steps if step.place < lag]
    spent_s = _total(first) + sum(epoch.iter_ns for epoch in recorder.epochs) * _S
    startup_s = max(0.0, spent_s - len(first) * (wait_s + loop_s))
    stall_s = sum(stalls) - len(stalls) * wait_s
    total_s = spent_s + _total(steady)
    made = [step.made for step in even if step.made is not None]
    shares = _shares(made)
    costs = _costs(recorder, even, made, shares, wait_s, loop_s)
    counted = [one.counted for one in made if one.counted is not None]
    report = Report(
        bound=Bound.UNKNOWN,
        steps=len(steps),
        epochs=len(recorder.epochs),
        total_s=total_s,
        wait_s=wait_s,
        loop_s=loop_s,
        workers=recorder.workers,
        parts_s=_parts(made, even, costs),
        shares=shares or {},
        busy_frac=_share(sum(one.ended_ns - one.began_ns for one in made) * _S, lag * _total(even)),
        ready_batches=_mean_or_none([step.ready for step in even if step.ready is not None]),
        prefetched=recorder.prefetched,
        others_cores=recorder.others_cores(),
        device_bytes=_mean_or_none([count.device_bytes for count in counted]),
        major_faults=_mean_or_none([count.major_faults for count in counted]),
        first_wait_s=(recorder.epochs[0].iter_ns + steps[0].wait_ns) * _S,
        init_s=recorder.init_ns * _S,
        startup_s=startup_s,
        stall_count=len(stalls),
        stall_s=stall_s,
        hot=hot_lines(recorder.places),
        files=recorder.first_files,
        unseen=tuple(unseen_of(recorder, is_inside_seen=bool(made))),
    )
    return _judged(report, costs, is_opaque=bool(recorder.workers or recorder.opaque) and not made)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _total(steps: Iterable[Step]) -> float:
    return sum(step.wait_ns + (step.loop_ns or 0) for step in steps) * _S


def _mean(values_ns: Iterable[int]) -> float:
    return _S * (_mean_or_none(list(values_ns)) or 0.0)


def _mean_or_none(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if part and whole else None


def _usual(steady: list[Step], lag: int) -> float:
    """Return the longest usual wait: workers make their batches side by side, so waits come in bursts of one per worker."""
    times = [step.wait_ns + (step.loop_ns or 0) for step in steady]
    turns = [sum(times[at : at + lag]) for at in range(0, len(times) - lag + 1, lag)] or [sum(times)]
    making = [step.made.ended_ns - step.made.began_ns for step in steady if step.made is not None] or [0]
    return max(statistics.median(turns), statistics.median(making)) * _S


def _shares(made: list[Made]) -> dict[str, float] | None:
    """Return the shares of the time that a batch takes to make: on a CPU, blocked, and without a core."""
    counted = [(one, one.counted) for one in made if one.counted is not None]
    wall = sum(one.ended_ns - one.began_ns for one, _ in counted)
    if not wall:
        return None
    on_cpu = min(1.0, sum(count.cpu_ns for _, count in counted) / wall)
    delayed = min(1.0 - on_cpu, sum(count.delayed_ns for _, count in counted) / wall)
    return {"on a CPU": on_cpu, "blocked": 1.0 - on_cpu - delayed, "without a core": delayed}


def _parts(made: list[Made], even: list[Step], costs: _Costs) -> dict[str, float]:
    """Return the seconds of each stage of a batch that were seen."""
    if not made:
        return {}
    parts = {
        "dataset": _mean(one.collated_ns - one.began_ns for one in made),
        "collate": _mean(one.ended_ns - one.collated_ns for one in made),
    }
    if costs.workers:
        parts |= {"pickling": _mean(step.pickling_ns for step in even), "receiving": costs.receiving_s}
    return parts | ({"pinning": costs.wall[Bound.PINNING]} if costs.wall[Bound.PINNING] else {})


def _costs(
    recorder: Recorder,
    even: list[Step],
    made: list[Made],
    shares: Mapping[str, float] | None,
    wait_s: float,
    loop_s: float,
) -> _Costs:
    workers, step_s, watched = recorder.workers, wait_s + loop_s, max(recorder.watched_ns, 1)
    cpu_in_wait_s = min(wait_s, _mean(step.wait_cpu_ns for step in even))
    pickling_s, receiving_s = _mean(step.pickling_ns for step in even), 0.0
    pinning_s = _mean(step.pinning_ns and step.pinning_ns + step.unpickling_ns for step in even)
    if workers:
        unpickling_s = _mean(0 if step.pinning_ns else step.unpickling_ns for step in even)
        receiving_s = min(wait_s, max(cpu_in_wait_s, unpickling_s))
    if made:
        access_s = _mean(one.collated_ns - one.began_ns for one in made)
        collate_s = _mean(one.ended_ns - one.collated_ns for one in made)
    else:  # the inside is not seen
        access_s, collate_s = wait_s * max(1, workers), 0.0
        on_cpu = cpu_in_wait_s / max(wait_s, _NONE)
        delayed = min(1.0 - on_cpu, recorder.main_delayed_ns / watched)
        shares = {"on a CPU": on_cpu, "blocked": 1.0 - on_cpu - delayed}
    on_cpu, blocked = (shares["on a CPU"], shares["blocked"]) if shares else (1.0, 0.0)
    cpu = {
        Bound.COMPUTE: max(0.0, step_s * recorder.main_cpu_ns / watched - cpu_in_wait_s),
        Bound.TRANSFORM: on_cpu * access_s,
        Bound.COLLATE: on_cpu * collate_s,
        Bound.HANDOFF: on_cpu * pickling_s + (cpu_in_wait_s if workers else 0.0),
    }
    blocked_s = min(blocked * (access_s + collate_s), access_s)  # collating only computes
    wall = {
        Bound.COMPUTE: loop_s,
        Bound.TRANSFORM: access_s - blocked_s,
        Bound.WAITING: blocked_s,
        Bound.COLLATE: collate_s,
        Bound.HANDOFF: pickling_s,
        Bound.PINNING: pinning_s,
    }
    return _Costs(workers=workers, wall=wall, cpu=cpu, receiving_s=receiving_s).fitted(step_s)


def _judged(report: Report, costs: _Costs, *, is_opaque: bool) -> Report:
    """Return the report with the limit, the speed-up without it, and the workers that are enough."""
    mean_s = report.total_s / report.steps

    def gain(saved_s: float) -> float:
        return mean_s / max(mean_s - max(0.0, saved_s), _NONE)

    def gain_of(**change: Bound | int) -> float:
        return gain(report.step_s - costs.step(**change))  # type: ignore[arg-type]

    gains = {part: gain_of(without=part) for part in costs.wall if part is not Bound.COMPUTE}
    gains |= {
        Bound.STARTUP: gain(report.startup_s / report.steps),
        Bound.STALLS: gain(report.stall_s / report.steps),
    }
    spent = {**costs.wall, Bound.HANDOFF: costs.wall[Bound.HANDOFF] + costs.receiving_s + costs.rest_s}
    bound: Any = max(gains, key=lambda part: (round(gains[part], 2), spent.get(part, 0.0)))
    best, needed = gains[bound], _workers_needed(costs)
    if best < LEAST_GAIN:
        bound, best = Bound.COMPUTE, gain_of(without=Bound.COMPUTE)
    elif is_opaque and bound in costs.wall:
        bound = Bound.LOADER
    elif bound is Bound.STARTUP and costs.workers > _MANY * needed:
        bound = Bound.MANY_WORKERS
    elif bound in (Bound.TRANSFORM, Bound.COLLATE, Bound.WAITING):
        # Workers that wait need no core each, so the wait is worth naming unless more workers hide all of it.
        least = _ENOUGH * best if bound is Bound.WAITING else LEAST_GAIN
        more = gain_of(workers=needed)
        if bound is Bound.WAITING:
            bound = _kind_of_wait(report)
        if bound is Bound.LOCK:  # one worker at a time still does what the lock is for
            waiting_s = costs.wall[Bound.WAITING] / max(1, costs.workers)
            best = gain(
                report.step_s
                - dataclasses.replace(costs, wall={**costs.wall, Bound.WAITING: waiting_s}).step()
            )
        elif needed > costs.workers and more >= least and bound is not Bound.STORAGE and report.parts_s:
            bound, best = Bound.FEW_WORKERS, more
    return dataclasses.replace(report, bound=bound, gain=best, workers_needed=None if is_opaque else needed)


def _workers_needed(costs: _Costs) -> int:
    """Return the fewest workers that reach the speed of as many as there are cores, or as there are now."""
    most = max(costs.workers, _cores())
    best = costs.step(workers=most)
    return next(count for count in range(1, most + 1) if best >= _ENOUGH * costs.step(workers=count))


def _kind_of_wait(report: Report) -> Bound:
    if report.device_bytes or report.major_faults:
        return Bound.STORAGE
    line = f"{report.hot[0].text} {report.hot[0].calls}".lower() if report.hot else ""
    return Bound.LOCK if _LOCK.search(line) else Bound.WAITING
