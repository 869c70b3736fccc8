"""What the harness adds to a warm batch: crop and mirror, and every microsecond beside fetching and decoding.

One thread, no workers, nothing computed. Two tables for each size of images:

1. Crop, mirror, and both, of one batch of whole images, in processor time, over that of the crop alone.
2. Where the time of a batch goes, for every backend: fetch, decode, prep, and everything else up to the next batch. A
   rate is given as a share of ``numpy.take`` from one array in memory, which is measured right before each backend.

The exit code is 1 if an interval lies entirely on the wrong side of a figure that is asked for.
"""

import argparse
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.readers import default_backends
from benchmarks.runs import claim_line, ratio_words
from storebench.analysis.comparison import compare
from storebench.datasets.base import DatasetSpec
from storebench.formats.base import Batch as Pixels
from storebench.formats.base import Indices
from storebench.formats.registry import get_format, parse_backend
from storebench.loading.augment import Augment
from storebench.loading.batch import EpochPlan, LoadJob
from storebench.loading.loader import BatchLoader, get_loader
from storebench.loading.order import epoch_order, split_batches
from storebench.probes.page_cache import warm
from storebench.stores.convert import ensure_store
from storebench.system.kernel import load_kernel
from storebench.training.compute import NoStep
from storebench.training.loop import StepTimes, run_epoch

BATCH = 64
LEAST_CALL_S = 0.005
"""A way that is quicker is called again until so much time has passed."""

MOST_TIMES_THE_CROP = 3.0
LEAST_OF_TAKE = 0.6

Way = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One size of images: the dataset, how many samples, and the side of the crop."""

    dataset: str
    samples: int
    crop: int


CASES = (Case(dataset="imagenet", samples=1000, crop=227), Case(dataset="cifar10", samples=50_000, crop=28))

PARTS = ("fetch", "decode", "prep", "loop")


@dataclass(frozen=True, kw_only=True)
class Round:
    """One backend in one round: microseconds per batch of each part, and rates in samples per second."""

    parts: Mapping[str, float]
    rate: float
    yardstick: float


def main() -> int:
    """Measure, print the tables, and return 1 if something asked for is missed."""
    arguments = _arguments()
    torch.set_num_threads(1)
    if load_kernel() is None:
        print("All of this is without the compiled kernel: run make setup where there is a C compiler.")
    lines: list[str] = []
    for case in CASES:
        if case.dataset in arguments.dataset:
            lines += measure(case, arguments)
    print("\nAsked for:\n" + "\n".join(lines))
    return int(any(line.endswith("missed") for line in lines))


def measure(case: Case, arguments: argparse.Namespace) -> list[str]:
    """Print the three tables of one size of images, and return what is claimed of it."""
    spec = DatasetSpec(name=case.dataset, size=arguments.size or case.samples)
    store = ensure_store(spec, parse_backend("memory+raw"), arguments.stores)
    array: Pixels = np.load(store.path / "data.npy")
    print(f"\n{case.dataset}: images of {array.shape[1:]}, batches of {BATCH}, crop {case.crop}")
    claims = [_prep(array, case, arguments.rounds)]
    backends = arguments.backend or default_backends()
    crops = np.ascontiguousarray(array[:, : case.crop, : case.crop])
    both = Augment(crop=case.crop, mirror=True)
    for augment, whole, words in ((both, crops, "crop and mirror"), (Augment(), array, "reader alone")):
        rounds = account(spec, backends, augment, whole, arguments)
        _print_account(rounds, words)
        if not augment.identity:
            claims += [
                claim_line(
                    f"{case.dataset}, {name} with crop and mirror, of numpy.take of the crops",
                    [measured.rate for measured in each],
                    [[measured.yardstick for measured in each]],
                    LEAST_OF_TAKE if name == "lmdb:direct" else None,
                )
                for name, each in rounds.items()
                if name in ("lmdb:direct", "memory:native", "lmdb")
            ]
    return claims


def _prep(array: Pixels, case: Case, rounds: int) -> str:
    """Print what each way of preparing one batch takes; return the claim about crop and mirror."""
    ways = prep_ways(array[:BATCH].copy(), case.crop)
    times = interleaved(ways, rounds)
    others = [name for name in times if name != "crop"]
    print(f"\n  {'one batch':40} {'us':>9}   {'times the crop':>20}")
    print(f"  {'crop':40} {median(times['crop']):9.1f}")
    for name in others:
        found = compare(times["crop"], times[name])
        print(f"  {name:40} {median(times[name]):9.1f}   {ratio_words(found):>20}")
    return claim_line(
        f"{case.dataset}, rate of crop and mirror over that of the crop alone",
        [1 / one for one in times["crop and mirror"]],
        [[1 / one for one in times["crop"]]],
        1 / MOST_TIMES_THE_CROP,
    )


def prep_ways(images: Pixels, crop: int) -> dict[str, Callable[[], Pixels]]:
    """Return the ways to prepare a batch of whole images; each overwrites its last batch. "crop" comes first."""
    indices = np.arange(len(images), dtype=np.int64)
    shuffled = np.random.default_rng(0).permutation(indices)
    crops = np.ascontiguousarray(images[:, :crop, :crop])
    part, whole = np.zeros_like(crops), np.zeros_like(images)
    cut, flip = Augment(crop=crop), Augment(mirror=True)
    both = Augment(crop=crop, mirror=True)

    def apply(augment: Augment, out: Pixels) -> Pixels:
        augment.apply(images, indices, out, seed=0, epoch=0)
        return out

    def flipped() -> Pixels:
        both.apply_without_kernel(images, indices, part, seed=0, epoch=0)
        return part

    def sliced() -> Pixels:
        windows = both.windows(indices, images.shape[1:], seed=0, epoch=0)
        for image, (top, left, mirrored), row in zip(images, windows.places.tolist(), part, strict=True):
            window = image[top : top + crop, left : left + crop]
            row[...] = window[:, ::-1] if mirrored else window
        return part

    return {
        "crop": partial(apply, cut, part),
        "mirror (whole images)": partial(apply, flip, whole),
        "crop and mirror": partial(apply, both, part),
        "crop and mirror, torch.flip per image": flipped,
        "crop and mirror, numpy slices": sliced,
        "numpy.take of crops": partial(np.take, crops, shuffled, axis=0, out=part),
        "numpy.take of crops, mode='clip'": partial(np.take, crops, shuffled, axis=0, out=part, mode="clip"),
    }


def interleaved(ways: Mapping[str, Way], rounds: int) -> dict[str, list[float]]:
    """Return the microseconds per call of each way in each round; the ways take turns in another order each time."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for number in range(rounds):
        for name in np.random.default_rng(number).permutation(list(ways)).tolist():
            calls, took_s, started = 0, 0.0, time.thread_time()
            while took_s < LEAST_CALL_S:
                ways[name]()
                calls += 1
                took_s = time.thread_time() - started
            times[name].append(1e6 * took_s / calls)
    return times


def account(
    spec: DatasetSpec, backends: Sequence[str], augment: Augment, array: Pixels, arguments: argparse.Namespace
) -> dict[str, list[Round]]:
    """Return the rounds of each backend; before each of its epochs, batches are gathered from `array` by numpy.take."""
    with contextlib.ExitStack() as stack:
        loaders: dict[str, BatchLoader] = {}
        for name in backends:
            backend = parse_backend(name)
            store = ensure_store(spec, backend, arguments.stores).path
            warm(get_format(backend.format).data_files(store), anew=True)
            job = LoadJob(store=store, backend=backend, augment=augment, batch_size=BATCH, threads=1)
            loaders[name] = stack.enter_context(get_loader("processes")(job, workers=0))
            loaders[name].open()
        lengths = {
            name: _batches_in(loader, len(array), arguments.seconds) for name, loader in loaders.items()
        }
        rounds: dict[str, list[Round]] = {name: [] for name in loaders}
        for number in range(arguments.rounds):
            plan = _plan(len(array), epoch=number)
            for place in np.random.default_rng(number).permutation(len(backends)).tolist():
                name = list(loaders)[place]
                rounds[name].append(_round(loaders[name], plan.batches[: lengths[name]], number, array))
    return rounds


def _plan(count: int, epoch: int) -> EpochPlan:
    batches = split_batches(epoch_order(count, seed=0, epoch=epoch), BATCH)
    return EpochPlan(epoch=epoch, batches=[batch for batch in batches if len(batch) == BATCH])


def _batches_in(loader: BatchLoader, count: int, seconds: float) -> int:
    """Return the number of batches that fit into `seconds`, at least 3; its epoch also maps every page."""
    plan = _plan(count, epoch=10_000)
    first = plan.batches[:3]
    run_epoch(loader.epoch(EpochPlan(epoch=0, batches=first)), NoStep())
    started = time.perf_counter()
    run_epoch(loader.epoch(EpochPlan(epoch=0, batches=first)), NoStep())
    per_batch_s = (time.perf_counter() - started) / len(first)
    if per_batch_s * len(plan.batches) < 20 * seconds:
        run_epoch(loader.epoch(plan), NoStep())
    return max(3, min(len(plan.batches), int(seconds / per_batch_s)))


def _round(loader: BatchLoader, batches: list[Indices], number: int, array: Pixels) -> Round:
    """Gather the same batches from `array`, then run them as an epoch."""
    out = np.zeros((BATCH, *array.shape[1:]), np.uint8)
    clock = [time.perf_counter()]
    for indices in batches:
        np.take(array, indices, axis=0, out=out)
        clock.append(time.perf_counter())
    yardstick = BATCH / float(np.mean(_middle_half(np.diff(clock).tolist())))
    times = run_epoch(loader.epoch(EpochPlan(epoch=number, batches=batches)), NoStep())
    parts = parts_of(times)
    return Round(parts=parts, rate=BATCH * 1e6 / sum(parts.values()), yardstick=yardstick)


def parts_of(times: Sequence[StepTimes]) -> dict[str, float]:
    """Return microseconds per batch of each part; the first step is left out, because it tells the reader the plan."""
    rows = []
    for step, following in itertools.pairwise(times[1:]):
        spans, total = step.spans, following.asked_ns - step.asked_ns
        known = (spans.fetch_ns, spans.decode_ns, spans.prep_ns)
        rows.append((total, *known, total - sum(known)))
    means = np.mean(_middle_half(rows), axis=0) / 1000
    return dict(zip(PARTS, means[1:].tolist(), strict=True))


def _middle_half(values: list[Any]) -> list[Any]:
    """Return the values but for the smallest and the largest quarter."""
    quarter = len(values) // 4
    return sorted(values)[quarter : len(values) - quarter]


def _print_account(rounds: Mapping[str, Sequence[Round]], words: str) -> None:
    head = "".join(f"{part:>10}" for part in (*PARTS, "total"))
    print(f"\n  {words + ', us per batch':30}{head} {'samples/s':>12}   {'of numpy.take':>20}")
    for name, each in rounds.items():
        share = compare([one.yardstick for one in each], [one.rate for one in each])
        parts = [median(measured.parts[part] for measured in each) for part in PARTS]
        total = median(sum(measured.parts.values()) for measured in each)
        figures = "".join(f"{figure:10.1f}" for figure in (*parts, total))
        rate = median(measured.rate for measured in each)
        print(f"  {name:30}{figures} {rate:12,.0f}   {ratio_words(share):>20}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backend", nargs="*", help="all readers, if none is named")
    names = [case.dataset for case in CASES]
    parser.add_argument("--dataset", action="append", choices=names, help="both, if none is named")
    parser.add_argument("--size", type=int, help="samples; 1,000 and 50,000 by default")
    parser.add_argument("--stores", type=Path, default=Path(os.environ.get("STOREBENCH_STORES", "stores")))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.1, help="at most, per backend and round")
    arguments = parser.parse_args()
    arguments.dataset = arguments.dataset or names
    return arguments


if __name__ == "__main__":
    raise SystemExit(main())
