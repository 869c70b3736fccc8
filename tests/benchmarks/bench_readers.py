"""Each reader's shuffled warm batch rate as a share of the gather rate of the same run.

``python -m tests.benchmarks.bench_readers``, or ``make bench-readers``. One
process, batches of 64, every page of the stores in the page cache. The gather
rate is ``numpy.take(array, indices, axis=0, out=batch)``. Every round gathers
shuffled batches and then reads the same ones, for each reader in turn; a share
is the median over the rounds of rate over gather rate. Encoded payloads are decoded.
"numpy's clip mode" gathers without the second copy that ``take`` makes to check
its indices: it is the ceiling of one thread's copying. Every way has one thread,
torch's `index_select` too: numpy has no more, and two threads that share a batch
of 200 KB wait for each other as soon as anything else runs on the machine.
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
from typing import Literal

import numpy as np
import torch

from storebench.codecs import get_codec
from storebench.convert import How, ensure_store
from storebench.datasets.base import DatasetSpec
from storebench.formats.base import Batch, Indices, Reader
from storebench.formats.registry import format_names, get_format, parse_backend
from storebench.manifest import Manifest
from storebench.probes.page_cache import warm

GATHER = "numpy.take"
CEILING = "numpy's clip mode"
ALSO = ("files+raw",)
WARM_UP_S = 5.0

FLOORS = {
    "imagenet": {"memory:native": 100, "lmdb": 80, "hdf5": 50, "leveldb": 50, "png": 1},
    "cifar10": {"memory:native": 95, "lmdb": 17, "hdf5": 3, "leveldb": 12, "png": 0.4},
}
"""Percent of the gather rate that plain loops over each library reach."""

Fill = Callable[[Indices, Batch], object]

Rates = tuple[float, float]
"""Samples/s of a way, and of gathering right before it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One reader on one dataset: medians over the rounds, and the floor where there is one, in percent."""

    dataset: str
    origin: str
    backend: str
    samples_per_s: float
    of_gather_pct: float
    of_ceiling_pct: float
    floor_pct: float | None


def main() -> int:
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
    below = [row for row in rows if row.floor_pct is not None and row.of_gather_pct < row.floor_pct]
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
    gather: Fill = partial(_gather, array, "raise")
    with contextlib.ExitStack() as stack:
        readers = {name: stack.enter_context(_opened(spec, name, args.stores)) for name in backends}
        for reader in readers.values():
            _warm_up(reader, shuffled(), out, array)
        ways: dict[str, Fill] = {CEILING: partial(_gather, array, "clip")}
        ways |= {name: _filler(reader) for name, reader in readers.items()}
        rates: dict[str, list[Rates]] = {name: [] for name in ways}
        for _ in range(args.rounds):
            batches = shuffled()
            for name, way in ways.items():
                if name in readers:
                    readers[name].plan(batches)
                # Right before each reader, so that whatever else the machine does hits both.
                gathered = _rate(gather, batches, out, args.seconds)
                rates[name].append((_rate(way, batches, out, args.seconds), gathered))
    return _rows(spec, str(Manifest.read(pixels).dataset.provenance.origin), rates)


def _gather(array: Batch, mode: Literal["raise", "clip"], indices: Indices, out: Batch) -> None:
    np.take(array, indices, axis=0, out=out, mode=mode)


def _opened(spec: DatasetSpec, name: str, stores: Path) -> Reader:
    backend = parse_backend(name)
    store = _store(spec, name, stores)
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
    how = How(say=lambda line: print(line, file=sys.stderr))
    return ensure_store(spec, parse_backend(name), stores, how=how).path


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


def _rows(spec: DatasetSpec, origin: str, rates: dict[str, list[Rates]]) -> list[Row]:
    of_gather = {
        name: 100 * median(one / gathered for one, gathered in pairs) for name, pairs in rates.items()
    }
    gather = Row(
        dataset=spec.name,
        origin=origin,
        backend=GATHER,
        samples_per_s=round(median(gathered for pairs in rates.values() for _, gathered in pairs)),
        of_gather_pct=100.0,
        of_ceiling_pct=round(10_000 / of_gather[CEILING], 2),
        floor_pct=None,
    )
    return [gather] + [
        Row(
            dataset=spec.name,
            origin=origin,
            backend=name,
            samples_per_s=round(median(one for one, _ in pairs)),
            of_gather_pct=round(of_gather[name], 2),
            of_ceiling_pct=round(100 * of_gather[name] / of_gather[CEILING], 2),
            floor_pct=FLOORS[spec.name].get(name),
        )
        for name, pairs in rates.items()
    ]


def table(rows: list[Row], spec: DatasetSpec) -> str:
    """Return the rows as a table for a person."""
    lines = [
        "",
        f"{spec.name}, {spec.size:,} samples ({rows[0].origin}), shuffled, warm",
        f"{'':22} {'samples/s':>12} {'of gather':>10} {'floor':>7} {'of ceiling':>11}",
    ]
    for row in rows:
        floor = "" if row.floor_pct is None else f"{row.floor_pct:g}%"
        sign = " " if row.floor_pct is None or row.of_gather_pct >= row.floor_pct else " below"
        lines.append(
            f"{row.backend:22} {row.samples_per_s:12,.0f} {row.of_gather_pct:9.1f}% {floor:>7} "
            f"{row.of_ceiling_pct:10.1f}%{sign}".rstrip()
        )
    return "\n".join(lines)


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
