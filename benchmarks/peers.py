"""Each reader of another project's format against the loop that its authors recommend, on the same store.

Epochs of both sides take turns in one process, from the page cache; a third epoch reads the same images from LMDB. Every epoch
serves each sample once and hands over bytes (raw: a batch of pixels); nothing is decoded. A reader should be at least 0.9
times as fast as the recommended loop.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.runs import ratio_words
from storebench.comparison import compare
from storebench.datasets.base import DatasetSpec
from storebench.formats.base import Indices, Reader
from storebench.formats.peers.example import image_of
from storebench.formats.peers.tfrecord import records
from storebench.formats.registry import get_format, is_installed, parse_backend
from storebench.manifest import Manifest
from storebench.probes.page_cache import warm
from storebench.stores.convert import BuildOptions, ensure_store

ASKED = 0.9
SIZES = {"cifar10": 10_000, "imagenet": 2000}

Batch = Callable[[list[int]], Sequence[Any]]
"""Return the payloads of some samples, by a library's own call."""

Stream = Callable[[], Iterator[Any]]
"""Yield the payloads of an epoch in the library's own order."""


def npy(store: Path) -> Batch:
    """Index the mapped array."""
    data = np.load(store / "data.npy", mmap_mode="r")
    if data.ndim > 1:
        return lambda numbers: data[numbers]
    ends = np.load(store / "offsets.npy").tolist()
    return lambda numbers: [data[ends[number] : ends[number + 1]].tobytes() for number in numbers]


def sqlite(store: Path) -> Batch:
    """Select one row per query (docs.python.org, sqlite3)."""
    import sqlite3

    base = sqlite3.connect(store / "data.sqlite")
    return lambda numbers: [
        base.execute("SELECT image FROM samples WHERE id = ?", (number,)).fetchone()[0] for number in numbers
    ]


def safetensors(store: Path) -> Batch:
    """Slice a tensor of the open file (the README of safetensors)."""
    from safetensors import safe_open

    file: Any = safe_open(store / "data.safetensors", "np")
    images = file.get_slice("image")
    if len(images.get_shape()) > 1:
        return lambda numbers: [images[number] for number in numbers]
    ends = file.get_tensor("offset").tolist()
    return lambda numbers: [images[ends[number] : ends[number + 1]].tobytes() for number in numbers]


def arrow(store: Path) -> Batch:
    """Take rows of the mapped table (Arrow's cookbook)."""
    import pyarrow as pa

    table = pa.ipc.open_file(pa.memory_map(str(store / "data.arrow"))).read_all().select(["image"])
    return lambda numbers: table.take(numbers)["image"].to_pylist()


def parquet(store: Path) -> Batch:
    """Take rows of the data set (Arrow's cookbook)."""
    import pyarrow.dataset as pd

    data = pd.dataset(store / "data.parquet")
    return lambda numbers: data.take(numbers, columns=["image"])["image"].to_pylist()


def hf(store: Path) -> Batch:
    """Fetch a batch as a DataLoader does."""
    from datasets import load_from_disk

    data = load_from_disk(store / "dataset")
    raw = getattr(data.features["image"], "dtype", "") == "binary"
    return lambda numbers: [
        row["image"] if raw else row["image"]["bytes"] for row in data.__getitems__(numbers)
    ]


def array_record(store: Path) -> Batch:
    """Fetch a batch of Grain's data source, with the parser of storebench instead of TensorFlow's."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    source = ArrayRecordDataSource(str(store / "data.array_record"))
    return lambda numbers: [image_of(record) for record in source.__getitems__(numbers)]


def litdata(store: Path) -> Batch:
    """Index the StreamingDataset."""
    from litdata import StreamingDataset

    data = StreamingDataset(str(store / "data"))
    return lambda numbers: [data[number]["image"] for number in numbers]


def lance(store: Path) -> Batch:
    """Take rows of the data set."""
    import lance as library

    data = library.dataset(store / "data.lance")
    return lambda numbers: data.take(numbers, columns=["image"])["image"].to_pylist()


def rocksdb(store: Path) -> Batch:
    """Get several keys at once."""
    from rocksdict import AccessType, Options, Rdict

    base = Rdict(str(store), Options(raw_mode=True), access_type=AccessType.read_only())
    return lambda numbers: base[[b"%08d" % number for number in numbers]]


def zarr(store: Path) -> Batch:
    """Select rows orthogonally."""
    import zarr as library

    images: Any = library.open_array(store / "data.zarr/image", mode="r")
    return lambda numbers: images.oindex[numbers]


def tensorstore(store: Path) -> Batch:
    """Read rows in one call."""
    import tensorstore as library

    place = {"driver": "file", "path": str((store / "data.zarr/image").absolute())}
    images = library.open({"driver": "zarr3", "kvstore": place}, read=True).result()
    return lambda numbers: images[numbers].read().result()


def webdataset(store: Path) -> Stream:
    """Run the pipeline of the README: shuffled shards, then a buffer of 1,000."""
    from webdataset import WebDataset

    def epoch() -> Iterator[Any]:
        names = sorted(map(str, store.glob("*.tar")))
        for sample in WebDataset(names, shardshuffle=len(names)).shuffle(1000):
            yield sample.get("jpg") or sample["bin"]

    return epoch


def tfrecord(store: Path) -> Stream:
    """Read the files one after the other; there is no library without TensorFlow that runs."""

    def epoch() -> Iterator[Any]:
        for path in sorted(store.glob("*.tfrecord")):
            yield from map(image_of, records(path))

    return epoch


LOOPS: dict[str, Callable[[Path], Batch]] = {
    "npy": npy,
    "sqlite": sqlite,
    "safetensors": safetensors,
    "arrow": arrow,
    "parquet": parquet,
    "hf": hf,
    "array_record": array_record,
    "litdata": litdata,
    "lance": lance,
    "rocksdb": rocksdb,
    "zarr": zarr,
    "zarr:tensorstore": tensorstore,
}
STREAMS: dict[str, Callable[[Path], Stream]] = {"webdataset": webdataset, "tfrecord": tfrecord}


@dataclass(kw_only=True)
class Rates:
    """Samples per second of each round."""

    ours: list[float]
    library: list[float]
    lmdb: list[float]


def main() -> int:
    """Measure, print a table per data set, and return 1 where a reader is slower than it should be."""
    args = _arguments()
    below = []
    for dataset, codec in (("cifar10", "raw"), ("imagenet", "jpeg")):
        if dataset not in args.dataset:
            continue
        print(f"\n{dataset}, {args.size or SIZES[dataset]:,} samples, {codec}, warm, one process")
        print(f"{'':20} {'order':>8} {'samples/s':>11} {'of its own loop':>20} {'of LMDB':>20}")
        for name in args.backend or [*LOOPS, *STREAMS]:
            if not is_installed(name.partition(":")[0]):
                print(f"{name:20} not installed")
                continue
            rates = measure(name, codec, dataset, args)
            own, lmdb = compare(rates.library, rates.ours), compare(rates.lmdb, rates.ours)
            order = "own" if name in STREAMS else "shuffled"
            row = f"{name:20} {order:>8} {median(rates.ours):11,.0f}"
            print(f"{row} {ratio_words(own):>20} {ratio_words(lmdb, 3):>20}", flush=True)
            if own.high is not None and own.high < ASKED:
                below.append(f"{name} on {dataset}")
    for words in below:
        print(f"below {ASKED:g} of the recommended loop: {words}", file=sys.stderr)
    return int(bool(below))


def measure(name: str, codec: str, dataset: str, args: argparse.Namespace) -> Rates:
    """Let both sides and LMDB take turns."""
    spec = DatasetSpec(name=dataset, size=args.size or SIZES[dataset])
    rng, rates = np.random.default_rng(0), Rates(ours=[], library=[], lmdb=[])
    container, _, reader = name.partition(":")
    with contextlib.ExitStack() as stack:
        ours = _opened(stack, spec, f"{container}+{codec}" + (f":{reader}" if reader else ""), args.stores)
        lmdb = _opened(stack, spec, f"lmdb+{codec}", args.stores)
        loop = STREAMS[name](ours.store) if name in STREAMS else LOOPS[name](ours.store)
        for turn in range(args.rounds + 1):
            order = rng.permutation(ours.manifest.count)
            native = order
            if name in STREAMS:
                native = type(ours).native_order(ours.store, ours.manifest, ours.options, (turn,))
            sides = (
                _read(ours, _split(native, args.batch_size), (turn,)),
                _library(loop, _split(order, args.batch_size), ours, streams=name in STREAMS),
                _read(lmdb, _split(order, args.batch_size), None),
            )
            if turn:  # the first epoch only warms
                for side, rate in zip((rates.ours, rates.library, rates.lmdb), sides, strict=True):
                    side.append(rate)
    return rates


def _split(order: Indices, size: int) -> list[Indices]:
    return [order[at : at + size] for at in range(0, len(order), size)]


def _opened(stack: contextlib.ExitStack, spec: DatasetSpec, name: str, stores: Path) -> Reader:
    options = BuildOptions(say=lambda line: print(line, file=sys.stderr))
    backend = parse_backend(name)
    store = ensure_store(spec, backend, stores, options=options).path
    warm(get_format(backend.format).data_files(store), anew=True)
    reader = get_format(backend.format).reader(store, Manifest.read(store), backend.reader)
    return stack.enter_context(reader)


def _read(reader: Reader, batches: list[Indices], seed: tuple[int, ...] | None) -> float:
    """Return the samples per second of an epoch of storebench's reader."""
    out = np.empty((len(batches[0]), *reader.image_shape), np.uint8)
    raw = reader.payload_codec == "raw"
    start = time.perf_counter()
    reader.plan(batches, seed)
    for indices in batches:
        if raw:
            reader.fetch_into(indices, out)
        else:
            reader.fetch(indices)
    return sum(map(len, batches)) / (time.perf_counter() - start)


def _library(loop: Any, batches: list[Indices], reader: Reader, *, streams: bool) -> float:
    """Return the samples per second of an epoch of the library's loop, with raw pixels collated into a batch."""
    raw, served = reader.payload_codec == "raw", 0
    start = time.perf_counter()
    stream = loop() if streams else iter(())
    for indices in batches:
        count = len(indices)
        rows = [next(stream) for _ in range(count)] if streams else loop(indices.tolist())
        if raw and not isinstance(rows, np.ndarray):
            rows = np.stack([np.frombuffer(row, np.uint8) for row in rows])
        served += len(rows)
    rate = served / (time.perf_counter() - start)
    if served != reader.manifest.count:
        raise SystemExit(f"{reader.store}: the loop served {served} samples")
    return rate


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backend", nargs="*", help=f"all, if none is named: {', '.join([*LOOPS, *STREAMS])}")
    parser.add_argument("--dataset", action="append", choices=list(SIZES), help="both, if none is named")
    parser.add_argument(
        "--size", type=int, help="samples; 10,000 of CIFAR-10 and 2,000 of ImageNet by default"
    )
    parser.add_argument("--stores", type=Path, default=Path(os.environ.get("STOREBENCH_STORES", "stores")))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    args.dataset = args.dataset or list(SIZES)
    return args


if __name__ == "__main__":
    raise SystemExit(main())
