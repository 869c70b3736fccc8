"""Each reader of another project's format against the loop that its authors recommend, and against LMDB.

The three take turns on one store in one process, from the page cache. They hand over bytes (raw: a batch of pixels);
nothing is decoded. The order is shuffled, or the format's own, which is no fair match for a shuffled one. A reader
should be at least 0.9 times as fast as the recommended loop.
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
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.ratios import ratio_words
from benchmarks.recommended_loops import LOOPS, STREAMS
from storebench.analysis.comparison import Ratio, compare
from storebench.datasets.base import DatasetSpec
from storebench.formats.base import Indices, Reader
from storebench.formats.reader import Seed
from storebench.formats.registry import get_format, is_installed, open_reader, parse_backend
from storebench.probes.page_cache import warm
from storebench.stores.convert import BuildOptions, ensure_store

ASKED = 0.9
SIZES = {
    ("cifar10", "raw"): 10_000,
    ("cifar10", "jpeg"): 10_000,
    ("imagenet", "raw"): 500,
    ("imagenet", "jpeg"): 1000,
}
BATCH = 64

Hand = Callable[[Indices], Any]
"""Return the samples of a batch."""

Served = Iterator[tuple[int, bool]]
"""Serve a batch per step: its samples, and whether a turn may end after it."""


def main() -> int:
    """Measure, print a table per data set and codec, and return 1 where a reader is slower than it should be."""
    args = _arguments()
    below = []
    for (dataset, codec), size in SIZES.items():
        if dataset not in args.dataset or codec not in args.codec:
            continue
        print(f"\n{dataset}, {args.size or size:,} samples, {codec}, one process")
        print(f"{'':17} {'order':>8} {'samples/s':>10} {'CPU us':>7} {'bytes':>6}", end="")
        print(f"{'of its own loop':>21} {'of LMDB':>23}")
        for name in args.backend or [*LOOPS, *STREAMS]:
            if not is_installed(name.partition(":")[0]):
                print(f"{name:17} not installed")
                continue
            # A process of its own: no library's caches or threads reach the next.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                cells, loop = pool.submit(measure, name, dataset, codec, args).result()
            print(f"{name:17} {cells}", flush=True)
            if loop.high is not None and loop.high < ASKED:
                below.append(f"{name} on {dataset}, {codec}")
    for words in below:
        print(f"below {ASKED:g} of the recommended loop: {words}", file=sys.stderr)
    return int(bool(below))


def measure(name: str, dataset: str, codec: str, args: argparse.Namespace) -> tuple[str, Ratio]:
    """Let the reader, the recommended loop and LMDB take turns; return cells, and the ratio to the loop."""
    with contextlib.ExitStack() as stack:
        ours, lmdb = map(stack.enter_context, _readers(name, dataset, codec, args))
        warm([*_files(ours), *_files(lmdb)], anew=True)
        sides = [_ours(ours, streams=name in STREAMS), _library(name, ours), _ours(lmdb)]
        turns = [[_turn(side, args.seconds) for side in sides] for _ in range(args.rounds + 1)][1:]
        rates = [[rate for rate, _ in column] for column in zip(*turns, strict=True)]
        loop, other = compare(rates[1], rates[0]), compare(rates[2], rates[0])
        cpu_us = median(cpu_us for (_, cpu_us), *_ in turns)
        payloads = sum(map(len, lmdb.fetch(np.arange(len(lmdb)))))
        size = sum(path.stat().st_size for path in _files(ours)) / payloads
        order = "own" if name in STREAMS else "shuffled"
        cells = f"{order:>8} {median(rates[0]):10,.0f} {cpu_us:7.1f} {size:6.2f}"
        return f"{cells}{ratio_words(loop):>21} {ratio_words(other, 3):>23}", loop


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
        raw = reader.payload_codec == "raw"
        return functools.partial(reader.fetch_into, out=out) if raw else reader.fetch

    return _served(reader, begin, streams=streams)


def _library(name: str, reader: Reader) -> Served:
    """Serve epochs through the library's loop, with raw pixels collated into a batch."""

    def collated(rows: Any) -> Any:
        if reader.payload_codec != "raw" or isinstance(rows, np.ndarray):
            return rows
        return np.stack([np.frombuffer(row, np.uint8) for row in rows])

    loop: Any = (STREAMS.get(name) or LOOPS[name])(reader.store)

    def begin(*_: Any) -> Hand:
        if name in STREAMS:
            stream = loop()
            return lambda indices: collated(list(itertools.islice(stream, len(indices))))
        return lambda indices: collated(loop(indices.tolist()))

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
