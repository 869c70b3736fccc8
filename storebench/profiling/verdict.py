"""The verdict on a recorded loop: the limit whose removal would gain most, and by how much.

A table has a row for each part of a loop: what its removal gains, and what to try; the largest gain wins. Gains come
from the recorded times of steps and batches, replayed at other costs.
"""

import bisect
import dataclasses
import itertools
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from storebench.profiling.batch_times import PER_OCTAVE, BatchTimes
from storebench.profiling.costs import NEARLY_NONE, SECOND, Costs, costs_of, mean, mean_s
from storebench.profiling.operations import COLLATE, DECODING
from storebench.profiling.profile_report import (
    LEAST_LOOKS,
    Operation,
    ProfileReport,
    SlowSamples,
    home_of,
    hot_lines,
    unseen_of,
)
from storebench.profiling.recorder import MANY_TENSORS, LoopStep, Recorder
from storebench.settings.words import Limit

# A part of the loading is the limit only if without it the loop would be this many times as fast.
LEAST_GAIN = 1.10
_LEAST_STEPS = 4
# A wait of this many times the usual, and of at least this many seconds, is a stall.
_STALL, _STALL_S = 3.0, 0.05
# A larger share of the waits are no stalls, and of the samples no few slow ones.
_RARE = 0.05
# A first epoch is unlike the others if making its batches took this many times as long, and this many seconds longer.
_UNLIKE, _UNLIKE_S = 1.5, 0.001
# Samples of this many times the usual are slow, and told if they take this share of the dataset's time.
_SLOW, _SLOW_FRAC = 10.0, 0.3
# Smallest share of the best rate that counts as enough; more than this many times the workers for it are too many.
_ENOUGH, _MANY = 0.95, 2
# From this many samples on, the work per batch weighs little.
_FULL_BATCH = 32
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
# A smaller share of making a batch is no row of its operations.
_LEAST_SHARE = 0.01
# What to do about an iterator for each step.
_KEEP = "keep the iterator: each iter(loader) starts an epoch, and its workers"


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """The steps of a loop, by what they say."""

    judged: Sequence[LoopStep]  # of the epochs that are alike
    first: Sequence[LoopStep]  # of each of these epochs, before the loader is at speed
    steady: Sequence[LoopStep]
    even: Sequence[LoopStep]  # the steady ones without stalls
    stalls: Sequence[LoopStep]
    first_epoch: float  # how many times as long as the others it took, if it is unlike them; else 0
    are_starts: bool  # whether no epoch comes further than its first steps

    @cached_property
    def made(self) -> Sequence[BatchTimes]:
        """The batches of the even steps, without those that came without times."""
        return [step.made for step in self.even if step.made is not None]


def report_of(recorder: Recorder) -> ProfileReport:
    steps = _sorted(recorder)
    if len(steps.even) < _LEAST_STEPS:
        return ProfileReport(
            bound=Limit.UNKNOWN, steps=len(steps.judged), epochs=recorder.epochs, workers=recorder.workers
        )
    report = _evidence(recorder, steps)
    costs, shares = costs_of(recorder, steps.even, report, is_fitted=not steps.are_starts)
    report = dataclasses.replace(
        report,
        shares=shares,
        parts_s={} if recorder.makes else _parts(costs, steps.made),
        startup_s=_startup_s(recorder, steps, report, costs),
    )
    return _judged(_Case(report, costs, recorder, steps))


def _sorted(recorder: Recorder) -> _Steps:
    lag = max(1, recorder.workers)
    steps, first_epoch = _alike(_of_consumer(recorder), lag)
    # Workers make their first batches side by side, so these arrive faster than any later ones can.
    steady = [step for step in steps if step.place >= lag] or [step for step in steps if step.place]
    are_starts = len(steady) < _LEAST_STEPS <= sum(not step.place for step in steps)
    if are_starts:
        steady = steps
    # The longest usual wait: of workers side by side, waits come in bursts of one per worker.
    turns = [_total_s(steady[at : at + lag]) for at in range(0, len(steady) - lag + 1, lag)]
    usual_s = statistics.median(turns or [_total_s(steady)])
    limit_ns = max(_STALL * usual_s, _STALL_S) / SECOND if steady else 0.0
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


def _of_consumer(recorder: Recorder) -> list[LoopStep]:
    """Return the whole steps, as the main thread sees them if another one asks for the batches."""
    frac = recorder.waiting_frac
    steps = [
        (step, step.wait_ns + step.loop_ns) for step in _filled(recorder.steps) if step.loop_ns is not None
    ]
    if frac is None:
        return [step for step, _ in steps]
    waits = [(step, round(frac * ns), round((1 - frac) * ns)) for step, ns in steps]
    return [dataclasses.replace(step, wait_ns=wait_ns, loop_ns=loop_ns) for step, wait_ns, loop_ns in waits]


def _filled(steps: Iterable[LoopStep]) -> Iterator[LoopStep]:
    """Yield the steps, of which each that was not measured costs what the last one did that was."""
    last: LoopStep | None = None
    made: BatchTimes | None = None  # of the last one; what it told was of all batches since the one before
    for step in steps:
        if step.wait_cpu_ns is not None or last is None:
            last, made = step, step.made and step.made._replace(told=None)
            yield step
        else:
            yield dataclasses.replace(step, made=made, wait_cpu_ns=last.wait_cpu_ns, cpu_ns=last.cpu_ns)


def _alike(steps: list[LoopStep], lag: int) -> tuple[list[LoopStep], float]:
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


def _total_s(steps: Iterable[LoopStep]) -> float:
    return sum(step.wait_ns + (step.loop_ns or 0) + step.elsewhere_ns for step in steps) * SECOND


def _slow_samples(steady: Sequence[LoopStep]) -> SlowSamples | None:
    """Return the few samples that take much of the dataset's time; None if there are none, or none was timed."""
    made = [step.made for step in steady if step.made is not None and step.made.samples]
    if not made:
        return None
    usual_ns = statistics.median(
        (batch.dataset_ns - batch.longest_ns) / (batch.samples - 1) if batch.samples > 1 else batch.longest_ns
        for batch in made
    )
    longest = max(made, key=lambda batch: batch.longest_ns)
    # Short delays are no slow samples.
    least_ns = max(_SLOW * usual_ns, longest.longest_ns / _SLOW)
    slow = [batch for batch in made if batch.longest_ns > least_ns]
    frac = len(slow) / sum(batch.samples for batch in made)
    time_frac = sum(batch.longest_ns for batch in slow) / sum(max(1, batch.dataset_ns) for batch in made)
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


def _quantiles_s(costs: Counter[int]) -> dict[str, float]:
    """Return what samples take at quantiles, to 5%."""
    parts = sorted(costs)
    below = [*itertools.accumulate(costs[part] for part in parts)]
    places = (
        {f"p{percent}": bisect.bisect(below, percent * below[-1] // 100) for percent in (50, 95, 99)}
        if below
        else {}
    )
    return {name: SECOND * 2.0 ** (parts[place] / PER_OCTAVE) for name, place in places.items()}


def _evidence(recorder: Recorder, steps: _Steps) -> ProfileReport:
    even, starts = steps.even, [step for step in steps.judged if not step.place]
    told = [batch.told for batch in steps.made if batch.told is not None]
    batches = sum(part.batches for part in told) or None
    ends_s = recorder.ends_ns * SECOND
    wait_s, loop_s = mean_s(step.wait_ns for step in even), mean_s(step.loop_ns for step in even)
    looping_s = sum((step.loop_ns or 0) + step.elsewhere_ns for step in steps.judged) * SECOND
    first_loops_s = sum(step.loop_ns or 0 for step in steps.first) * SECOND
    folder, suffix = home_of(recorder.seen.files)
    return ProfileReport(
        bound=Limit.UNKNOWN,
        loader=recorder.name,
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
        sample_s=_quantiles_s(recorder.seen.costs),
        looks=recorder.seen.lines.total(),
        hot=hot_lines(recorder.seen.lines),
        folder=folder,
        suffix=suffix,
        disturbed=recorder.disturbance() or "",
        unseen=tuple(unseen_of(recorder, folder, is_inside_seen=bool(steps.made))),
        memory=recorder.memory.report(),
    )


def _startup_s(recorder: Recorder, steps: _Steps, report: ProfileReport, costs: Costs) -> float:
    """Return the seconds that starts of epochs waited longer than the loop of one endless epoch would."""
    if steps.are_starts:
        return len(steps.judged) * max(0.0, report.step_s - costs.step_s) * bool(recorder.workers)
    # Workers that have started need the time of a batch for their first one, too.
    filling_s = costs.making_s * sum(not step.place for step in steps.first) * bool(recorder.workers)
    waited_s = sum(step.wait_ns for step in steps.first) * SECOND
    ends_s = recorder.ends_ns * SECOND * len(steps.judged) / len(recorder.steps)
    return max(0.0, waited_s - max(len(steps.first) * report.wait_s, filling_s)) + ends_s


def _parts(costs: Costs, made: Sequence[BatchTimes]) -> dict[str, float]:
    """Return the seconds of each stage of a batch that were seen."""
    if not made:
        return {}
    parts = {
        "dataset": mean_s(batch.dataset_ns for batch in made),
        "collate": mean_s(batch.ended_ns - batch.collated_ns for batch in made),
    }
    if costs.workers:
        parts |= {"pickling": costs.wall[Limit.HANDOFF], "receiving": costs.receiving_s}
    return parts | ({"pinning": costs.wall[Limit.PINNING]} if costs.wall[Limit.PINNING] else {})


class _Candidate(NamedTuple):
    """A limit that a part of the loop may be."""

    bound: Limit
    gain: float  # of what to try
    removed: float  # gain if the part took no time; the largest is the limit
    advice: str = ""  # in place of the limit's own


def _operations(case: "_Case") -> Iterator[Operation]:
    """Return the operations of making a batch, the most expensive first, and the gains without them."""
    made, ticks = case.steps.made, case.recorder.seen.operations
    if not made or ticks.total() < LEAST_LOOKS:
        return
    dataset_s = mean_s(batch.dataset_ns for batch in made)
    collate_s = mean_s(batch.ended_ns - batch.collated_ns for batch in made)
    times_s = {name: dataset_s * count / ticks.total() for name, count in ticks.items()} | {
        COLLATE: collate_s
    }
    for name, seconds in sorted(times_s.items(), key=lambda row: -row[1]):
        parts = (Limit.COLLATE,) if name == COLLATE else (Limit.TRANSFORM, Limit.WAITING)
        left = 0.0 if name == COLLATE else 1.0 - seconds / dataset_s
        if (share := seconds / (dataset_s + collate_s)) >= _LEAST_SHARE:
            yield Operation(name, share, seconds, case.without(*parts, share=left))


@dataclass(frozen=True)
class _Case:
    """The evidence that limits are judged by."""

    report: ProfileReport
    costs: Costs
    recorder: Recorder
    steps: _Steps

    def gain(self, saved_s: float) -> float:
        mean_s = self.report.judged_s / self.report.steps
        return mean_s / max(mean_s - saved_s, NEARLY_NONE)

    def gain_with(self, costs: Costs) -> float:
        return self.gain(max(0.0, self.report.step_s - costs.step_s))

    def without(self, *parts: Limit, share: float = 0.0) -> float:
        """Return the gain if only a share of some parts were left."""
        return self.gain_with(self.costs.with_share(share, *parts))

    @cached_property
    def steps_s(self) -> dict[int, float]:
        """The seconds per step that other numbers of workers are predicted to take."""
        counts = range(1, max(self.costs.workers, self.report.cores) + 1)
        return {count: dataclasses.replace(self.costs, workers=count).step_s for count in counts}

    @cached_property
    def needed(self) -> int:
        least_s = min(self.steps_s.values())
        return min(count for count, step_s in self.steps_s.items() if least_s >= _ENOUGH * step_s)

    @property
    def more(self) -> float:
        """The gain with the workers that are enough."""
        return self.gain(max(0.0, self.report.step_s - self.steps_s[self.needed]))

    @property
    def has_predicted_workers(self) -> bool:
        """Whether the inside was seen, and workers would need neither a cache nor a start per step."""
        return bool(self.report.parts_s and not self.report.first_epoch and not self.steps.are_starts)

    def are_few(self, least: float) -> bool:
        """Whether more workers gain anything and, with a long queue, at least `least`."""
        longer = dataclasses.replace(self.costs, workers=self.needed, ahead=_LONG)
        return (
            self.has_predicted_workers
            and self.needed > self.costs.workers
            and self.more >= LEAST_GAIN
            and self.gain_with(longer) >= least
        )


def _first(*rows: tuple[bool, _Candidate]) -> _Candidate:
    """Return the limit of the first row that holds."""
    return next(limit for holds, limit in rows if holds)


def _making(case: _Case, part: Limit) -> _Candidate:
    """Return the limit that making batches is: what its lines show, then too few workers, then the part itself."""
    report, removed, bound = case.report, case.without(part), part
    if part is Limit.WAITING:
        reads = report.shares and report.shares["reading"] >= report.shares["blocked"]
        locks = _share(report, _LOCK) >= _LINE_FRAC
        bound = Limit.STORAGE if reads else Limit.LOCK if locks else part
    shares = {advice: _share(report, pattern) for advice, pattern in _REPEATED.items()}
    advice = max(shares, key=shares.__getitem__)
    repeated = shares[advice] if shares[advice] >= _LINE_FRAC and report.looks >= LEAST_LOOKS else 0.0
    once = case.without(Limit.TRANSFORM, Limit.WAITING, share=1.0 - repeated)
    usual = case.gain_with(case.costs.without_slow_samples()) if report.slow else 1.0
    # One worker at a time still does what a lock is for.
    unlocked = case.without(part, share=1.0 / max(1, case.costs.workers))
    enough = max(LEAST_GAIN, case.more)
    split = f"num_workers={case.needed}, with a stream that serves each worker its part: get_worker_info()"
    # Waits need no core each, and a collate can be written better: both are worth naming unless workers hide them.
    least = LEAST_GAIN if part is Limit.TRANSFORM else _ENOUGH * removed
    is_dataset = part is not Limit.COLLATE
    return _first(
        (bound is Limit.LOCK, _Candidate(bound, unlocked, removed)),
        (is_dataset and once >= enough, _Candidate(Limit.REPEATED, once, max(once, removed), advice)),
        (
            is_dataset and bound is not Limit.STORAGE and usual >= enough,
            _Candidate(Limit.SLOW_SAMPLES, usual, max(usual, removed)),
        ),
        (
            bound is not Limit.STORAGE and case.are_few(least),
            _Candidate(Limit.WORKERS, case.more, removed, split if case.recorder.is_stream else ""),
        ),
        (True, _Candidate(bound, removed, removed)),
    )


def _share(report: ProfileReport, pattern: str) -> float:
    """Return the share of the looks at lines of a pattern."""
    return sum(line.share for line in report.hot if re.search(pattern, f"{line.text} {line.calls}".lower()))


def _handoff(case: _Case) -> _Candidate:
    """Return the limit that handing batches over is, of which larger batches or fewer tensors leave a share."""
    costs, part = case.costs, Limit.HANDOFF
    share, tensors = min(1.0, (case.report.batch_size or _FULL_BATCH) / _FULL_BATCH), case.recorder.tensors
    fewer = case.without(part, share=1.0 / tensors if tensors > MANY_TENSORS else 0.0)
    # Collate makes the memory that is handed over; what it takes beyond that grows with the batch.
    fixed_s = costs.wall[part] + costs.receiving_s
    collating = max(share, 1.0 - (1.0 - share) * fixed_s / max(costs.wall[Limit.COLLATE], NEARLY_NONE))
    larger = case.gain_with(costs.with_share(share, part).with_share(collating, Limit.COLLATE))
    return _first(
        (not costs.workers, _Candidate(part, 1.0, 1.0)),
        (tensors * share >= 1.0, _Candidate(part, fewer, fewer)),
        (True, _Candidate(Limit.SMALL_BATCHES, larger, larger)),
    )


def _startup(case: _Case, computing: _Candidate) -> _Candidate:
    """Return the limit that starts of epochs are; workers that persist start once."""
    report, workers, part = case.report, case.costs.workers, Limit.STARTUP
    start_s = report.startup_s / report.steps
    may_persist = workers > 0 and report.epochs > 1 and not case.recorder.persists
    gain = case.gain(start_s * (1.0 - 1.0 / report.epochs if may_persist else 1.0))
    each = _Candidate(part, case.gain(start_s), float("inf") if workers else 1.0, _KEEP)
    fewer = case.gain(start_s * (1.0 - case.needed / max(1, workers)))
    less = f"less work before the first batch: {report.startup_s:.1f} s"
    # A longer loop pays no more for it, but for any other limit, the loop itself included.
    once = min(gain, LEAST_GAIN) if gain > computing.gain else 1.0
    is_many = workers > _MANY * case.needed and bool(report.parts_s)
    return _first(
        (case.steps.are_starts, each),
        (is_many, _Candidate(Limit.MANY_WORKERS, fewer, gain)),
        (may_persist, _Candidate(part, gain, gain)),
        (report.epochs > 1, _Candidate(part, gain, gain, less)),
        (True, _Candidate(part, gain, once, f"{less}, paid once in this loop of one epoch")),
    )


def _judged(case: _Case) -> ProfileReport:
    """Return the report with the limit, the speed-up without it, and the workers that are enough."""
    report, costs = case.report, case.costs
    saved_s = max(0.0, report.step_s - costs.with_share(0.0, Limit.COMPUTE).step_s)
    computing = _Candidate(Limit.COMPUTE, case.gain(saved_s + report.first_loops_s / report.steps), 1.0)
    pinning = case.without(Limit.PINNING)
    stalls = case.gain(report.stall_s / report.steps)
    limits = {
        Limit.TRANSFORM: _making(case, Limit.TRANSFORM),
        Limit.WAITING: _making(case, Limit.WAITING),
        Limit.COLLATE: _making(case, Limit.COLLATE),
        Limit.HANDOFF: _handoff(case),
        Limit.PINNING: _Candidate(Limit.PINNING, pinning, pinning),
        Limit.STARTUP: _startup(case, computing),
        Limit.STALLS: _Candidate(Limit.STALLS, stalls, stalls),
    }
    spent_s = costs.wall | {Limit.HANDOFF: costs.wall[Limit.HANDOFF] + costs.receiving_s + costs.rest_s}
    part = max(limits, key=lambda part: (round(limits[part].removed, 2), spent_s.get(part, 0.0)))
    is_opaque = not report.shares
    limit = computing if limits[part].removed < LEAST_GAIN else limits[part]
    if is_opaque and limit is not computing and part in costs.wall:
        limit = limit._replace(bound=Limit.LOADER)
    shown = {1, report.cores, case.needed, costs.workers} if case.has_predicted_workers else set()
    any_order = case.gain_with(costs.in_any_order()) if report.slow and costs.workers > 1 else None
    return dataclasses.replace(
        report,
        bound=limit.bound,
        any_order=any_order,
        operations=(operations := tuple(_operations(case))),
        decoding=next((row.gain for row in operations if row.name == DECODING), 1.0) if operations else None,
        gain=limit.gain,
        advice=limit.advice,
        workers_needed=None if is_opaque else case.needed,
        by_workers={
            count: case.gain(report.step_s - step_s)
            for count, step_s in case.steps_s.items()
            if count in shown
        },
    )
