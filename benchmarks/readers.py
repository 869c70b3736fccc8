"""Each reader's shuffled warm batch rate as a share of one thread's copying in the same round.

``python -m benchmarks.readers``, or ``make bench-readers``. One
process, batches of 64, every page of the stores in the page cache. Every round
measures the ceiling and then each reader on the same shuffled batches; a share is the
ratio of the two in one round, and its interval is Student's t on the logarithms.
The ceiling is the fastest gather of one thread (`storebench.probes.rates`). The
yardstick, numpy's default mode, copies twice: floors are given as shares of it. Encoded
payloads are decoded. Every way has one thread, torch's `index_select` too: numpy has
no more, and two threads that share a batch of 200 KB wait for each other as soon as
anything else runs on the machine.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from storebench.codecs import get_codec
from storebench.comparison import Ratio, compare
from storebench.datasets.base import DatasetSpec
from storebench.formats.base import Batch, Indices, Reader
from storebench.formats.registry import format_names, get_format, parse_backend
from storebench.manifest import Manifest
from storebench.probes.page_cache import warm
from storebench.probes.rates import WAYS, YARDSTICK, gather_rate
from storebench.stores.convert import BuildOptions, ensure_store

ALSO = ("files+raw",)
WARM_UP_S = 5.0

FLOORS: dict[str, dict[str, float]] = {
    "imagenet": {"memory:native": 100, "lmdb": 80, "hdf5": 50, "leveldb": 50, "png": 1},
    "cifar10": {"memory:native": 95, "lmdb": 17, "hdf5": 3, "leveldb": 12, "png": 0.4},
}
"""Percent of the yardstick that plain loops over each library reach."""

Fill = Callable[[Indices, Batch], object]

CEILING = "one copying thread"


@dataclass(frozen=True, kw_only=True)
class Round:
    """Samples per second of a reader, and of both kinds of gathering right before it."""

    rate: float
    yardstick: float
    ceiling: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One reader on one dataset; shares in percent."""

    dataset: str
    origin: str
    backend: str
    samples_per_s: float
    of_yardstick: tuple[float, float, float]
    of_ceiling: tuple[float, float, float]
    floor_pct: float | None

    @property
    def below_floor(self) -> bool:
        """Whether the whole interval lies below the floor."""
        return self.floor_pct is not None and self.of_yardstick[2] < self.floor_pct


def main() -> int:
    """Measure, print a table per data set, and return 1 where a reader is below its floor."""
    args = _arguments()
    torch.set_num_threads(1)
    rows = []
    for name in args.dataset:
        spec = DatasetSpec(name=name, size=args.size or {"imagenet": 4000, "cifar10": 50_000}[name])
        found = measure(spec, args.backend or default_backends(), args)
        if not args.json:
            print(table(found, spec), flush=True)
        rows += found
    text = json.dumps([asdict(row) for row in rows], indent=2)
    if args.json:
        print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    below = [row for row in rows if row.below_floor]
    for row in below:
        print(f"below its floor: {row.backend} on {row.dataset}", file=sys.stderr)
    return 1 if below and args.check else 0


def default_backends() -> list[str]:
    """Return every reader of every format that stores something, with the format's default codec."""
    names = []
    for name in format_names():
        found = get_format(name)
        if found.info.borrows is None:
            names += [f"{name}+{found.info.default_codec}:{reader}" for reader in found.readers()]
    return list(dict.fromkeys(str(parse_backend(name)) for name in [*names, *ALSO]))


def measure(spec: DatasetSpec, backends: list[str], args: argparse.Namespace) -> list[Row]:
    """Interleave gathering and all readers; return a row for each of them."""
    pixels = _store(spec, "memory+raw", args.stores)
    array = np.load(pixels / "data.npy")
    shuffled = _shuffled(len(array), args.batch_size, np.random.default_rng(0))
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
    return _rows(spec, str(Manifest.read(pixels).dataset.provenance.origin), rounds)


def _opened(spec: DatasetSpec, name: str, stores: Path) -> Reader:
    backend = parse_backend(name)
    store = _store(spec, name, stores)
    # Pages that a writer left in the cache are slower to copy from than those of a file that was read; none is mapped yet.
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


def _shuffled(count: int, size: int, rng: np.random.Generator) -> Callable[[], list[Indices]]:
    def shuffled() -> list[Indices]:
        order = rng.permutation(count)[: count // size * size]
        return list(order.reshape(-1, size))

    return shuffled


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


def _rows(spec: DatasetSpec, origin: str, rounds: dict[str, list[Round]]) -> list[Row]:
    shares: dict[str, dict[str, tuple[float, float, float]]] = {"yardstick": {}, "ceiling": {}}
    for base, found in shares.items():
        pairs = [
            ([getattr(measured, base) for measured in each], [measured.rate for measured in each])
            for each in rounds.values()
        ]
        found |= {name: _percent(compare(*pair)) for name, pair in zip(rounds, pairs, strict=True)}
    ceiling = Row(
        dataset=spec.name,
        origin=origin,
        backend=CEILING,
        samples_per_s=round(median(measured.ceiling for each in rounds.values() for measured in each)),
        of_yardstick=_percent(
            compare(
                [measured.yardstick for each in rounds.values() for measured in each],
                [measured.ceiling for each in rounds.values() for measured in each],
            )
        ),
        of_ceiling=(100.0, 100.0, 100.0),
        floor_pct=None,
    )
    return [ceiling] + [
        Row(
            dataset=spec.name,
            origin=origin,
            backend=name,
            samples_per_s=round(median(measured.rate for measured in each)),
            of_yardstick=shares["yardstick"][name],
            of_ceiling=shares["ceiling"][name],
            floor_pct=FLOORS[spec.name].get(name),
        )
        for name, each in rounds.items()
    ]


def _percent(found: Ratio) -> tuple[float, float, float]:
    ratio = found.mid or 0.0
    low, high = (ratio if end is None else end for end in (found.low, found.high))
    return round(100 * ratio, 2), round(100 * low, 2), round(100 * high, 2)


def table(rows: list[Row], spec: DatasetSpec) -> str:
    """Return the rows as a table for a person."""
    lines = [
        "",
        f"{spec.name}, {spec.size:,} samples ({rows[0].origin}), shuffled, warm",
        f"{'':22} {'samples/s':>12} {'of numpy.take':>24} {'floor':>7} {'of one copying thread':>24}",
    ]
    for row in rows:
        floor = "" if row.floor_pct is None else f"{row.floor_pct:g}%"
        sign = " below" if row.below_floor else ""
        lines.append(
            f"{row.backend:22} {row.samples_per_s:12,.0f} {_words(row.of_yardstick):>24} {floor:>7} "
            f"{_words(row.of_ceiling):>24}{sign}".rstrip()
        )
    return "\n".join(lines)


def _words(share: tuple[float, float, float]) -> str:
    return f"{share[0]:.1f}% [{share[1]:.1f}, {share[2]:.1f}]"


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
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--out", type=Path, help="write the JSON there, too")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a floor is not reached")
    args = parser.parse_args()
    args.dataset = args.dataset or list(FLOORS)
    return args


if __name__ == "__main__":
    raise SystemExit(main())
