"""What timing every step and proving the timed pass cost: ``python -m benchmarks.overhead``.

The traced loop is the one that trains (`storebench.training.loop.run_epoch`
with its table of steps). The untraced one does the same work for the same
batches from the same loader, but keeps no rows and reads no clock, neither in
the loop nor in the producer. The two take turns, and which of them begins
turns as well; a ratio is that of one round.

Then the same for the proof: the recorded time of epochs of which samples are kept (`storebench.loading.kept`), over that of
epochs of which none are, and the pauses as a share of the epoch. The pauses are left out of the recorded time, so the
ratio says what is left: colder caches, and with a worker the time in which it went on.

And the same for the kernel's counters, which are read once per batch (`storebench.probes.batch_io`): the recorded time of
epochs with and without. The loop reads them in its pause; a producer beside it pays for a reading with its batch.

    python -m benchmarks.overhead [--rounds N] [--only NAME]

Exit code 1 where either changes the time by more than 1% beyond doubt.
"""

import argparse
import contextlib
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from storebench.datasets import DatasetSpec
from storebench.formats.registry import parse_backend
from storebench.loading import producer
from storebench.loading.batch import Batch, EpochPlan, LoadJob
from storebench.loading.kept import SampleKeeper
from storebench.loading.loader import Loader, ProcessLoader, get_loader
from storebench.loading.order import epoch_order, split_batches
from storebench.probes.batch_io import IoMeter
from storebench.settings.words import Compute
from storebench.stats import Comparison, compare
from storebench.stores.convert import BuildOptions, ensure_store
from storebench.training.loop import keep_nothing, run_epoch
from storebench.training.models import MODELS
from storebench.training.step_table import step_table, wall_ns
from storebench.training.steps import NoStep, Step, make_step
from storebench.units import Better
from storebench.worker.after_step import AfterStep

SAMPLES, BATCH = 6_400, 64
MOST = 1.01


@dataclass(frozen=True, kw_only=True)
class Case:
    """A step to trace: what is computed, and how many steps one side of a round has."""

    name: str
    compute: Compute
    steps: int
    rounds: int


CASES = (
    Case(name="a step of 2 ms (emulated)", compute=Compute("emulated:2"), steps=50, rounds=100),
    Case(name="LeNet, batch 64", compute=Compute("real"), steps=10, rounds=60),
)


class StoppedClock:
    """A clock that is not read."""

    @staticmethod
    def perf_counter_ns() -> int:
        """Return nothing."""
        return 0


def run_untraced(batches: Iterator[Batch], step: Step) -> None:
    """Train on every batch, and do nothing else."""
    for batch in batches:
        step.copy(batch)
        step.compute()


def traced(batches: Iterator[Batch], step: Step) -> None:
    """Train as storebench trains."""
    step_table(run_epoch(batches, step), step.losses(), warmup_steps=0)


def untraced(batches: Iterator[Batch], step: Step) -> None:
    """Train without a clock."""
    clock, producer.time = producer.time, StoppedClock()  # type: ignore[assignment, attr-defined]
    try:
        run_untraced(batches, step)
    finally:
        producer.time = clock  # type: ignore[attr-defined]
    step.losses()


def seconds(
    side: Callable[[Iterator[Batch], Step], None], loader: ProcessLoader, step: Step, case: Case, number: int
) -> float:
    """Return how long one side of a round takes."""
    order = epoch_order(SAMPLES, seed=0, epoch=number)
    plan = EpochPlan(epoch=number, batches=split_batches(order, BATCH, case.steps))
    gc.collect()
    start = time.perf_counter()
    side(loader.epoch(plan), step)
    return time.perf_counter() - start


def measure(case: Case, loader: ProcessLoader, rounds: int) -> Comparison:
    """Return traced over untraced time, paired by round."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # two threads wait for each other whenever somebody else uses a core
    step = make_step(case.compute, MODELS["lenet"], (28, 28, 1), 10, "cpu")
    times: dict[Callable[[Iterator[Batch], Step], None], list[float]] = {traced: [], untraced: []}
    for number in range(-2, rounds):
        sides = (traced, untraced) if number % 2 else (untraced, traced)
        for side in sides:
            taken = seconds(side, loader, step, case, number + 2)
            if number >= 0:
                times[side].append(taken)
    return compare(times[untraced], times[traced], better=Better.LOWER)


@dataclass(frozen=True, kw_only=True)
class ProofCase:
    """Epochs of which samples are kept: which images, and who makes the batches."""

    name: str
    dataset: str
    loader: str
    workers: int
    samples: int
    rounds: int = 60
    short: bool = False  # shorter than what anybody would measure: printed, and held to nothing


PROOF_CASES = (
    ProofCase(
        name="proof, MNIST", dataset="mnist", loader="processes", workers=0, samples=60_000, rounds=200
    ),
    ProofCase(
        name="proof, MNIST, 100 steps",
        dataset="mnist",
        loader="processes",
        workers=0,
        samples=SAMPLES,
        short=True,
    ),
    ProofCase(name="proof, ImageNet-256", dataset="imagenet", loader="processes", workers=0, samples=8000),
    ProofCase(name="proof, ImageNet-256, ring", dataset="imagenet", loader="ring", workers=1, samples=8000),
    ProofCase(
        name="proof, ImageNet-256, ring, 20 steps",
        dataset="imagenet",
        loader="ring",
        workers=1,
        samples=1280,
        short=True,
    ),
)


def recorded(
    loader: Loader, count: int, shape: tuple[int, int, int], number: int, *, keep: bool
) -> tuple[float, float]:
    """Return the recorded seconds of one epoch that computes nothing, and the seconds of its pauses."""
    batches = split_batches(epoch_order(count, seed=0, epoch=number), BATCH)
    keeper = (
        SampleKeeper([len(batch) for batch in batches], shape, paused=loader.paused) if keep else keep_nothing
    )
    gc.collect()
    times = run_epoch(loader.epoch(EpochPlan(epoch=number, batches=batches)), NoStep(), keeper)
    table = step_table(times, [], warmup_steps=0)
    return wall_ns(table) / 1e9, float(table["paused_ns"].sum()) / 1e9


def measure_proof(case: ProofCase, folder: Path, rounds: int) -> tuple[Comparison, float]:
    """Return recorded time with keeping over time without, paired by round, and the median share of the pauses."""
    backend = parse_backend("memory:native")
    spec = DatasetSpec(name=case.dataset, size=case.samples, synthetic=True)
    store = ensure_store(spec, backend, folder, options=BuildOptions(verify=False))
    manifest = store.manifest
    job = LoadJob(store=store.path, backend=backend, batch_size=BATCH)
    torch.set_num_threads(1)
    times: dict[bool, list[float]] = {True: [], False: []}
    shares = []
    with get_loader(case.loader)(job, workers=case.workers) as loader:
        loader.open()
        for number in range(-2, rounds):
            for keep in (True, False) if number % 2 else (False, True):
                seconds_of, pauses = recorded(
                    loader, manifest.count, manifest.dataset.image_shape, number + 2, keep=keep
                )
                if number >= 0:
                    times[keep].append(seconds_of)
                if number >= 0 and keep:
                    shares.append(pauses / seconds_of)
    return compare(times[False], times[True], better=Better.LOWER), statistics.median(shares)


@dataclass(frozen=True, kw_only=True)
class CounterCase:
    """Epochs that compute nothing, with the kernel's counters read for each batch and without."""

    name: str
    dataset: str
    samples: int
    loader: str
    workers: int
    rounds: int = 60
    short: bool = False  # batches far smaller than anyone's: printed, and held to nothing


COUNTER_CASES = (
    CounterCase(
        name="counters, ImageNet-256", dataset="imagenet", samples=2000, loader="processes", workers=0
    ),
    CounterCase(
        name="counters, ImageNet-256, ring", dataset="imagenet", samples=2000, loader="ring", workers=1
    ),
    CounterCase(
        name="counters, ImageNet-256, threads", dataset="imagenet", samples=2000, loader="threads", workers=1
    ),
    CounterCase(name="counters, MNIST", dataset="mnist", samples=60_000, loader="processes", workers=0),
    CounterCase(
        name="counters, MNIST, processes",
        dataset="mnist",
        samples=60_000,
        loader="processes",
        workers=1,
        short=True,
    ),
    CounterCase(
        name="counters, MNIST, ring", dataset="mnist", samples=60_000, loader="ring", workers=1, short=True
    ),
    CounterCase(
        name="counters, MNIST, threads",
        dataset="mnist",
        samples=60_000,
        loader="threads",
        workers=1,
        short=True,
    ),
)


def _do_nothing(self: IoMeter) -> None:
    pass


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Read no counters, neither in this process nor in workers that are forked meanwhile."""
    begin = IoMeter.begin
    IoMeter.begin = _do_nothing  # type: ignore[method-assign]
    try:
        yield
    finally:
        IoMeter.begin = begin  # type: ignore[method-assign]


def reading_us(readings: int = 20_000) -> float:
    """Return the microseconds of one reading of the counters."""
    meter = IoMeter()
    meter.begin()
    start = time.perf_counter()
    for _ in range(readings):
        meter.read()
    taken = time.perf_counter() - start
    meter.end()
    return 1e6 * taken / readings


def drained(loader: Loader, count: int, number: int) -> float:
    """Return the recorded seconds of an epoch whose batches are only taken."""
    plan = EpochPlan(epoch=number, batches=split_batches(epoch_order(count, seed=0, epoch=number), BATCH))
    gc.collect()
    with AfterStep(keep_nothing, loader.paused) as after_step:
        times = run_epoch(loader.epoch(plan), NoStep(), after_step)
    return wall_ns(step_table(times, [], warmup_steps=0)) / 1e9


def measure_counters(case: CounterCase, folder: Path, rounds: int) -> Comparison:
    """Return the recorded time with counters over that without, paired by round."""
    backend = parse_backend("memory:native")
    spec = DatasetSpec(name=case.dataset, size=case.samples, synthetic=True)
    store = ensure_store(spec, backend, folder, options=BuildOptions(verify=False))
    job = LoadJob(store=store.path, backend=backend, batch_size=BATCH)
    torch.set_num_threads(1)
    sides: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
        "counted": contextlib.nullcontext,
        "not counted": uncounted,
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    with contextlib.ExitStack() as opened:
        loaders: dict[str, Loader] = {}
        for name, around in sides.items():
            loaders[name] = opened.enter_context(get_loader(case.loader)(job, workers=case.workers))
            with around():
                loaders[name].open()
        for number in range(-2, rounds):
            for name in sides if number % 2 else reversed(sides):
                with sides[name]():
                    taken = drained(loaders[name], store.manifest.count, number + 2)
                if number >= 0:
                    times[name].append(taken)
    return compare(times["not counted"], times["counted"], better=Better.LOWER)


def words(comparison: Comparison, sides: str = "traced over untraced") -> str:
    """Say what the ratio and its interval mean for the limit of 1%."""
    assert comparison.ratio is not None
    assert comparison.low is not None
    assert comparison.high is not None
    if comparison.low > 1 / MOST and comparison.high < MOST:
        meaning = "under 1%"
    elif comparison.high < 1 / MOST:
        meaning = "MORE THAN 1% FASTER"
    elif comparison.low > MOST:
        meaning = "MORE THAN 1%"
    else:
        meaning = "not told from 1%: more rounds, or a quieter machine"
    figures = f"{comparison.ratio:.4f} [{comparison.low:.4f}, {comparison.high:.4f}]"
    return f"{sides} {figures}, {comparison.rounds} rounds: {meaning}"


def main() -> int:
    """Measure every case and print the ratios."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, help="rounds of each case")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    arguments = parser.parse_args()
    too_much = False
    with tempfile.TemporaryDirectory() as folder:
        spec = DatasetSpec(name="mnist", limit=SAMPLES, synthetic=True)
        backend = parse_backend("memory:native")
        store = ensure_store(spec, backend, Path(folder), options=BuildOptions(verify=False)).path
        with ProcessLoader(LoadJob(store=store, backend=backend), workers=0) as loader:
            loader.open()
            for case in CASES:
                if arguments.only in case.name:
                    comparison = measure(case, loader, arguments.rounds or case.rounds)
                    print(f"{case.name}: {words(comparison)}", flush=True)
                    too_much |= comparison.low is not None and comparison.low > MOST
        if "counters" in arguments.only or not arguments.only:
            print(f"counters: one reading takes {reading_us():.1f} us", flush=True)
        for counted in COUNTER_CASES:
            if arguments.only in counted.name:
                comparison = measure_counters(counted, Path(folder), arguments.rounds or counted.rounds)
                print(f"{counted.name}: {words(comparison, 'counted over not counted')}", flush=True)
                too_much |= not counted.short and comparison.low is not None and comparison.low > MOST
        for proof in PROOF_CASES:
            if arguments.only in proof.name:
                comparison, share = measure_proof(proof, Path(folder), arguments.rounds or proof.rounds)
                said = words(comparison, "kept over not kept")
                print(f"{proof.name}: {said}; pauses are {share:.2%} of an epoch", flush=True)
                assert comparison.low is not None
                assert comparison.high is not None
                too_much |= not proof.short and (comparison.low > MOST or comparison.high < 1 / MOST)
    return int(too_much)


if __name__ == "__main__":
    sys.exit(main())
