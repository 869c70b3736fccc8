"""What the parts of a loop cost, from its measured times, and how long its steps would take at other costs."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from storebench.profiling.batch_times import BatchTimes
from storebench.profiling.profile_report import ProfileReport
from storebench.profiling.recorder import LoopStep, Recorder
from storebench.settings.words import Limit

SECOND = NEARLY_NONE = 1e-9
MAKING = (Limit.TRANSFORM, Limit.WAITING, Limit.COLLATE, Limit.HANDOFF)
_MOST_REPLAYED = 2_000
# Batches that each worker makes ahead if the loop has no workers: torch's own number.
_AHEAD = 2


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def mean_s(values_ns: Iterable[int | None]) -> float:
    return SECOND * (mean(values_ns) or 0.0)


def replayed_s(
    makes_s: Sequence[float],
    loops_s: Sequence[float],
    *,
    workers: int,
    ahead: int,
    receive_s: float = 0.0,
    pin_s: float = 0.0,
) -> float:
    """Return the seconds per step of a long loop, from the times of its steps and of making their batches.

    As in torch: worker i % workers makes batch i, which is asked for when the loop takes the one that is `ahead` before
    it, and batches are given in order. Without workers, the loop makes them.
    """
    count = len(makes_s)
    if not workers:
        return (sum(makes_s) + sum(loops_s)) / count + receive_s + pin_s
    now = pinned = lap_s = 0.0
    made = [0.0] * (2 * count)
    given = [0.0] * (2 * count)
    for step in range(2 * count):
        # The queue is empty before the first lap, and as usual before the second.
        if step == count:
            lap_s = now
        asked = given[step - ahead] if step >= ahead else 0.0
        free = made[step - workers] if step >= workers else 0.0
        made[step] = max(asked, free) + makes_s[step % count]
        pinned = max(pinned, made[step]) + pin_s
        given[step] = now = max(now, pinned) + receive_s
        now += loops_s[step % count]
    return (now - lap_s) / count


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds per step or batch of each part, and of CPU time; and how single steps and batches differ."""

    workers: int
    cores: int
    ahead: int  # batches that each worker makes ahead
    series: Mapping[Limit, Sequence[float]]  # the parts of single batches, and the loops of steps
    elsewhere: Sequence[float]  # of single steps, in requests to other loaders
    slow_fracs: Sequence[float]  # of the dataset's time for each batch: a slow sample, beyond the usual
    wall: dict[Limit, float]
    cpu: dict[Limit, float]
    receiving_s: float = 0.0
    rest_s: float = 0.0  # of a step, if workers are not its longest stage
    stretch: float = 1.0  # of the workers' time, if they are

    @property
    def making_s(self) -> float:
        return sum(self.wall[part] for part in MAKING)

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        stretch = self.stretch
        if self.workers:
            # If all cores compute all the time, this limits the workers together.
            busy_s = self.workers * sum(self.cpu.values()) / self.cores
            stretch *= max(1.0, busy_s / max(self.making_s, NEARLY_NONE))
        parts_s = zip(*(scaled(self.series[part], stretch * self.wall[part]) for part in MAKING), strict=True)
        loops_s = scaled(self.series[Limit.COMPUTE], self.wall[Limit.COMPUTE])
        return replayed_s(
            list(map(sum, parts_s)),
            list(map(sum, zip(loops_s, self.elsewhere, strict=True))),
            workers=self.workers,
            ahead=self.workers * self.ahead,
            receive_s=self.receiving_s + self.rest_s,
            pin_s=self.wall[Limit.PINNING],
        )

    def with_share(self, share: float, *parts: Limit) -> "Costs":
        """Return the costs with only a share of some parts."""
        costs = dataclasses.replace(
            self,
            wall=self.wall | {part: share * self.wall[part] for part in parts},
            cpu=self.cpu | {part: share * self.cpu.get(part, 0.0) for part in parts},
            receiving_s=self.receiving_s * (share if Limit.HANDOFF in parts else 1.0),
        )
        if not self.workers:
            return costs
        # What is not explained of a step belongs to what the loop's thread does, in proportion.
        before_s, after_s = (each.receiving_s + each.wall[Limit.COMPUTE] for each in (self, costs))
        return dataclasses.replace(costs, rest_s=self.rest_s * after_s / max(before_s, NEARLY_NONE))

    def without_slow_samples(self) -> "Costs":
        """Return the costs if slow samples took the usual time."""
        costs, series = self, dict(self.series)
        for part in (Limit.TRANSFORM, Limit.WAITING):
            pairs = zip(self.series[part], self.slow_fracs, strict=True)
            series[part] = [part_s * (1.0 - frac) for part_s, frac in pairs]
            costs = costs.with_share(sum(series[part]) / max(sum(self.series[part]), NEARLY_NONE), part)
        return dataclasses.replace(costs, series=series)

    def in_any_order(self) -> "Costs":
        """Return the costs if batches were given as they are made, so that a slow one delays no others."""
        even = {
            part: [sum(self.series[part]) / len(self.series[part])] * len(self.series[part])
            for part in MAKING
        }
        return dataclasses.replace(self, series={**self.series, **even})

    def fitted(self, step_s: float, *, to_workers: bool) -> "Costs":
        """Return the costs with what the model leaves of the measured time of a step."""
        if to_workers:
            return dataclasses.replace(self, stretch=max(1.0, step_s / max(self.step_s, NEARLY_NONE)))
        return dataclasses.replace(self, rest_s=max(0.0, step_s - self.step_s))


def scaled(values: Sequence[float], average: float) -> list[float]:
    """Return values of another mean, which differ as these do."""
    total = sum(values)
    return [value * average * len(values) / total for value in values] if total else [average] * len(values)


def costs_of(
    recorder: Recorder, even: Sequence[LoopStep], report: ProfileReport, *, is_fitted: bool
) -> tuple[Costs, dict[str, float]]:
    workers, made = recorder.workers, [step.made for step in even if step.made is not None]
    waiting_cpu_s = min(report.wait_s, mean_s(step.wait_cpu_ns for step in even))
    process_cpu_s = (report.cpu_s or 0.0) if workers else waiting_cpu_s
    wall, cpu, shares = _making(recorder, made, report.wait_s, process_cpu_s)
    cpu[Limit.COMPUTE] = max(0.0, mean_s(step.cpu_ns for step in even) - waiting_cpu_s)
    wall[Limit.COMPUTE] = report.loop_s
    wall[Limit.PINNING] = mean_s(
        batch.pinning_ns and batch.pinning_ns + batch.unpickling_ns for batch in made
    )
    replayed = even[-_MOST_REPLAYED:]
    batches = [step.made for step in replayed]
    costs = Costs(
        workers=workers or int(recorder.waiting_frac is not None),  # a thread that makes batches
        cores=recorder.cores,
        ahead=(recorder.prefetched // workers if workers else 0) or _AHEAD,
        series={
            Limit.TRANSFORM: [SECOND * batch.dataset_cpu_ns if batch else 0.0 for batch in batches],
            Limit.WAITING: [batch.idle_s if batch else 0.0 for batch in batches],
            Limit.COLLATE: [SECOND * batch.collate_cpu_ns if batch else 0.0 for batch in batches],
            Limit.HANDOFF: [0.0] * len(batches),
            Limit.COMPUTE: [SECOND * (step.loop_ns or 0) for step in replayed],
        },
        slow_fracs=[report.slow.excess_frac(batch) if report.slow and batch else 0.0 for batch in batches],
        elsewhere=[SECOND * step.elsewhere_ns for step in replayed],
        wall=wall,
        cpu=cpu,
    )
    if not workers:
        return costs.fitted(report.step_s, to_workers=False), shares
    cpu[Limit.HANDOFF] += waiting_cpu_s
    # A batch that was not yet made when it was asked for is waited for; the rest of the wait is the handoff.
    waits = [(step, step.made) for step in even if step.made is not None]
    starving_s = mean_s(min(step.wait_ns, max(0, batch.ended_ns - step.asked_ns)) for step, batch in waits)
    freeing_s = min(report.loop_s, mean_s(recorder.freeings_ns))
    looping_s = max(0.0, report.loop_s - freeing_s - mean_s(step.delayed_ns for step in even))
    made_s = max(
        (costs.making_s - wall[Limit.HANDOFF]) / workers,
        (cpu[Limit.TRANSFORM] + cpu[Limit.COLLATE]) / recorder.cores,
    )
    busy_s = looping_s + freeing_s + report.elsewhere_s + waiting_cpu_s + wall[Limit.HANDOFF] / workers
    are_slower = starving_s >= report.wait_s / 2 or max(made_s, wall[Limit.PINNING]) > busy_s
    if are_slower:
        received_s = waiting_cpu_s
    else:
        looping_s = report.loop_s - freeing_s
        received_s = report.wait_s - starving_s - mean_s(step.wait_delayed_ns for step in even)
    costs = dataclasses.replace(
        costs,
        wall=wall | {Limit.COMPUTE: looping_s},
        receiving_s=max(waiting_cpu_s, received_s) + freeing_s,
    )
    return costs.fitted(report.step_s, to_workers=are_slower) if is_fitted else costs, shares


def _making(
    recorder: Recorder, made: list[BatchTimes], wait_s: float, process_cpu_s: float
) -> tuple[dict[Limit, float], dict[Limit, float], dict[str, float]]:
    """Return the wall and the CPU time of each part of making a batch, and the shares of what the process did."""
    names = ("dataset_cpu_ns", "collate_cpu_ns", "pickling_ns", "delayed_ns")
    dataset_cpu_s, collate_cpu_s, pickling_s, delayed_s = (
        mean_s(getattr(batch, name) for batch in made) for name in names
    )
    unpickling_s = mean_s(0 if batch.pinning_ns else batch.unpickling_ns for batch in made)
    making_s = mean_s(batch.ended_ns - batch.began_ns for batch in made) or wait_s * max(1, recorder.workers)
    cpu_s = dataset_cpu_s + collate_cpu_s
    delayed_s = min(delayed_s, max(0.0, making_s - cpu_s))
    # Other threads of the process hand tensors over, or compute for the dataset.
    threads_s = max(0.0, process_cpu_s - cpu_s - pickling_s)
    handing_s = pickling_s + min(threads_s, unpickling_s)
    helping_s = max(0.0, threads_s - unpickling_s)
    idle_s = max(0.0, making_s - cpu_s - delayed_s - handing_s)
    blocked_s = max(0.0, idle_s - helping_s)
    delay_s = 0.0 if recorder.workers else delayed_s  # side by side, parts delay each other
    collating_frac = collate_cpu_s / max(cpu_s, NEARLY_NONE)
    wall = {
        Limit.TRANSFORM: dataset_cpu_s + idle_s - blocked_s + delay_s * (1.0 - collating_frac),
        Limit.WAITING: blocked_s,
        Limit.COLLATE: collate_cpu_s + delay_s * collating_frac,
        Limit.HANDOFF: handing_s,
    }
    cpu = {
        Limit.TRANSFORM: dataset_cpu_s + helping_s,
        Limit.COLLATE: collate_cpu_s,
        Limit.HANDOFF: handing_s,
    }
    if not made:
        return wall, cpu, {}
    seen = recorder.seen.lines.total() * blocked_s / making_s
    reading_s = blocked_s * min(1.0, recorder.seen.waits["io"] / max(1.0, seen))
    parts_s = {
        "on a CPU": making_s - delayed_s - blocked_s,
        "reading": reading_s,
        "blocked": blocked_s - reading_s,
        "without a core": delayed_s,
    }
    return wall, cpu, {name: seconds / making_s for name, seconds in parts_s.items()}
