"""Each reader's shuffled warm batch rate as a share of one thread's copying in the same round.

Every round measures the ceiling, the fastest gather of one thread (`storebench.probes.rates`), and then each reader
on the same shuffled batches. The yardstick, numpy's default mode, copies twice: floors are given as shares of it.
Every way has one thread: two that share a batch of 200 KB wait for each other as soon as anything else runs on the
machine.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.ratios import ratio_words
from storebench.analysis.comparison import compare
from storebench.codecs import get_codec
from storebench.datasets.base import DatasetSpec
from storebench.formats.base import Batch, Indices, Reader
from storebench.formats.registry import PEERS, format_names, get_format, parse_backend
from storebench.probes.page_cache import warm
from storebench.probes.rates import WAYS, YARDSTICK, gather_rate
from storebench.record.manifest import Manifest
from storebench.stores.convert import BuildOptions, ensure_store

ALSO = ("files+raw",)
WARM_UP_S = 5.0

FLOORS: dict[str, dict[str, float]] = {
    "imagenet": {"memory:native": 1, "lmdb": 0.8, "hdf5": 0.5, "leveldb": 0.5, "png": 0.01},
    "cifar10": {"memory:native": 0.95, "lmdb": 0.17, "hdf5": 0.03, "leveldb": 0.12, "png": 0.004},
}
"""Share of the yardstick that plain loops over each library reach."""

Fill = Callable[[Indices, Batch], object]


@dataclass(frozen=True, kw_only=True)
class Round:
    """Samples per second of a reader, and of both kinds of gathering right before it."""

    rate: float
    yardstick: float
    ceiling: float


def main() -> int:
    """Measure, print a table per data set, and return 1 where a reader is below its floor."""
    args = _arguments()
    torch.set_num_threads(1)
    below = []
    for name in args.dataset:
        spec = DatasetSpec(name=name, size=args.size or {"imagenet": 4000, "cifar10": 50_000}[name])
        below += report(spec, measure(spec, args.backend or default_backends(), args))
    for words in below:
        print(f"below its floor: {words}", file=sys.stderr)
    return int(bool(below))


def default_backends() -> list[str]:
    """Return every reader of this disk of every format that stores something, with the format's default codec."""
    names = []
    for name in (name for name in format_names() if name not in PEERS):  # these have benchmarks/peers.py
        found = get_format(name)
        if found.info.borrows is None:
            here = [reader for reader, info in found.readers().items() if not info.traits.remote]
            names += [f"{name}+{found.info.default_codec}:{reader}" for reader in here]
    return list(dict.fromkeys(str(parse_backend(name)) for name in [*names, *ALSO]))


def measure(spec: DatasetSpec, backends: list[str], args: argparse.Namespace) -> dict[str, list[Round]]:
    """Interleave gathering and all readers; return the rounds of each of them."""
    pixels = _store(spec, "memory+raw", args.stores)
    array = np.load(pixels / "data.npy")
    rng, size = np.random.default_rng(0), args.batch_size

    def shuffled() -> list[Indices]:
        order = rng.permutation(len(array))[: len(array) // size * size]
        return list(order.reshape(-1, size))

    out = np.zeros((args.batch_size, *array.shape[1:]), dtype=np.uint8)
    fastest = gather_rate(array.shape[1:], args.batch_size, count=len(array)).copy_method
    yardstick, ceiling = (partial(WAYS[name], array) for name in (YARDSTICK, fastest))
    with contextlib.ExitStack() as stack:
        readers = {name: stack.enter_context(_opened(spec, name, args.stores)) for name in backends}
        for reader in readers.values():
            _warm_up(reader, shuffled(), out, array)
        rounds: dict[str, list[Round]] = {name: [] for name in readers}
        for _ in range(args.rounds):
            batches = shuffled()
            for name, reader in readers.items():
                reader.plan(batches)
                # Right before each reader, so that whatever else the machine does hits all three.
                rates = [
                    _rate(way, batches, out, args.seconds) for way in (yardstick, ceiling, _filler(reader))
                ]
                rounds[name].append(Round(yardstick=rates[0], ceiling=rates[1], rate=rates[2]))
    return rounds


def _opened(spec: DatasetSpec, name: str, stores: Path) -> Reader:
    backend = parse_backend(name)
    store = _store(spec, name, stores)
    # Pages that a writer left in the cache are slower to copy from than those of a file that was read.
    warm(get_format(backend.format).data_files(store), anew=True)
    return get_format(backend.format).reader(
        store, Manifest.read(store), backend.reader, dict(backend.options)
    )


def _warm_up(reader: Reader, batches: list[Indices], out: Batch, array: Batch) -> None:
    """Read an epoch before the clock runs: every page in the page cache, and in the reader's mapping."""
    warm(get_format(reader.manifest.format).data_files(reader.store))
    way = _filler(reader)
    way(batches[0], out)
    if get_codec(reader.manifest.codec).lossless and not np.array_equal(out, array[batches[0]]):
        raise SystemExit(f"{reader.store}: served other pixels than the dataset's")
    reader.plan(batches)
    _rate(way, batches, out, WARM_UP_S)


def _store(spec: DatasetSpec, name: str, stores: Path) -> Path:
    options = BuildOptions(say=lambda line: print(line, file=sys.stderr))
    return ensure_store(spec, parse_backend(name), stores, options=options).path


def _filler(reader: Reader) -> Fill:
    if reader.payload_codec == "raw":
        return reader.fetch_into
    codec = get_codec(reader.payload_codec)

    def fetch_and_decode(indices: Indices, out: Batch) -> None:
        for payload, image in zip(reader.fetch(indices), out, strict=True):
            codec.decode_into(payload, image)

    return fetch_and_decode


def _rate(fill: Fill, batches: list[Indices], out: Batch, seconds: float) -> float:
    """Return samples/s over the epoch, or over the batches that `seconds` sufficed for."""
    samples = 0
    took_s = 0.0
    started = time.perf_counter()
    for indices in batches:
        fill(indices, out)
        samples += len(indices)
        took_s = time.perf_counter() - started
        if took_s > seconds:
            break
    return samples / took_s


def report(spec: DatasetSpec, rounds: dict[str, list[Round]]) -> list[str]:
    """Print a table; return the readers whose whole interval lies below their floor."""
    print(f"\n{spec.name}, {spec.size:,} samples, shuffled, warm")
    print(f"{'':22} {'samples/s':>12} {'of numpy.take':>22} {'floor':>7} {'of one copying thread':>22}")
    below = []
    for name, each in rounds.items():
        rates = [measured.rate for measured in each]
        of_yardstick = compare([measured.yardstick for measured in each], rates)
        of_ceiling = compare([measured.ceiling for measured in each], rates)
        floor = FLOORS[spec.name].get(name)
        print(
            f"{name:22} {median(rates):12,.0f} {ratio_words(of_yardstick):>22}"
            f" {'' if floor is None else f'{floor:g}':>7} {ratio_words(of_ceiling):>22}",
            flush=True,
        )
        if floor is not None and of_yardstick.high is not None and of_yardstick.high < floor:
            below.append(f"{name} on {spec.name}")
    return below


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backend", nargs="*", help="all readers, if none is named")
    parser.add_argument("--dataset", action="append", choices=list(FLOORS), help="both, if none is named")
    parser.add_argument("--size", type=int, help="samples; 4,000 and 50,000 by default")
    parser.add_argument("--stores", type=Path, default=Path(os.environ.get("STOREBENCH_STORES", "stores")))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.1, help="at most, a reader and round")
    args = parser.parse_args()
    args.dataset = args.dataset or list(FLOORS)
    return args


if __name__ == "__main__":
    raise SystemExit(main())
