"""Each reader of another project's format against the loop that its authors recommend, on the same store, and against LMDB.

The three take turns in one process, from the page cache; then storebench's reader and LMDB take turns with memory for
half of their store. They hand over bytes (raw: a batch of pixels); nothing is decoded. The order is shuffled, or the
format's own, which is no fair match for a shuffled one. A reader should be at least 0.9 times as fast as the recommended loop.
"""

import argparse
import contextlib
import functools
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np

from benchmarks.recommended_loops import LOOPS, STREAMS
from benchmarks.runs import ratio_words
from storebench.comparison import Ratio, compare
from storebench.datasets.base import DatasetSpec
from storebench.formats.base import Indices, Reader
from storebench.formats.reader import Seed
from storebench.formats.registry import get_format, is_installed, open_reader, parse_backend
from storebench.probes.cgroup import LimitedCache, memory_group
from storebench.probes.page_cache import warm
from storebench.results import CacheVerdict
from storebench.stores.convert import BuildOptions, ensure_store

T = TypeVar("T")

ASKED = 0.9
SIZES = {
    ("cifar10", "raw"): 10_000,
    ("cifar10", "jpeg"): 10_000,
    ("imagenet", "raw"): 500,
    ("imagenet", "jpeg"): 1000,
}
BATCH = 64
LEAST_LIMIT = 8 << 20
"""Memory that the readers themselves need."""

Hand = Callable[[Indices], Any]
"""Return the samples of a batch."""

Served = Iterator[tuple[int, bool]]
"""Serve a batch per step: its samples, and whether a turn may end after it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The comparisons of one reader."""

    rate: float
    cpu_us: float
    size: float
    loop: Ratio
    warm: Ratio


def main() -> int:
    """Measure, print a table per data set and codec, and return 1 where a reader is slower than it should be."""
    args = _arguments()
    below = []
    for (dataset, codec), size in SIZES.items():
        if dataset not in args.dataset or codec not in args.codec:
            continue
        print(f"\n{dataset}, {args.size or size:,} samples, {codec}, one process")
        print(f"{'':17} {'order':>8} {'samples/s':>10} {'CPU us':>7} {'bytes':>6}", end="")
        print(f"{'of its own loop':>21} {'of LMDB, warm':>23} {'of LMDB, limited':>23}")
        for name in args.backend or [*LOOPS, *STREAMS]:
            if not is_installed(name.partition(":")[0]):
                print(f"{name:17} not installed")
                continue
            row = in_new_process(measure, name, dataset, codec, args)
            if row is None:
                raise SystemExit(f"{name}: the process that measured was killed")
            limited = in_new_process(measure_limited, name, dataset, codec, args)
            order = "own" if name in STREAMS else "shuffled"
            print(f"{name:17} {order:>8} {row.rate:10,.0f} {row.cpu_us:7.1f} {row.size:6.2f}", end="")
            print(f"{ratio_words(row.loop):>21} {ratio_words(row.warm, 3):>23}", end="")
            print(f" {ratio_words(limited, 3) if limited else 'needs more memory':>23}", flush=True)
            if row.loop.high is not None and row.loop.high < ASKED:
                below.append(f"{name} on {dataset}, {codec}")
    for words in below:
        print(f"below {ASKED:g} of the recommended loop: {words}", file=sys.stderr)
    return int(bool(below))


def in_new_process(work: Callable[..., T], *arguments: Any) -> T | None:
    """Return what a function returns in a process without caches; None if the process is killed."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(work, *arguments).result()
        except BrokenProcessPool:
            return None


def measure(name: str, dataset: str, codec: str, args: argparse.Namespace) -> Row:
    """Let the reader, the recommended loop and LMDB take turns, with everything in memory."""
    with contextlib.ExitStack() as stack:
        ours, lmdb = map(stack.enter_context, _readers(name, dataset, codec, args))
        warm([*_files(ours), *_files(lmdb)], anew=True)
        sides = [_ours(ours, streams=name in STREAMS), _library(name, ours), _ours(lmdb)]
        turns = [[_turn(side, args.seconds) for side in sides] for _ in range(args.rounds + 1)][1:]
        rates = [[rate for rate, _ in column] for column in zip(*turns, strict=True)]
        return Row(
            rate=median(rates[0]),
            cpu_us=median(cpu_us for (_, cpu_us), *_ in turns),
            size=_bytes(ours) / sum(map(len, lmdb.fetch(np.arange(len(lmdb))))),
            loop=compare(rates[1], rates[0]),
            warm=compare(rates[2], rates[0]),
        )


def measure_limited(name: str, dataset: str, codec: str, args: argparse.Namespace) -> Ratio:
    """Compare with LMDB, each with memory for half of its store; the pages of one stay while the other reads."""
    rates: list[list[float]] = [[], []]
    with contextlib.ExitStack() as stack:
        sides: list[tuple[LimitedCache, Served]] = []
        for reader in _readers(name, dataset, codec, args):
            stack.enter_context(reader)
            limit = max(LEAST_LIMIT, _bytes(reader) // 2)
            cache = LimitedCache(stack.enter_context(memory_group(limit)), limit, _files(reader))
            if cache.prepare([os.getpid()]).verdict is CacheVerdict.FAILED:
                return Ratio(mid=None, rounds=0)
            cache.leave()
            sides.append((cache, _ours(reader, streams=name in STREAMS and not sides)))
        for _ in range(args.rounds + 1):
            for column, (cache, served) in zip(rates, sides, strict=True):
                cache.group.enter([os.getpid()])
                try:
                    column.append(_turn(served, args.seconds)[0])
                finally:
                    cache.leave()
    return compare(rates[1][1:], rates[0][1:])


def _turn(served: Served, seconds: float) -> tuple[float, float]:
    """Return samples per second and microseconds of the processor per sample of a turn."""
    samples, start, cpu = 0, time.perf_counter(), time.process_time()
    for count, may_end in served:
        samples += count
        if may_end and time.perf_counter() - start >= seconds:
            break
    return samples / (time.perf_counter() - start), 1e6 * (time.process_time() - cpu) / samples


def _readers(name: str, dataset: str, codec: str, args: argparse.Namespace) -> Iterator[Reader]:
    """Open the format's store and LMDB's, made where they are missing."""
    container, _, reader = name.partition(":")
    for backend in (f"{container}+{codec}{reader and ':'}{reader}", f"lmdb+{codec}"):
        spec = DatasetSpec(name=dataset, size=args.size or SIZES[dataset, codec])
        options = BuildOptions(say=lambda _: None)
        store = ensure_store(spec, parse_backend(backend), args.stores, options=options).path
        yield open_reader(store, parse_backend(backend).reader)


def _bytes(reader: Reader) -> int:
    return sum(path.stat().st_size for path in _files(reader))


def _files(reader: Reader) -> list[Path]:
    return list(get_format(reader.manifest.format).data_files(reader.store))


def _served(reader: Reader, begin: Callable[[list[Indices], Seed], Hand], *, streams: bool) -> Served:
    """Serve epochs in turn; a stream's turn ends with its epoch, because its buffer fills first and empties last."""
    for epoch in itertools.count():
        if streams:
            order = type(reader).native_order(reader.store, reader.manifest, reader.options, (epoch,))
        else:
            order = np.random.default_rng(epoch).permutation(len(reader))
        batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
        hand = begin(batches, (epoch,))
        for number, indices in enumerate(batches, 1):
            hand(indices)
            yield len(indices), not streams or number == len(batches)


def _ours(reader: Reader, *, streams: bool = False) -> Served:
    out = np.empty((BATCH, *reader.image_shape), np.uint8)

    def begin(batches: list[Indices], seed: Seed) -> Hand:
        reader.plan(batches, seed if streams else None)
        return (
            functools.partial(reader.fetch_into, out=out) if reader.payload_codec == "raw" else reader.fetch
        )

    return _served(reader, begin, streams=streams)


def _library(name: str, reader: Reader) -> Served:
    """Serve epochs through the library's loop, with raw pixels collated into a batch."""

    def collated(rows: Any) -> Any:
        if reader.payload_codec != "raw" or isinstance(rows, np.ndarray):
            return rows
        return np.stack([np.frombuffer(row, np.uint8) for row in rows])

    def begin(*_: Any) -> Hand:
        if name in STREAMS:
            stream = STREAMS[name](reader.store)()
            return lambda indices: collated(list(itertools.islice(stream, len(indices))))
        return lambda indices: collated(loop(indices.tolist()))

    loop: Any = None if name in STREAMS else LOOPS[name](reader.store)
    return _served(reader, begin, streams=name in STREAMS)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backend", nargs="*", help=f"all, if none is named: {', '.join([*LOOPS, *STREAMS])}")
    for index, name in enumerate(("dataset", "codec")):
        values = sorted({key[index] for key in SIZES})
        parser.add_argument(f"--{name}", nargs="+", choices=values, default=values)
    parser.add_argument(
        "--size", type=int, help="samples; 10,000 of CIFAR-10, 500 or 1,000 of ImageNet by default"
    )
    parser.add_argument("--stores", type=Path, default=Path(os.environ.get("STOREBENCH_STORES", "stores")))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn, at least")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
