"""Hold the planned readers against the machine's ceilings: ``python -m benchmarks.direct``.

Every replicate is a fresh process, in a random order drawn anew for each round. Cold means evicted and then counted:
a replicate that began with more than 1% of the store resident stops the run. A first tenth is cold to its end, a
whole epoch is not. What is held against the device takes turns with it alone, because the device's rate changes
within seconds.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.ratios import claim_line
from storebench.codecs import get_codec
from storebench.formats.base import Batch, Indices, Reader
from storebench.formats.registry import get_format, open_reader, parse_backend
from storebench.probes.page_cache import evict, warm
from storebench.probes.page_count import PAGE_BYTES, resident
from storebench.probes.rates import device_rates, gather_rate, opened_direct, read_direct
from storebench.record.manifest import Manifest

BATCH = 64
COLD_MAX_FRAC = 0.01
SEQUENTIAL_BYTES = 4 << 20
TAKES = (("first tenth", 0.1), ("epoch", 1.0))
PAIRED = 3
"""So many times more rounds where a reader takes turns with a ceiling only."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One thing that is timed: a reader of a store, or a ceiling or yardstick."""

    name: str
    store: str
    backend: str = ""
    # device (best rate), random (a read per sample, 16 in flight), sequential, copy, or numpy's gather
    ceiling: str = ""
    state: str = "cold"
    share: float = 1.0
    planned: bool = True
    epochs: int = 1


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one replicate measured; `samples_per_s` is that of the last epoch."""

    samples_per_s: float
    seconds: float
    amplification: float = 0.0
    major_faults: int = 0
    resident_frac: float = 0.0
    private_mib: float = 0.0
    notes: str = ""


def measure(side: Side) -> Figures:
    """Measure one side in this (fresh) process."""
    store = Path(side.store)
    if side.ceiling in ("copy", "gather"):
        manifest = Manifest.read(store)
        rate = gather_rate(manifest.dataset.image_shape, BATCH, count=manifest.count, limit_s=1.0)
        taken, copied = rate.gather_samples_per_s, rate.copy_ceiling_samples_per_s
        return Figures(samples_per_s=(taken if side.ceiling == "gather" else copied) or 0.0, seconds=1.0)
    return _ceiling(side, store) if side.ceiling else _reader(side, store)


def _files(store: Path) -> list[Path]:
    manifest = Manifest.read(store)
    return list(get_format(manifest.format).data_files(store))


def _prepare(side: Side, files: list[Path]) -> float:
    if side.state == "cold":
        evict(files)
    else:
        warm(files, anew=True)
    frac = resident(files).frac
    assert frac is not None, "residency cannot be counted here"
    good = frac <= COLD_MAX_FRAC if side.state == "cold" else frac >= 1 - COLD_MAX_FRAC
    assert good, f"{side.name}: {frac:.1%} resident is not {side.state}"
    return frac


def _reader(side: Side, store: Path) -> Figures:
    files = _files(store)
    backend = parse_backend(side.backend)
    open_reader(store, backend.reader, **dict(backend.options)).close()  # builds the index, if there is one
    _prepare(side, files)
    with open_reader(store, backend.reader, **dict(backend.options)) as reader:
        count = reader.manifest.count
        out = np.ones((BATCH, *reader.image_shape), np.uint8)
        # LMDB's opening reads the labels through the mapping, and the kernel reads on behind them.
        frac = _prepare(side, files)
        for epoch in range(side.epochs):
            order = np.random.default_rng([7, epoch]).permutation(count)[: int(count * side.share)]
            batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
            device, faults = (
                _number_in("/proc/self/io", "read_bytes:"),
                resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
            )
            start = time.perf_counter()
            if side.planned:
                reader.plan(batches)
            done = sum(_fetch(reader, batch, out) for batch in batches)
            seconds = time.perf_counter() - start
        return Figures(
            samples_per_s=len(order) / seconds,
            seconds=seconds,
            amplification=(_number_in("/proc/self/io", "read_bytes:") - device) / done,
            major_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults,
            resident_frac=frac,
            private_mib=_number_in("/proc/self/status", "RssAnon:") / 1024,
            notes=json.dumps(reader.notes()),
        )


def _fetch(reader: Reader, batch: Indices, out: Batch) -> int:
    if reader.payload_codec == "raw":
        return reader.fetch_into(batch, out).payload_bytes
    payloads, codec = reader.fetch(batch), get_codec(reader.payload_codec)
    for payload, image in zip(payloads, out, strict=False):
        codec.decode_into(payload, image)
    return sum(map(len, payloads))


def _ceiling(side: Side, store: Path) -> Figures:
    """Read the store's one file past the page cache: at the device's best, by one read per sample, or in a row."""
    (path,) = _files(store)
    manifest = Manifest.read(store)
    image_bytes = manifest.dataset.image_bytes
    if side.ceiling == "device":
        best = device_rates([path], image_bytes).device_best_bytes_per_s
        assert best is not None, "the device cannot be read past the page cache"
        return Figures(samples_per_s=best / image_bytes, seconds=1.0)
    size = path.stat().st_size // PAGE_BYTES * PAGE_BYTES
    with opened_direct([str(path)]) as (fd,):
        if side.ceiling == "sequential":
            requests = [(fd, at) for at in range(0, size, SEQUENTIAL_BYTES)]
            seconds = read_direct(requests, SEQUENTIAL_BYTES, 4).seconds
            return Figures(samples_per_s=manifest.count / seconds, seconds=seconds)
        # As many pages as the sample lies on.
        request = -(-image_bytes // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES
        places = np.random.default_rng(3).permutation(size // request)[: int(manifest.count * side.share)]
        seconds = read_direct([(fd, int(place) * request) for place in places], request, 16).seconds
        return Figures(samples_per_s=len(places) / seconds, seconds=seconds)


def _number_in(path: str, name: str) -> int:
    lines = Path(path).read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name)))


def in_fresh_process(side: Side) -> Figures:
    """Run `measure` in a new interpreter."""
    command = [sys.executable, "-m", "benchmarks.direct", "--side", json.dumps(asdict(side))]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Figures(**json.loads(text.splitlines()[-1]))


Claims = list[tuple[str, str, str, float]]
"""Words, the side, the side or sides ("a|b": all of them) that it is compared with, the least ratio or 0."""


def table(title: str, sides: list[Side], claims: Claims, rounds: int) -> None:
    """Measure the sides in interleaved rounds and print rates and shares."""
    print(f"\n## {title}")
    found: dict[str, list[Figures]] = {side.name: [] for side in sides}
    for number in range(rounds):
        # At random, so that no side always follows the same one: a disk that lends bursts remembers the last.
        for turn in np.random.default_rng(number).permutation(len(sides)):
            found[sides[turn].name].append(in_fresh_process(sides[turn]))
    for name, runs in found.items():
        rate, amplification, faults, private_mib = (
            float(np.median([getattr(run, figure) for run in runs]))
            for figure in ("samples_per_s", "amplification", "major_faults", "private_mib")
        )
        print(
            f"{name:42} {rate:12,.0f} samples/s  amplification {amplification:6.2f}"
            f"  major faults {faults:6.0f}  private {private_mib:5.0f} MiB"
        )
    rates = {name: [run.samples_per_s for run in runs] for name, runs in found.items()}
    for words, side, against, least in claims:
        line = claim_line(words, rates[side], [rates[name] for name in against.split("|")], least or None)
        print(f"  {line}", flush=True)


def cold_imagenet(stores: Path, rounds: int) -> None:
    """Point 1 of what the readers must show."""
    store = str(stores / "imagenet-train-size4000" / "lmdb+raw")
    for take, share in TAKES:
        device = Side(name="the device at its best", store=store, ceiling="device")
        direct = Side(name="lmdb:direct", store=store, backend="lmdb:direct", share=share)
        against_ceiling(f"1. ImageNet-256, cold, {take}", direct, device, "of the device", 0.9, rounds)
        sides = [
            Side(name="one read per sample, 16 in flight", store=store, ceiling="random", share=share),
            direct,
            replace(direct, name="lmdb:direct, no plan", planned=False),
            Side(name="lmdb, readahead on", store=store, backend="lmdb", share=share),
            Side(name="lmdb, readahead off", store=store, backend="lmdb?readahead=off", share=share),
        ]
        claims: Claims = [
            ("times LMDB with readahead", "lmdb:direct", "lmdb, readahead on", 5 if share < 1 else 0),
            ("times LMDB without readahead", "lmdb:direct", "lmdb, readahead off", 20),
            (f"{sides[0].name}, times LMDB without readahead", sides[0].name, "lmdb, readahead off", 0),
        ]
        table(f"1. ImageNet-256, cold, {take}, and LMDB itself", sides, claims, rounds)


def against_ceiling(title: str, reader: Side, ceiling: Side, words: str, least: float, rounds: int) -> None:
    """Hold a reader against a ceiling, the two alone in turn."""
    table(title, [ceiling, reader], [(words, reader.name, ceiling.name, least)], PAIRED * rounds)


def cold_cifar(stores: Path, rounds: int) -> None:
    """Point 2."""
    store = str(stores / "cifar10-train-size50000" / "lmdb+raw")
    in_a_row = Side(name="the file in a row", store=store, ceiling="sequential")
    for take, share in TAKES:
        direct = Side(name="lmdb:direct", store=store, backend="lmdb:direct", share=share)
        if share == 1:
            words = "of one pass over the file"
            against_ceiling(f"2. CIFAR-10, cold, {take}", direct, in_a_row, words, 0.85, rounds)
        sides = [
            direct,
            Side(name="lmdb, readahead on", store=store, backend="lmdb", share=share),
            Side(name="lmdb, readahead off", store=store, backend="lmdb?readahead=off", share=share),
        ]
        better = "lmdb, readahead on|lmdb, readahead off"
        claims: Claims = [
            ("times LMDB, with and without readahead", "lmdb:direct", better, 3 if share < 1 else 1.6)
        ]
        table(f"2. CIFAR-10, cold, {take}, and LMDB itself", sides, claims, rounds)


def warm_readers(stores: Path, rounds: int) -> None:
    """Point 3: the first epoch of a fresh process, and the third."""
    for folder, least in (("imagenet-train-size4000", 0.8), ("cifar10-train-size50000", 0.6)):
        for epochs in (1, 3):
            lmdb, hdf5 = (str(stores / folder / f"{name}+raw") for name in ("lmdb", "hdf5"))
            sides = [Side(name=name, store=lmdb, ceiling=name) for name in ("gather", "copy")]
            sides += [
                Side(name=backend, store=store, backend=backend, state="warm", epochs=epochs)
                for name, store in (("lmdb", lmdb), ("hdf5", hdf5))
                for backend in (f"{name}:direct", name)
            ]
            claims: Claims = [
                (f"{name} of {words}", name, ceiling, asked)
                for name in ("lmdb:direct", "hdf5:direct")
                for words, ceiling, asked in (
                    ("numpy's gather, which copies twice", "gather", least),
                    ("one thread's copying", "copy", 0),
                )
            ]
            table(f"3. {folder}, warm, epoch {epochs} of a process", sides, claims, rounds)


def other_readers(stores: Path, rounds: int) -> None:
    """Point 4: HDF5 cold, and the decoding of PNG by two threads."""
    store = str(stores / "imagenet-train-size4000" / "hdf5+raw")
    device = Side(name="the device at its best", store=store, ceiling="device")
    direct = Side(name="hdf5:direct", store=store, backend="hdf5:direct")
    against_ceiling("4. HDF5, ImageNet-256, cold, epoch", direct, device, "of the device", 0.85, rounds)
    claims: Claims = [("times HDF5's own reader", "hdf5:direct", "hdf5", 0)]
    sides = [direct, Side(name="hdf5", store=store, backend="hdf5")]
    table("4. HDF5, ImageNet-256, cold, epoch, and HDF5 itself", sides, claims, rounds)


def threads(stores: Path, rounds: int) -> None:
    """Point 4: PNG warm, fetched and decoded into a batch."""
    store = str(stores / "imagenet-train-size400" / "files+png")
    sides = [
        Side(name="files:threads", store=store, backend="png:threads", state="warm"),
        Side(name="files", store=store, backend="png", state="warm"),
    ]
    table("4. PNG, ImageNet-256, warm", sides, [("times png", "files:threads", "files", 1.7)], rounds)


PARTS: dict[str, Callable[[Path, int], None]] = {
    "1": cold_imagenet,
    "2": cold_cifar,
    "3": warm_readers,
    "4": other_readers,
    "5": threads,
}


def make_stores(stores: Path, parts: Iterable[str]) -> None:
    """Convert what is missing for some parts."""
    for dataset, size, backends, needed in (
        ("imagenet", 4000, ["lmdb", "hdf5", "memory"], "134"),
        ("cifar10", 50_000, ["lmdb", "hdf5", "memory"], "23"),
        ("imagenet", 400, ["png"], "5"),
    ):
        if not {*parts} & {*needed}:
            continue
        options = ["--dataset", dataset, "--size", str(size), "--out", str(stores)]
        subprocess.run([sys.executable, "-m", "storebench", "convert", *backends, *options], check=True)


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds: to see that it runs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--stores", type=Path, default=Path(os.environ.get("STOREBENCH_STORES", "stores")))
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(asdict(measure(Side(**json.loads(options.side))))))
        return
    parts = [options.only] if options.only else [*PARTS]
    make_stores(options.stores, parts)
    for name in parts:
        PARTS[name](options.stores, 2 if options.quick else options.rounds)


if __name__ == "__main__":
    main()
