"""What timing every step and proving the timed pass cost: ``python -m benchmarks.overhead``.

Each takes turns (`benchmarks.turns`) with the same work without it: a loop that keeps no rows and reads no clock;
epochs of which no sample is kept (their pauses are not in the recorded time); epochs without the kernel's counters
per batch.

All of it takes about nine minutes. Exit code 1 where one changes the time by more than 1% beyond doubt.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.turns import Compared, take_turns, words
from storebench.datasets import DatasetSpec
from storebench.formats.base import Indices
from storebench.formats.registry import parse_backend
from storebench.loading import producer
from storebench.loading.batch import EpochPlan, LoadedBatch, LoadJob
from storebench.loading.loader import BatchLoader, ProcessLoader, get_loader
from storebench.loading.order import epoch_order, split_batches
from storebench.loading.proof import KEPT_SAMPLES, SampleKeeper
from storebench.probes.batch_io import IoMeter
from storebench.record.manifest import Manifest
from storebench.record.steps import wall_ns
from storebench.settings.words import Compute
from storebench.stores.convert import BuildOptions, ensure_store
from storebench.training.compute import NoStep, Step, make_step
from storebench.training.loop import keep_nothing, run_epoch
from storebench.training.models import MODELS
from storebench.training.step_table import step_table
from storebench.worker.epoch import AfterStep

SAMPLES, BATCH = 6_400, 64
MOST = 1.01


@dataclass(frozen=True, kw_only=True)
class Case:
    """A step to trace: what is computed, how many steps a turn has, and the seconds for all turns."""

    name: str
    compute: Compute
    steps: int
    seconds: float
    short: bool = False  # shorter than any step that trains: printed, but not checked


CASES = (
    Case(name="a step that computes nothing", compute=Compute("none"), steps=1000, seconds=10, short=True),
    Case(name="a step of 2 ms (emulated)", compute=Compute("emulated:2"), steps=50, seconds=30),
    Case(name="LeNet, batch 64", compute=Compute("real"), steps=5, seconds=60),
)


class StoppedClock:
    """A clock that is not read."""

    @staticmethod
    def perf_counter_ns() -> int:
        """Return nothing."""
        return 0


def traced(batches: Iterator[LoadedBatch], step: Step) -> None:
    """Train as storebench trains."""
    step_table(run_epoch(batches, step), step.losses(), warmup_steps=0)


def untraced(batches: Iterator[LoadedBatch], step: Step) -> None:
    """Train without a clock."""
    clock, producer.time = producer.time, StoppedClock()  # type: ignore[assignment, attr-defined]
    try:
        for batch in batches:
            step.copy(batch)
            step.compute()
    finally:
        producer.time = clock  # type: ignore[attr-defined]
    step.losses()


def seconds(
    side: Callable[[Iterator[LoadedBatch], Step], None],
    loader: ProcessLoader,
    step: Step,
    case: Case,
    number: int,
) -> float:
    """Return the seconds that one side of a round takes."""
    drawn = Drained(name="", dataset="mnist", samples=SAMPLES, passes=-(-case.steps * BATCH // SAMPLES))
    plan = EpochPlan(epoch=number, batches=drawn.batches(SAMPLES, number)[: case.steps])
    start = time.perf_counter()
    side(loader.epoch(plan), step)
    return time.perf_counter() - start


def measure(case: Case, loader: ProcessLoader, spent_s: float) -> Compared:
    """Return the times of the untraced and of the traced loop."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # two threads wait for each other whenever somebody else uses a core
    step = make_step(case.compute, MODELS["lenet"], (28, 28, 1), 10, "cpu")
    return take_turns(
        lambda number: seconds(untraced, loader, step, case, number),
        lambda number: seconds(traced, loader, step, case, number),
        spent_s,
    )


@dataclass(frozen=True, kw_only=True)
class Drained:
    """Epochs that compute nothing: which images, who makes the batches, and passes over the samples."""

    name: str
    dataset: str
    samples: int
    loader: str = "processes"
    workers: int = 0
    passes: int = 1
    seconds: float = 30
    short: bool = False  # too short to be a real measurement: printed, but not checked

    def batches(self, count: int, number: int) -> list[Indices]:
        """Return the batches of an epoch of several passes over the samples."""
        turns = range(self.passes)
        orders = (epoch_order(count, seed=0, epoch=number * self.passes + turn) for turn in turns)
        return [batch for order in orders for batch in split_batches(order, BATCH)]


PROOF_CASES = (
    Drained(name="proof, long, MNIST", dataset="mnist", samples=60_000, passes=40, seconds=70),
    Drained(name="proof, long, ImageNet-256", dataset="imagenet", samples=2000, passes=16, seconds=70),
    Drained(name="proof, MNIST, 100 steps", dataset="mnist", samples=SAMPLES, seconds=8, short=True),
    Drained(
        name="proof, ImageNet-256, ring", dataset="imagenet", samples=2000, loader="ring", workers=1, passes=2
    ),
)
COUNTER_CASES = (
    Drained(name="counters, ImageNet-256", dataset="imagenet", samples=2000),
    Drained(name="counters, ImageNet-256, ring", dataset="imagenet", samples=2000, loader="ring", workers=1),
    Drained(name="counters, MNIST", dataset="mnist", samples=60_000),
)


def recorded(
    loader: BatchLoader, batches: list[Indices], shape: tuple[int, int, int], number: int, *, keep: bool
) -> tuple[float, float]:
    """Return the recorded seconds of one epoch that computes nothing, and the seconds of its pauses."""
    keeper = SampleKeeper([len(batch) for batch in batches], shape) if keep else keep_nothing
    times = run_epoch(loader.epoch(EpochPlan(epoch=number, batches=batches)), NoStep(), keeper)
    table = step_table(times, [], warmup_steps=0)
    return wall_ns(table) / 1e9, float(table["paused_ns"].sum()) / 1e9


def job_of(case: Drained, folder: Path) -> tuple[LoadJob, Manifest]:
    """Build the store of a case."""
    backend = parse_backend("memory:native")
    spec = DatasetSpec(name=case.dataset, size=case.samples, synthetic=True)
    store = ensure_store(spec, backend, folder, options=BuildOptions(verify=False))
    torch.set_num_threads(1)
    return LoadJob(store=store.path, backend=backend, batch_size=BATCH), store.manifest


def measure_proof(case: Drained, folder: Path, spent_s: float) -> tuple[Compared, float]:
    """Return the recorded times without keeping and with it, and the median share of the pauses."""
    job, manifest = job_of(case, folder)
    shares: list[float] = []
    with get_loader(case.loader)(job, workers=case.workers) as loader:
        loader.open()

        def turn(number: int, *, keep: bool) -> float:
            batches = case.batches(manifest.count, number)
            taken, pauses = recorded(loader, batches, manifest.dataset.image_shape, number, keep=keep)
            if keep:
                shares.append(pauses / taken)
            return taken

        compared = take_turns(
            lambda number: turn(number, keep=False), lambda number: turn(number, keep=True), spent_s
        )
    return compared, statistics.median(shares)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Read no counters, neither in this process nor in workers that are forked meanwhile."""
    begin = IoMeter.begin
    IoMeter.begin = lambda _self: None  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        IoMeter.begin = begin  # type: ignore[method-assign]


def drained(loader: BatchLoader, batches: list[Indices], number: int) -> float:
    """Return the recorded seconds of an epoch whose batches are only taken."""
    plan = EpochPlan(epoch=number, batches=batches)
    with AfterStep(keep_nothing) as after_step:
        times = run_epoch(loader.epoch(plan), NoStep(), after_step)
    return wall_ns(step_table(times, [], warmup_steps=0)) / 1e9


def measure_counters(case: Drained, folder: Path, spent_s: float) -> Compared:
    """Return the recorded times without counters and with them."""
    job, manifest = job_of(case, folder)
    sides: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
        "counted": contextlib.nullcontext,
        "not counted": uncounted,
    }
    with contextlib.ExitStack() as opened:
        loaders: dict[str, BatchLoader] = {}
        for name, around in sides.items():
            loaders[name] = opened.enter_context(get_loader(case.loader)(job, workers=case.workers))
            with around():
                loaders[name].open()

        def turn(name: str, number: int) -> float:
            with sides[name]():
                return drained(loaders[name], case.batches(manifest.count, number), number)

        return take_turns(
            lambda number: turn("not counted", number), lambda number: turn("counted", number), spent_s
        )


def told(case: Case | Drained, compared: Compared, sides: str, parts: int, what: str) -> bool:
    """Print a case, and return whether the second side takes over 1% longer, beyond doubt."""
    added = compared.added_us(parts)
    each = f"{added.mid:+.1f} us [{added.low:+.1f}, {added.high:+.1f}] per {what}"
    print(f"{case.name}: {words(compared, sides, MOST)}; {each}", flush=True)
    return not case.short and (compared.ratio.low or 0) > MOST


def main() -> int:
    """Measure every case and print the ratios."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seconds", type=float, help="seconds of each case")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    arguments = parser.parse_args()
    too_much = False
    with tempfile.TemporaryDirectory() as folder:
        spec = DatasetSpec(name="mnist", limit=SAMPLES, synthetic=True)
        backend = parse_backend("memory:native")
        store = ensure_store(spec, backend, Path(folder), options=BuildOptions(verify=False)).path
        with ProcessLoader(LoadJob(store=store, backend=backend), workers=0) as loader:
            loader.open()
            for case in (case for case in CASES if arguments.only in case.name):
                found = measure(case, loader, arguments.seconds or case.seconds)
                too_much |= told(case, found, "traced over untraced", case.steps, "step")
        for one in (one for one in COUNTER_CASES if arguments.only in one.name):
            found = measure_counters(one, Path(folder), arguments.seconds or one.seconds)
            too_much |= told(one, found, "counted over not counted", -(-one.samples // BATCH), "batch")
        for one in (one for one in PROOF_CASES if arguments.only in one.name):
            found, share = measure_proof(one, Path(folder), arguments.seconds or one.seconds)
            too_much |= told(one, found, "kept over not kept", KEPT_SAMPLES, "kept sample")
            print(f"  pauses are {share:.2%} of an epoch", flush=True)
    return int(too_much)


if __name__ == "__main__":
    sys.exit(main())
