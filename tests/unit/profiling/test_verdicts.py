"""Planted steps: is the limit named, and is the gain that which the steps imply?

`benchmarks.profile_cases` plants limits into real loops.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from storebench.profiling.batch_times import BatchTimes, ProcessCounters
from storebench.profiling.profile_report import ProfileReport
from storebench.profiling.recorder import LoopStep, Recorder
from storebench.profiling.stacks import CodeLine, Seen
from storebench.profiling.verdict import report_of
from storebench.settings.words import Limit

S = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop of torch on a machine with two cores; times are seconds per batch or step."""

    workers: int = 2
    prefetch_factor: int = 2
    batch: int = 8
    epochs: int = 1
    steps: int = 100
    persists: bool = False
    dataset_s: float = 0.0  # of CPU time
    blocked_s: float = 0.0  # in the dataset
    collate_s: float = 0.0
    pickling_s: float = 0.0
    receive_s: float = 0.0
    pin_s: float = 0.0
    delayed_s: float = 0.0  # without a core, while a batch is made
    loop_s: float = 0.0
    loop_cpu_s: float = 0.0
    loop_delayed_s: float = 0.0
    ends_s: float = 0.0  # of an epoch
    start_s: float = 0.0  # of workers, or of the first batch
    loops_s: Mapping[int, float] = field(default_factory=dict)  # by the place of the step, in each epoch
    every: int = 0  # or so many steps have another loop
    then_s: float = 0.0  # of that
    makes_s: Mapping[int, float] = field(default_factory=dict)  # blocked in addition, by the place
    first_epoch: float = 1.0  # the factor of the dataset's work in it
    tensors: int = 1
    freeing_s: float = 0.0  # of the loop's time
    is_generator: bool = False
    is_opaque: bool = False
    io_waits: int = 0  # of 100 looks
    line: str = ""  # with all looks
    slow: int = 0  # every so many batches have a slow sample
    slow_s: float = 0.0
    slow_cpu: bool = False  # whether that computes
    operations: Mapping[str, int] = field(default_factory=dict)  # ticks

    def recorder(self, folder: Path) -> Recorder:
        """Return what a recorder would have seen."""
        recorder = Recorder()
        recorder.workers, recorder.batch_size, recorder.persists = self.workers, self.batch, self.persists
        recorder.prefetched, recorder.cores = self.workers * self.prefetch_factor, 2
        recorder.epochs, recorder.tensors, recorder.makes = self.epochs, self.tensors, self.is_generator
        recorder.freeings_ns.append(int(S * self.freeing_s))
        recorder.seen.operations.update(self.operations)
        recorder.seen.files[str(folder / "photo.jpg")] = 1
        if self.line:
            (folder / "train.py").write_text(self.line + "\n")
            last = len(self.line.splitlines())
            recorder.seen.lines[CodeLine(str(folder / "train.py"), last, "train.py __getitem__")] = 100
            recorder.seen.waits["io"] = self.io_waits
        now = 0.0
        for epoch in range(self.epochs):
            now = self._epoch(recorder, epoch, now)
        return recorder

    def _epoch(self, recorder: Recorder, epoch: int, now: float) -> float:
        """Add an epoch, whose batches are made and given as torch does; return when it ends."""
        start_s = self.start_s if not epoch or not self.persists else 0.0
        free = [now + start_s] * self.workers
        taken: list[float] = []
        asked = pinned = now
        for place in range(self.steps):
            is_slow = bool(self.slow) and place % self.slow == self.slow // 2
            dataset_s = self.dataset_s * (1.0 if epoch else self.first_epoch)
            blocked_s = self.blocked_s + self.makes_s.get(place, 0.0)
            usual_s = (dataset_s + blocked_s) / self.batch
            dataset_s += is_slow * self.slow_cpu * self.slow_s
            blocked_s += is_slow * (not self.slow_cpu) * self.slow_s
            making_s = dataset_s + blocked_s + self.collate_s + self.delayed_s
            if self.workers:
                worker, ahead = place % self.workers, self.workers * self.prefetch_factor
                began = max(free[worker], taken[place - ahead] if place >= ahead else asked * (not place))
                ended = free[worker] = began + making_s + self.pickling_s
                pinned = max(pinned, ended) + self.pin_s
                given = max(asked, pinned) + self.receive_s
            else:
                began = asked + (0.0 if place else start_s)
                ended = given = began + making_s
            taken.append(given)
            loop_s = self.loops_s.get(place, self.loop_s)
            if self.every and place % self.every == self.every - 1:
                loop_s = self.then_s
            told = ProcessCounters(
                1, int(S * (dataset_s + self.collate_s + self.pickling_s)), 0, Seen.nothing()
            )
            made = BatchTimes(
                began_ns=int(S * began),
                collated_ns=int(S * (began + making_s - self.collate_s)),
                ended_ns=int(S * (began + making_s)),
                dataset_cpu_ns=int(S * dataset_s),
                collate_cpu_ns=int(S * self.collate_s),
                delayed_ns=int(S * self.delayed_s),
                told=told,
                pid=1,
                pickling_ns=int(S * self.pickling_s),
                pinning_ns=int(S * self.pin_s),
                samples=self.batch,
                longest_ns=int(S * (usual_s + is_slow * self.slow_s)),
                longest=place * self.batch,
            )
            wait_cpu_s = self.receive_s if self.workers else dataset_s + self.collate_s
            recorder.steps.append(
                LoopStep(
                    place=place,
                    asked_ns=int(S * asked),
                    wait_ns=int(S * (given - asked)),
                    wait_cpu_ns=int(S * wait_cpu_s),
                    wait_delayed_ns=0,
                    ready=None,
                    made=None if self.is_opaque else made,
                    loop_ns=int(S * loop_s),
                    delayed_ns=int(S * self.loop_delayed_s),
                    cpu_ns=int(S * (wait_cpu_s + self.loop_cpu_s)),
                )
            )
            asked = given + loop_s
        recorder.ends_ns += int(S * self.ends_s)
        return asked + self.ends_s


SLOW_FIRST = {0: 4.0}
"""Loops of which the first compiles."""

LOCK = "with self.lock:"
WALK = 'row = next(row for row in self.rows if row["id"] == index)'
TWO_LINES = 'for row in self.rows:\n    if row["id"] == index:'
OPEN = 'with h5py.File(self.path) as file: image = file["images"][index]'
SORT = 'key = sorted(file["images"].keys())[index]'

# The limit, and the gain within 3%.
CASES: dict[str, tuple[Loop, Limit, float]] = {
    "compute": (Loop(dataset_s=0.010, loop_s=0.030), Limit.COMPUTE, 6.0),
    "decode": (Loop(dataset_s=0.040, loop_s=0.004), Limit.TRANSFORM, 5.0),
    "decode that takes cores from the loop": (
        Loop(dataset_s=0.040, loop_s=0.030, loop_cpu_s=0.020, loop_delayed_s=0.012),
        Limit.TRANSFORM,
        30 / 18,
    ),
    "storage": (Loop(blocked_s=0.040, loop_s=0.004, line="read", io_waits=90), Limit.STORAGE, 5.0),
    "a network": (Loop(blocked_s=0.040, loop_s=0.004, line="ask(index)"), Limit.WAITING, 5.0),
    "a network, no workers": (Loop(workers=0, blocked_s=0.016, loop_s=0.004), Limit.WAITING, 5.0),
    "a lock among four workers": (
        Loop(workers=4, blocked_s=0.080, loop_s=0.002, line=LOCK),
        Limit.LOCK,
        4.0,
    ),
    "collate": (Loop(collate_s=0.040, loop_s=0.004), Limit.COLLATE, 5.0),
    "a collate that pads small batches": (
        Loop(batch=4, dataset_s=0.02, collate_s=0.3, pickling_s=0.001, receive_s=0.01, loop_s=0.05),
        Limit.COLLATE,
        2.67,
    ),
    "small batches": (
        Loop(workers=1, batch=1, dataset_s=0.0001, collate_s=0.0001, pickling_s=0.0008, receive_s=0.0004),
        Limit.SMALL_BATCHES,
        7.7,
    ),
    "many tensors": (
        Loop(workers=1, pickling_s=0.030, receive_s=0.030, loop_s=0.001, tensors=240),
        Limit.HANDOFF,
        22.0,
    ),
    "many tensors that the loop frees": (
        Loop(workers=1, pickling_s=0.030, receive_s=0.030, loop_s=0.004, freeing_s=0.003, tensors=240),
        Limit.HANDOFF,
        23.9,
    ),
    "a transform on shared cores": (
        Loop(
            workers=4, dataset_s=0.016, delayed_s=0.016, receive_s=0.003, loop_s=0.0045, loop_delayed_s=0.001
        ),
        Limit.TRANSFORM,
        1.22,
    ),
    "pinning": (Loop(dataset_s=0.002, pin_s=0.020, loop_s=0.005), Limit.PINNING, 4.0),
    "no workers": (Loop(workers=0, dataset_s=0.020, loop_s=0.020), Limit.WORKERS, 2.0),
    "too few workers": (Loop(workers=1, dataset_s=0.030, loop_s=0.010), Limit.WORKERS, 2.0),
    "too many workers": (
        Loop(workers=16, dataset_s=0.001, loop_s=0.010, start_s=1.0, epochs=4, steps=40),
        Limit.MANY_WORKERS,
        # Of 0.4 s of loops and 1.0 s of a start, fifteen sixteenths of the start are saved.
        1.4 / (1.4 - 15 / 16),
    ),
    "starts": (
        Loop(dataset_s=0.001, loop_s=0.010, start_s=0.5, epochs=4, steps=50),
        Limit.STARTUP,
        4.0 / (4.0 - 1.5),
    ),
    "ends": (
        Loop(dataset_s=0.001, loop_s=0.010, ends_s=0.5, epochs=4, steps=50),
        Limit.STARTUP,
        4.0 / (4.0 - 1.5),
    ),
    "starts of one epoch": (
        Loop(dataset_s=0.001, loop_s=0.010, start_s=0.5, steps=50),
        Limit.STARTUP,
        2.0,
    ),
    "starts of one epoch, which decodes": (
        Loop(dataset_s=0.020, loop_s=0.005, start_s=2.0, steps=50),
        Limit.TRANSFORM,
        2.5 / 2.25,
    ),
    "a collate that pads, no workers": (
        Loop(workers=0, dataset_s=0.020, collate_s=0.100, loop_s=0.010),
        Limit.COLLATE,
        13 / 3,
    ),
    "starts of workers that persist": (
        Loop(dataset_s=0.001, loop_s=0.010, start_s=2.0, epochs=4, steps=50, persists=True),
        Limit.STARTUP,
        2.0,
    ),
    "starts of a generator": (
        Loop(workers=0, dataset_s=0.0001, loop_s=0.010, start_s=0.5, epochs=2, steps=50, is_generator=True),
        Limit.STARTUP,
        2.0,
    ),
    "workers that fill an empty queue are no start": (
        Loop(dataset_s=0.400, loop_s=0.300, epochs=2, steps=8),
        Limit.COMPUTE,
        1.4,
    ),
    "an iterator for each step": (
        Loop(dataset_s=0.017, loop_s=0.020, start_s=0.200, steps=1, epochs=30),
        Limit.STARTUP,
        237 / 20,
    ),
    "an iterator for each step, no workers": (
        Loop(workers=0, dataset_s=0.020, loop_s=0.020, steps=1, epochs=30),
        Limit.TRANSFORM,
        2.0,
    ),
    "stalls": (Loop(dataset_s=0.002, loop_s=0.010, makes_s={50: 1.03}), Limit.STALLS, 2.0),
    "stalls beyond usual waits": (
        Loop(workers=0, blocked_s=0.040, loop_s=0.004, makes_s=dict.fromkeys((20, 40, 60, 80), 1.2)),
        Limit.STALLS,
        9.2 / 4.4,
    ),
    "waits that are no stalls: short": (
        Loop(dataset_s=0.001, loop_s=0.001, makes_s={20: 0.035, 50: 0.035, 80: 0.035}),
        Limit.WAITING,
        2.0,
    ),
    "a slow first step, no workers": (
        Loop(workers=0, dataset_s=0.001, loop_s=0.020, loops_s=SLOW_FIRST),
        Limit.COMPUTE,
        6.08 / 0.1,
    ),
    "a slow first step": (Loop(dataset_s=0.002, loop_s=0.020, loops_s=SLOW_FIRST), Limit.COMPUTE, 60.0),
    "a slow first step, after a slow start": (
        Loop(dataset_s=0.002, loop_s=0.020, loops_s=SLOW_FIRST, start_s=1.6, steps=50),
        Limit.COMPUTE,
        6.58 / 1.7,
    ),
    "a cache that the first epoch fills": (
        Loop(workers=0, dataset_s=0.002, loop_s=0.006, first_epoch=24.0, epochs=20),
        Limit.TRANSFORM,
        8 / 6,
    ),
    "an evaluation every 40 steps": (
        Loop(workers=0, blocked_s=0.050, loop_s=0.0125, every=40, then_s=1.9, steps=400),
        Limit.WORKERS,
        1.56,
    ),
    "a slow sample in fifty": (
        Loop(dataset_s=0.010, loop_s=0.050, slow=6, slow_s=0.600, steps=120),
        Limit.SLOW_SAMPLES,
        2.48,
    ),
    "a file opened for each sample": (
        Loop(dataset_s=0.040, loop_s=0.004, line=OPEN),
        Limit.REPEATED,
        5.0,
    ),
    "keys sorted for each sample": (Loop(dataset_s=0.040, loop_s=0.004, line=SORT), Limit.REPEATED, 5.0),
    "a list walked for each sample": (Loop(dataset_s=0.040, loop_s=0.004, line=WALK), Limit.REPEATED, 5.0),
    "a list walked in two lines": (
        Loop(dataset_s=0.040, loop_s=0.004, line=TWO_LINES),
        Limit.REPEATED,
        5.0,
    ),
    "a line that decodes": (
        Loop(dataset_s=0.040, loop_s=0.004, line="images = [decode(path) for path in paths]"),
        Limit.TRANSFORM,
        5.0,
    ),
    "a loader whose inside is not seen": (
        Loop(workers=0, dataset_s=0.040, loop_s=0.010, is_opaque=True),
        Limit.LOADER,
        5.0,
    ),
    "too few steps": (Loop(dataset_s=0.040, steps=4), Limit.UNKNOWN, 1.0),
}


def report(loop: Loop, folder: Path) -> ProfileReport:
    return report_of(loop.recorder(folder))


@pytest.mark.parametrize("name", CASES)
def test_a_planted_limit_is_named(name: str, tmp_path: Path) -> None:
    loop, bound, gain = CASES[name]
    verdict = report(loop, tmp_path)
    assert verdict.bound is bound, str(verdict)
    assert verdict.gain == pytest.approx(gain, rel=0.03)
    assert len(str(verdict).splitlines()) <= 12
    assert ("persistent_workers" in verdict.remedy) == (name in {"starts", "ends"})


PREDICTED: dict[str, tuple[Loop, dict[int, float]]] = {
    # Four workers that share two cores are without one half of the time; one worker is not.
    "busy cores": (
        Loop(workers=4, dataset_s=0.040, delayed_s=0.040, loop_s=0.002),
        {1: 0.5, 2: 1.0, 4: 1.0},
    ),
    "other programs on the cores": (
        Loop(dataset_s=0.020, delayed_s=0.020, loop_s=0.002),
        {1: 0.5, 2: 1.0},
    ),
    "other programs on the cores, no workers": (
        Loop(workers=0, dataset_s=0.020, delayed_s=0.020, loop_s=0.020),
        {1: 1.5, 2: 3.0},
    ),
    "a queue that cannot use a long pause": (
        Loop(workers=0, blocked_s=0.050, loop_s=0.0125, every=40, then_s=1.9, steps=400),
        {1: 1.15, 2: 1.56},
    ),
    "a longer queue": (
        Loop(prefetch_factor=20, blocked_s=0.050, loop_s=0.0125, every=40, then_s=1.9, steps=400),
        {1: 0.836, 2: 1.0},
    ),
    "a cache in this process": (
        Loop(workers=0, dataset_s=0.002, loop_s=0.006, first_epoch=24.0, epochs=20),
        {},
    ),
}


@pytest.mark.parametrize("name", PREDICTED)
def test_what_other_workers_gain_is_predicted(name: str, tmp_path: Path) -> None:
    loop, gains = PREDICTED[name]
    assert report(loop, tmp_path).by_workers == pytest.approx(gains, rel=0.03)


PHOTOS = {"decoding": 30, "reading": 5, "Erase": 65}
# The gains without operations, and whether converting is advised.
WORTH: dict[str, tuple[Loop, dict[str, float], bool]] = {
    "an expensive transform": (
        Loop(dataset_s=0.040, loop_s=0.004, operations=PHOTOS),
        {"Erase": 1 / 0.35, "decoding": 1 / 0.7, "reading": 1 / 0.95},
        True,
    ),
    "little decoding": (
        Loop(dataset_s=0.040, loop_s=0.004, operations=PHOTOS | {"decoding": 5}),
        {"Erase": 5.0, "decoding": 75 / 70, "reading": 75 / 70},
        False,
    ),
    "no decoding": (
        Loop(dataset_s=0.040, loop_s=0.004, operations={"reading": 50, "Erase": 50}),
        {"Erase": 2.0, "reading": 2.0},
        False,
    ),
    "nothing seen": (Loop(dataset_s=0.040, loop_s=0.004), {}, True),
}


@pytest.mark.parametrize("name", WORTH)
def test_what_an_operation_is_worth_is_predicted(name: str, tmp_path: Path) -> None:
    loop, gains, converts = WORTH[name]
    verdict = report(loop, tmp_path)
    found = {row.name: row.gain for row in verdict.operations if row.name != "collate"}
    assert found == pytest.approx(gains, rel=0.03)
    assert verdict.pays_converting == converts
    assert ("storebench run" in str(verdict)) == converts


def test_unusual_steps_are_told(tmp_path: Path) -> None:
    compiled = report(CASES["a slow first step"][0], tmp_path)
    assert (compiled.first_loops_s, compiled.startup_s) == pytest.approx((3.98, 0.0), abs=0.001)
    assert compiled.wait_frac < 0.05
    cached = report(CASES["a cache that the first epoch fills"][0], tmp_path)
    assert (cached.first_epoch, cached.steps) == (pytest.approx(54 / 8, rel=0.01), 1900)
    assert cached.total_s == pytest.approx(100 * 0.054 + 1900 * 0.008, rel=0.001)
    slow = report(CASES["a slow sample in fifty"][0], tmp_path).slow
    assert slow is not None
    assert (slow.frac, slow.time_frac) == pytest.approx((1 / 48, 0.6 / 0.66), rel=0.05)
    assert slow.longest % 48 == 24
    for rest in (Loop(dataset_s=0.01, loop_s=0.05), Loop(dataset_s=0.01, loop_s=0.05, slow=2, slow_s=0.6)):
        assert report(rest, tmp_path).slow is None


def test_a_measured_step_has_the_weight_of_those_that_follow_without(tmp_path: Path) -> None:
    # A loop that waits at first, when every step is measured, and computes for most of its time.
    loop = Loop(workers=0, steps=400, dataset_s=0.004, makes_s=dict.fromkeys(range(40), 0.02), loop_s=0.001)
    recorder, parts = loop.recorder(tmp_path), loop.recorder(tmp_path)
    for steps, each in ((recorder.steps, 1), (parts.steps, 10)):
        for step in steps:
            assert step.made is not None
            assert step.made.told is not None
            batches = each if step.place > 40 else 1
            bytes_read = 1000 * batches + 4000 * (step.place < 40)
            told = step.made.told._replace(batches=batches, device_bytes=bytes_read)
            step.made = step.made._replace(told=told)
            if step.place > 40 and step.place % each:
                step.made = step.wait_cpu_ns = step.cpu_ns = None
    every, some = report_of(recorder), report_of(parts)
    assert (some.bound, some.gain) == (every.bound, pytest.approx(every.gain, rel=0.01))
    assert some.shares == pytest.approx(every.shares, abs=0.01)
    assert every.device_bytes is not None
    assert some.device_bytes == pytest.approx(every.device_bytes, rel=0.02)
