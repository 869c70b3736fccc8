"""How fast each loader hands batches over, warm, and how well it hides behind compute.

All loaders of a backend are open at once and take turns epoch by epoch; each epoch is compared with that without
workers of the same round. A balanced step sleeps for as long as a batch takes without workers: with perfect overlap
an epoch takes as long as the longer of the two, which is also predicted from the spans of the same round's epoch
without workers.

``--public`` compares `storebench.Loader` with torch's DataLoader over the same dataset, with two workers each.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks.ratios import ratio_words
from storebench.analysis.comparison import compare
from storebench.datasets.base import DatasetSpec
from storebench.formats.registry import parse_backend
from storebench.loading.batch import EpochPlan, LoadJob
from storebench.loading.loader import BatchLoader, get_loader
from storebench.loading.order import epoch_order, split_batches
from storebench.loading.torch_dataset import StoreDataset
from storebench.loading.torch_loader import Loader as PublicLoader
from storebench.loading.worker_queues import SLOTS
from storebench.stores.convert import ensure_store
from storebench.training.compute import EmulatedStep, NoStep, Step
from storebench.training.loop import StepTimes, run_epoch

BATCH = 64
BASE = ("processes", 0)
LOADERS = [BASE, ("threads", 0), ("threads", 1), ("threads", 2), ("processes", 2), ("ring", 1), ("ring", 2)]
DATASETS = {"imagenet": 4_000, "cifar10": 50_000}
BACKENDS = ["memory:native", "lmdb", "hdf5", "png"]
SLOW = {"png": 20}
"""Of these only one sample in so many is read: decoding takes a hundred times longer than copying."""

Name = tuple[str, int]


@contextlib.contextmanager
def opened(job: LoadJob, names: list[Name]) -> Iterator[dict[Name, BatchLoader]]:
    """Open all loaders for the time of a context."""
    with contextlib.ExitStack() as stack:
        loaders = {}
        for name, workers in names:
            loaders[name, workers] = stack.enter_context(get_loader(name)(job, workers=workers))
            loaders[name, workers].open()
        yield loaders


def timed(loader: BatchLoader, plan: EpochPlan, step: Step) -> tuple[float, list[StepTimes]]:
    """Run one epoch; return its seconds and the times of its steps."""
    start = time.perf_counter()
    times = run_epoch(loader.epoch(plan), step)
    return time.perf_counter() - start, times


def overlapped(times: list[StepTimes]) -> float:
    """Return the seconds that an epoch without workers would take with one producer beside the loop."""
    ready, done = [0] * (SLOTS + 1), [0] * (SLOTS + 1)
    for one in times:
        freed = done[-SLOTS]
        ready.append(max(ready[-1], freed) + one.got_ns - one.asked_ns)
        done.append(max(ready[-1], done[-1]) + one.done_ns - one.got_ns)
    return done[-1] / 1e9


@dataclass(kw_only=True)
class Found:
    """Seconds of each round's epochs of one loader: without compute, and with a balanced step."""

    drained: list[float] = field(default_factory=list)
    balanced: list[float] = field(default_factory=list)
    overlapped: list[float] = field(default_factory=list)
    """What the balanced epoch would take with perfect overlap, by its spans."""


def measure(job: LoadJob, samples: int, rounds: int) -> dict[Name, Found]:
    """Return the result of each loader."""
    order = epoch_order(samples, seed=0, epoch=0)
    plan = EpochPlan(epoch=0, batches=split_batches(order, BATCH))
    found = {name: Found() for name in LOADERS}
    with opened(job, LOADERS) as loaders:
        for loader in loaders.values():
            timed(loader, plan, NoStep())
        alone = statistics.median(timed(loaders[BASE], plan, NoStep())[0] for _ in range(3))
        step = EmulatedStep(1000 * alone / len(plan.batches))
        for number in range(rounds):
            for name in np.random.default_rng(number).permutation(len(LOADERS)):
                loader, mine = loaders[LOADERS[name]], found[LOADERS[name]]
                mine.drained.append(timed(loader, plan, NoStep())[0])
                seconds, times = timed(loader, plan, step)
                mine.balanced.append(seconds)
                mine.overlapped.append(overlapped(times))
    return found


def report(title: str, samples: int, found: dict[Name, Found]) -> None:
    """Print the table of one data set and backend."""
    print(f"\n{title}: {samples:,} samples, batches of {BATCH}")
    print(
        "  loader         samples/s   of no workers, 95% interval   balanced epoch, of no workers, 95% interval"
    )
    base = found[BASE]
    others = {name: mine for name, mine in found.items() if name != BASE}
    print(f"  {BASE[0]:>9} {BASE[1]}  {samples / statistics.median(base.drained):>11,.0f}")
    for name, mine in others.items():
        share = ratio_words(compare(mine.drained, base.drained))
        overlap = ratio_words(compare(base.balanced, mine.balanced))
        rate = samples / statistics.median(mine.drained)
        print(f"  {name[0]:>9} {name[1]}  {rate:>11,.0f}   {share:>28}   {overlap:>28}")
    ring = ratio_words(compare(found["ring", 2].drained, found["processes", 2].drained))
    asked = ratio_words(compare(base.balanced, base.overlapped))
    got = ratio_words(compare(base.overlapped, found["threads", 1].balanced))
    print(f"  ring 2 over processes 2: {ring} times")
    print(
        f"  balanced, perfect overlap by the spans without workers: {asked} of no workers; "
        f"threads 1 took {got} times that",
        flush=True,
    )


def report_public(store: Path, samples: int, rounds: int) -> None:
    """Print how many times as fast as the DataLoader `storebench.Loader` drains a store; all take turns."""
    dataset = StoreDataset(store)
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "persistent_workers": True}
    loaders: dict[str, DataLoader[Any]] = {
        "DataLoader": DataLoader(dataset, num_workers=2, **settings),
        "Loader, ring": PublicLoader(dataset, workers=2, **settings),
        "Loader, threads": PublicLoader(dataset, workers=2, kind="threads", **settings),
        "Loader, NCHW": PublicLoader(dataset, workers=2, transform=torch.Tensor.contiguous, **settings),
    }
    seconds: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(rounds + 1):
        for name, loader in loaders.items():
            start = time.perf_counter()
            assert sum(len(labels) for _, labels in loader) == samples
            if number:  # the first epoch starts the workers
                seconds[name].append(time.perf_counter() - start)
    print(f"\n{store.name}: {samples:,} samples, batches of {BATCH}, 2 workers")
    print("  loader            samples/s   of the DataLoader, 95% interval")
    for name, mine in seconds.items():
        ratio = ratio_words(compare(mine, seconds["DataLoader"])) if name != "DataLoader" else ""
        print(f"  {name:<16} {samples / statistics.median(mine):>10,.0f}   {ratio:>31}")


def main() -> None:
    """Measure every data set and backend that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--backends", nargs="*", default=BACKENDS)
    parser.add_argument("--datasets", nargs="*", default=list(DATASETS))
    parser.add_argument("--samples", type=int, help="4,000 of ImageNet and 50,000 of CIFAR-10 by default")
    parser.add_argument("--public", action="store_true", help="storebench.Loader against torch's DataLoader")
    parser.add_argument("--stores", type=Path, help="keep the stores here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for dataset in arguments.datasets:
            for text in arguments.backends:
                backend = parse_backend(text)
                samples = (arguments.samples or DATASETS[dataset]) // SLOW.get(text, 1)
                spec = DatasetSpec(name=dataset, size=samples)
                store = ensure_store(spec, backend, arguments.stores or Path(temporary))
                if arguments.public:
                    report_public(store.path, samples, arguments.rounds)
                    continue
                job = LoadJob(store=store.path, backend=backend)
                report(f"{dataset}, {text}", samples, measure(job, samples, arguments.rounds))


if __name__ == "__main__":
    main()
