"""The verdict on a recorded loop: the limit whose removal would gain most, and by how much.

Each part of a loop has a function that says what its removal gains, and what to try; the largest gain wins. Gains come
from the recorded times of steps and batches, replayed at other costs.
"""

import dataclasses
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from storebench.profiling.batch_times import Made
from storebench.profiling.costs import NEARLY_NONE, SECOND, Costs, costs_of, mean, mean_s, replayed_s, scaled
from storebench.profiling.profile_report import LEAST_LOOKS, Bound, Report, SlowSamples, hot_lines, unseen_of
from storebench.profiling.recorder import Recorder, Step

LEAST_GAIN = 1.10
"""A part of the loading is the limit only if without it the loop would be this many times as fast."""

_LEAST_STEPS = 4
# A wait of so many times the usual, and of at least so many seconds, is a stall.
_STALL, _STALL_S = 3.0, 0.05
# A larger share of the waits are no stalls, and of the samples no few slow ones.
_RARE = 0.05
# A first epoch is unlike the others if its batches took so many times as long to make, and so many seconds longer.
_UNLIKE, _UNLIKE_S = 1.5, 0.001
# Samples of so many times the usual are slow, and told if they take this share of the dataset's time.
_SLOW, _SLOW_FRAC = 10.0, 0.3
# So many workers are enough that more would be faster by no more than this; more than so many times these are too many.
_ENOUGH, _MANY = 0.95, 2
# What is done once for a batch weighs little from so many samples on; so many tensors could be handed over as one.
_FULL_BATCH, _MANY_TENSORS = 32, 8
# Batches that each worker makes ahead in a long queue.
_LONG = 1_000
# A line with this share of the looks names the limit: of two workers that share a lock, one waits half of the time.
_LINE_FRAC = 0.3
_LOCK = r"(?<![a-z])[fr]?lock|acquire|semaphore|synchronize"
_PLAIN_CALLS = "next|sum|any|all|min|max|len|int|str|list|enumerate|range|get|items|values|zip|isinstance"
# What to do about a line that does the same for each sample, by a pattern of such lines.
_REPEATED = {
    "open the file once per worker, at its first sample, not for each": (
        r"h5py|lmdb\.open|zipfile|tarfile|sqlite3\.connect|parquetfile|memory_map\(|read_table\("
    ),
    "do this once, before the first sample, not for each": (
        r"sorted\(|\.sort\(|\.keys\(\)|listdir\(|glob\(|scandir\(|os\.walk\("
    ),
    "parse this once, into an array or an Arrow table, not for each sample": (
        r"json\.loads?\(|read_csv\(|literal_eval\(|yaml\.\w*load\(|loadtxt\("
    ),
    "look samples up in an array, a dict or an Arrow table in place of this walk over Python objects": (
        rf"^(?!.*\b(?!(?:{_PLAIN_CALLS})\()\w+\().*\bfor\b.+\bin\b"
    ),
}


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """The steps of a loop, by what they say."""

    judged: Sequence[Step]  # of the epochs that are alike
    first: Sequence[Step]  # of each of these epochs, before the loader is at speed
    steady: Sequence[Step]
    even: Sequence[Step]  # the steady ones without stalls
    stalls: Sequence[Step]
    first_epoch: float  # how many times as long as the others it took, if it is unlike them; else 0
    are_starts: bool  # whether no epoch comes further than its first steps

    @cached_property
    def made(self) -> Sequence[Made]:
        """The batches of the even steps, without those that came without times."""
        return [step.made for step in self.even if step.made is not None]


def report_of(recorder: Recorder, rates: Mapping[int, float] | None = None) -> Report:
    """Return the verdict on what a recorder has seen; `rates` are batches per second by workers, without a loop."""
    steps = _sorted(recorder)
    if recorder.is_drained or len(steps.even) < _LEAST_STEPS:
        bound = Bound.AHEAD if recorder.is_drained else Bound.UNKNOWN
        return Report(bound=bound, steps=len(steps.judged), epochs=recorder.epochs, workers=recorder.workers)
    report = _evidence(recorder, steps)
    costs, shares = costs_of(recorder, steps.even, report, is_fitted=not steps.are_starts)
    report = dataclasses.replace(
        report,
        shares=shares,
        parts_s={} if recorder.makes else _parts(costs, steps.made),
        startup_s=_startup_s(recorder, steps, report, costs),
    )
    return _judged(_Case(report, costs, recorder, steps, rates or {}))


def _sorted(recorder: Recorder) -> _Steps:
    """Return the steps of a recorder by what they say."""
    lag = max(1, recorder.workers)
    steps, first_epoch = _alike([step for step in recorder.steps if step.loop_ns is not None], lag)
    # Workers make their first batches side by side, so these arrive faster than any later ones can.
    steady = [step for step in steps if step.place >= lag] or [step for step in steps if step.place]
    are_starts = len(steady) < _LEAST_STEPS <= sum(not step.place for step in steps)
    if are_starts:
        steady = steps
    limit_ns = max(_STALL * _usual_s(steady, lag), _STALL_S) / SECOND if steady else 0.0
    if sum(step.wait_ns > limit_ns for step in steady) > _RARE * len(steady):
        limit_ns = float("inf")  # the usual way of a device that serves in bursts
    return _Steps(
        judged=steps,
        first=[] if are_starts else [step for step in steps if step.place < lag],
        steady=steady,
        even=[step for step in steady if step.wait_ns <= limit_ns],
        stalls=[step for step in steady if step.wait_ns > limit_ns],
        first_epoch=first_epoch,
        are_starts=are_starts,
    )


def _alike(steps: list[Step], lag: int) -> tuple[list[Step], float]:
    """Return the steps without a first epoch that is unlike the others, and how many times as long its steps took."""
    starts = [at for at, step in enumerate(steps) if not step.place]
    later = steps[starts[1] :] if len(starts) > 1 else []
    epochs = [[step for step in part if step.place >= lag] for part in (steps[: -len(later)], later)]
    if min(map(len, epochs)) < _LEAST_STEPS:
        return steps, 0.0
    first_s, later_s = (
        statistics.median(step.made.making_s if step.made else SECOND * step.wait_ns for step in epoch)
        for epoch in epochs
    )
    times = (_total_s(epochs[0]) / len(epochs[0])) / (_total_s(epochs[1]) / len(epochs[1]))
    is_unlike = first_s > max(_UNLIKE * later_s, later_s + _UNLIKE_S) and times >= LEAST_GAIN
    return (later, times) if is_unlike else (steps, 0.0)


def _usual_s(steady: list[Step], lag: int) -> float:
    """Return the longest usual wait: workers make their batches side by side, so waits come in bursts of one per worker."""
    turns = [_total_s(steady[at : at + lag]) for at in range(0, len(steady) - lag + 1, lag)]
    return statistics.median(turns or [_total_s(steady)])


def _total_s(steps: Iterable[Step]) -> float:
    return sum(step.wait_ns + (step.loop_ns or 0) + step.elsewhere_ns for step in steps) * SECOND


def _slow_samples(steady: Sequence[Step]) -> SlowSamples | None:
    """Return the few samples that take much of the dataset's time; None if there are none, or samples were not timed."""
    made = [step.made for step in steady if step.made is not None and step.made.samples]
    if not made:
        return None
    usual_ns = statistics.median(
        (batch.collated_ns - batch.began_ns - batch.longest_ns) / (batch.samples - 1)
        if batch.samples > 1
        else batch.longest_ns
        for batch in made
    )
    longest = max(made, key=lambda batch: batch.longest_ns)
    # Short delays are no slow samples.
    least_ns = max(_SLOW * usual_ns, longest.longest_ns / _SLOW)
    slow = [batch for batch in made if batch.longest_ns > least_ns]
    frac = len(slow) / sum(batch.samples for batch in made)
    time_frac = sum(batch.longest_ns for batch in slow) / sum(
        max(1, batch.collated_ns - batch.began_ns) for batch in made
    )
    if not 0.0 < frac <= _RARE or time_frac < _SLOW_FRAC:
        return None
    return SlowSamples(
        frac=frac,
        time_frac=time_frac,
        usual_s=SECOND * usual_ns,
        least_s=SECOND * least_ns,
        longest_s=SECOND * longest.longest_ns,
        longest=longest.longest,
    )


def _evidence(recorder: Recorder, steps: _Steps) -> Report:
    """Return what was measured, without a verdict."""
    even, starts = steps.even, [step for step in steps.judged if not step.place]
    told = [batch.told for batch in steps.made if batch.told is not None]
    batches = sum(part.batches for part in told) or None
    ends_s = recorder.ends_ns * SECOND
    wait_s, loop_s = mean_s(step.wait_ns for step in even), mean_s(step.loop_ns for step in even)
    looping_s = sum((step.loop_ns or 0) + step.elsewhere_ns for step in steps.judged) * SECOND
    first_loops_s = sum(step.loop_ns or 0 for step in steps.first) * SECOND
    return Report(
        bound=Bound.UNKNOWN,
        steps=len(steps.judged),
        epochs=recorder.epochs,
        total_s=_total_s(recorder.steps) + ends_s,
        wait_s=wait_s,
        loop_s=loop_s,
        elsewhere_s=mean_s(step.elsewhere_ns for step in even),
        judged_s=(judged_s := _total_s(steps.judged) + ends_s * len(steps.judged) / len(recorder.steps)),
        wait_frac=1.0 - min(1.0, looping_s / judged_s),
        first_loops_s=max(0.0, first_loops_s - len(steps.first) * loop_s),
        first_epoch=steps.first_epoch,
        # The first of them waits for the end of the loader.
        cached_s=mean_s(step.loop_ns for step in recorder.replayed[1:]) or None,
        cuda_s=mean(step.cuda_ns and step.cuda_ns * SECOND for step in even),
        cuda_idle_s=mean(step.cuda_idle_ns and step.cuda_idle_ns * SECOND for step in even),
        workers=recorder.workers,
        cores=recorder.cores,
        batch_size=recorder.batch_size,
        cpu_s=batches and sum(part.cpu_ns for part in told) * SECOND / batches,
        device_bytes=batches and sum(part.device_bytes for part in told) / batches,
        ready_batches=mean(step.ready for step in even),
        prefetched=recorder.prefetched,
        first_batch_s=mean_s(step.wait_ns for step in starts),
        worker_start_s=mean_s(step.made and step.made.began_ns - step.asked_ns for step in starts)
        if recorder.workers
        else None,
        stall_s=sum(step.wait_ns for step in steps.stalls) * SECOND - len(steps.stalls) * wait_s,
        slow=_slow_samples(steps.steady),
        looks=recorder.places.total(),
        hot=hot_lines(recorder.places),
        files=recorder.files,
        disturbed=recorder.disturbance() or "",
        unseen=tuple(unseen_of(recorder, is_inside_seen=bool(steps.made))),
    )


def _startup_s(recorder: Recorder, steps: _Steps, report: Report, costs: Costs) -> float:
    """Return the seconds that starts of epochs waited longer than the loop of one endless epoch would."""
    if steps.are_starts:
        return len(steps.judged) * max(0.0, report.step_s - costs.step_s) * bool(recorder.workers)
    # Workers that have started need the time of a batch for their first one, too.
    filling_s = costs.making_s * sum(not step.place for step in steps.first) * bool(recorder.workers)
    waited_s = sum(step.wait_ns for step in steps.first) * SECOND
    ends_s = recorder.ends_ns * SECOND * len(steps.judged) / len(recorder.steps)
    return max(0.0, waited_s - max(len(steps.first) * report.wait_s, filling_s)) + ends_s


def _parts(costs: Costs, made: Sequence[Made]) -> dict[str, float]:
    """Return the seconds of each stage of a batch that were seen."""
    if not made:
        return {}
    parts = {
        "dataset": mean_s(batch.collated_ns - batch.began_ns for batch in made),
        "collate": mean_s(batch.ended_ns - batch.collated_ns for batch in made),
    }
    if costs.workers:
        parts |= {"pickling": costs.wall[Bound.HANDOFF], "receiving": costs.receiving_s}
    return parts | ({"pinning": costs.wall[Bound.PINNING]} if costs.wall[Bound.PINNING] else {})


class _Limit(NamedTuple):
    """A limit that a part of the loop may be."""

    bound: Bound
    gain: float  # of what to try
    removed: float  # gain if the part took no time; the largest is the limit
    advice: str = ""  # in place of the limit's own


@dataclass(frozen=True)
class _Case:
    """The evidence that limits are judged by."""

    report: Report
    costs: Costs
    recorder: Recorder
    steps: _Steps
    rates: Mapping[int, float]

    def gain(self, saved_s: float) -> float:
        """Return how many times as fast the whole loop would be with so many seconds less per step."""
        mean_s = self.report.judged_s / self.report.steps
        return mean_s / max(mean_s - saved_s, NEARLY_NONE)

    def gain_with(self, costs: Costs) -> float:
        return self.gain(max(0.0, self.report.step_s - max(costs.step_s, self.report.least_step_s)))

    def without(self, *parts: Bound, share: float = 0.0) -> float:
        """Return the gain if only a share of some parts were left."""
        return self.gain_with(self.costs.with_share(share, *parts))

    @cached_property
    def steps_s(self) -> dict[int, float]:
        """The seconds per step with other numbers of workers, measured or predicted."""
        costs, report = self.costs, self.report
        if self.rates:
            loops_s = scaled(
                costs.series[Bound.COMPUTE], report.cached_s or costs.wall[Bound.COMPUTE] + costs.receiving_s
            )
            steps_s = {
                count: replayed_s(
                    [max(1, count) / rate] * len(loops_s), loops_s, workers=count, ahead=count * costs.ahead
                )
                for count, rate in self.rates.items()
            }
            # Both sides of each comparison are of the sweep: the machine may have been busier before it.
            scale = report.step_s / steps_s[costs.workers]
            steps_s = {count: scale * step_s for count, step_s in steps_s.items()}
        else:
            counts = range(1, max(costs.workers, report.cores) + 1)
            steps_s = {count: dataclasses.replace(costs, workers=count).step_s for count in counts}
        return {count: max(step_s, report.least_step_s) for count, step_s in steps_s.items()}

    @cached_property
    def needed(self) -> int:
        """The fewest workers that are enough."""
        least_s = min(self.steps_s.values())
        return min(count for count, step_s in self.steps_s.items() if least_s >= _ENOUGH * step_s)

    @property
    def more(self) -> float:
        """The gain with the workers that are enough."""
        return self.gain(max(0.0, self.report.step_s - self.steps_s[self.needed]))

    def are_few(self, least: float) -> bool:
        """Return whether more workers gain anything and, with a long queue, so much; they have no cache of this process."""
        if not self.report.parts_s or self.report.first_epoch or self.steps.are_starts:
            return False
        longer = dataclasses.replace(self.costs, workers=self.needed, ahead=_LONG)
        return (
            self.needed > self.costs.workers and self.more >= LEAST_GAIN and self.gain_with(longer) >= least
        )


def _making(case: _Case, part: Bound) -> _Limit:
    """Return the limit that making batches is: what its lines show, then too few workers, then the part itself."""
    report, removed = case.report, case.without(part)
    bound = _kind_of_wait(report) if part is Bound.WAITING else part
    if bound is Bound.LOCK:  # one worker at a time still does what the lock is for
        return _Limit(bound, case.without(part, share=1.0 / max(1, case.costs.workers)), removed)
    if part is not Bound.COLLATE:
        shares = {advice: _share(report, pattern) for advice, pattern in _REPEATED.items()}
        advice = max(shares, key=shares.__getitem__)
        is_repeated = shares[advice] >= _LINE_FRAC and report.looks >= LEAST_LOOKS
        once = case.without(Bound.TRANSFORM, Bound.WAITING, share=1.0 - shares[advice] * is_repeated)
        if once >= max(LEAST_GAIN, case.more):
            return _Limit(Bound.REPEATED, once, max(once, removed), advice)
        usual = case.gain_with(case.costs.without_slow_samples()) if report.slow else 1.0
        if usual >= max(LEAST_GAIN, case.more):
            return _Limit(Bound.SLOW_SAMPLES, usual, max(usual, removed))
    # Waits need no core each, and a collate can be written better: both are worth naming unless workers hide them.
    least = LEAST_GAIN if part is Bound.TRANSFORM else _ENOUGH * removed
    if bound is not Bound.STORAGE and case.are_few(least):
        return _Limit(Bound.FEW_WORKERS, case.more, removed)
    return _Limit(bound, removed, removed)


def _kind_of_wait(report: Report) -> Bound:
    if report.shares and report.shares["reading"] >= report.shares["blocked"]:
        return Bound.STORAGE
    return Bound.LOCK if _share(report, _LOCK) >= _LINE_FRAC else Bound.WAITING


def _share(report: Report, pattern: str) -> float:
    """Return the share of the looks at lines of a pattern."""
    return sum(line.share for line in report.hot if re.search(pattern, f"{line.text} {line.calls}".lower()))


def _handoff(case: _Case, part: Bound) -> _Limit:
    """Return the limit that handing batches over is, of which larger batches or fewer tensors leave a share."""
    if not case.costs.workers:
        return _Limit(part, 1.0, 1.0)
    share, tensors = min(1.0, (case.report.batch_size or _FULL_BATCH) / _FULL_BATCH), case.recorder.tensors
    if tensors * share >= 1.0:
        gain = case.without(part, share=1.0 / tensors if tensors > _MANY_TENSORS else 0.0)
        return _Limit(part, gain, gain)
    # Collate makes the memory that is handed over; what it takes beyond that grows with the batch.
    costs = case.costs
    fixed_s = costs.wall[part] + costs.receiving_s
    collating = max(share, 1.0 - (1.0 - share) * fixed_s / max(costs.wall[Bound.COLLATE], NEARLY_NONE))
    gain = case.gain_with(costs.with_share(share, part).with_share(collating, Bound.COLLATE))
    return _Limit(Bound.SMALL_BATCHES, gain, gain)


def _pinning(case: _Case, part: Bound) -> _Limit:
    return _Limit(part, case.without(part), case.without(part))


def _startup(case: _Case, part: Bound) -> _Limit:
    """Return the limit that starts of epochs are; workers that persist start once."""
    report, workers = case.report, case.costs.workers
    start_s = report.startup_s / report.steps
    if case.steps.are_starts:
        advice = "keep the iterator: each iter(loader) starts an epoch, and its workers"
        return _Limit(part, case.gain(start_s), float("inf") if workers else 1.0, advice)
    may_persist = workers > 0 and report.epochs > 1 and not case.recorder.persists
    gain = case.gain(start_s * (1.0 - 1.0 / report.epochs if may_persist else 1.0))
    if workers > _MANY * case.needed and case.report.parts_s:
        fewer = case.gain(start_s * (1.0 - case.needed / workers))
        return _Limit(Bound.MANY_WORKERS, fewer, gain)
    if may_persist:
        return _Limit(part, gain, gain)
    advice = f"less work before the first batch: {report.startup_s:.1f} s"
    if report.epochs > 1:
        return _Limit(part, gain, gain, advice)
    # A longer loop pays no more for it, but for any other limit, the loop itself included.
    removed = min(gain, LEAST_GAIN) if gain > _computing(case, Bound.COMPUTE).gain else 1.0
    return _Limit(part, gain, removed, f"{advice}, paid once in this loop of one epoch")


def _computing(case: _Case, part: Bound) -> _Limit:
    """Return the limit that the loop itself is, which is one only if no other gains enough."""
    saved_s = max(0.0, case.report.step_s - case.costs.with_share(0.0, part).step_s)
    return _Limit(part, case.gain(saved_s + case.report.first_loops_s / case.report.steps), 1.0)


def _stalls(case: _Case, part: Bound) -> _Limit:
    gain = case.gain(case.report.stall_s / case.report.steps)
    return _Limit(part, gain, gain)


def _swept(case: _Case, part: Bound) -> _Limit:
    """Return the limit that workers are if other numbers were measured."""
    if not case.rates or case.needed == case.costs.workers or case.more < LEAST_GAIN:
        return _Limit(part, 1.0, 1.0)
    is_more = case.needed > case.costs.workers
    return _Limit(part if is_more else Bound.MANY_WORKERS, case.more, case.more)


_LIMITS: dict[Bound, Callable[[_Case, Bound], _Limit]] = {
    Bound.TRANSFORM: _making,
    Bound.WAITING: _making,
    Bound.COLLATE: _making,
    Bound.HANDOFF: _handoff,
    Bound.PINNING: _pinning,
    Bound.STARTUP: _startup,
    Bound.STALLS: _stalls,
    Bound.FEW_WORKERS: _swept,
}
"""What may limit a loop, beside the loop itself."""


def _judged(case: _Case) -> Report:
    """Return the report with the limit, the speed-up without it, and the workers that are enough."""
    report, costs = case.report, case.costs
    is_opaque = not report.shares
    spent = costs.wall | {
        Bound.HANDOFF: costs.wall[Bound.HANDOFF] + costs.receiving_s + costs.rest_s,
        Bound.FEW_WORKERS: float("inf"),
    }
    limits = {part: limit_of(case, part) for part, limit_of in _LIMITS.items()}
    part = max(limits, key=lambda part: (round(limits[part].removed, 2), spent.get(part, 0.0)))
    limit = limits[part]
    if limit.removed < LEAST_GAIN:
        limit = _computing(case, Bound.COMPUTE)
    elif is_opaque and part in costs.wall:
        limit = limit._replace(bound=Bound.LOADER)
    shown = set(case.rates) or {1, report.cores, case.needed, costs.workers}
    # Workers would have no cache, or start for each step.
    if report.first_epoch or case.steps.are_starts or not (case.rates or report.parts_s):
        shown = set()
    return dataclasses.replace(
        report,
        bound=limit.bound,
        gain=limit.gain,
        advice=limit.advice,
        workers_needed=None if is_opaque else case.needed,
        by_workers={
            count: case.gain(report.step_s - step_s)
            for count, step_s in case.steps_s.items()
            if count in shown
        },
        is_swept=bool(case.rates),
    )
