"""Are the counters right? Cold LMDB compared with known values and with the block device's own counter.

The first tenth of a cold, shuffled epoch of ImageNet-256 (4,000 images), with the kernel's readahead and without. The
known values hold for a device that reads ahead by 8 MiB; the kernel's bytes and the device's agree where nothing else
reads.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runs import bench_text
from storebench.record.schema import CacheVerdict, Record

SCENARIO = """
name = "counters"
question = "Are the counters of a cold epoch right?"
replicates = 5
test_limit = 0

[[matrix]]
dataset = "imagenet"
size = {size}
model = "none"
compute = "none"
batch_size = 64
backends = ["lmdb", "lmdb?readahead=off", "lmdb:direct"]
cache = "cold"
max_steps = 7
"""
AMPLIFICATION = {"lmdb": 8.7, "lmdb?readahead=off": 1.0}
FAULTS = {"lmdb?readahead=off": 49.0}  # one for each page of an image
FACTOR = 2.0
AGREE_FRAC = 0.10
READ_AHEAD_KB = 8192


def middle(values: Sequence[float | None]) -> float:
    """Return the median; a counter that could not be read is an error here."""
    assert all(value is not None for value in values), "a counter could not be read"
    return statistics.median(value for value in values if value is not None)


def within(words: str, found: float, expected: float) -> bool:
    """Print a figure beside its known value, and return whether they agree."""
    good = expected / FACTOR <= found <= expected * FACTOR
    print(f"  {words}: {found:.2f} (known: {expected}) {'agrees' if good else 'DISAGREES'}")
    return good


def check(backend: str, records: Sequence[Record]) -> list[bool]:
    """Print the counters of a backend, and return one flag per check."""
    print(f"\n{backend}: {len(records)} replicates")
    counters = [record.counters for record in records]
    amplification = middle([counter.read_amplification for counter in counters])
    faults = middle([record.counters.major_faults / record.samples for record in records])
    good = [all(record.cache.verdict is CacheVerdict.VERIFIED for record in records)]
    if backend in AMPLIFICATION:
        good.append(within("read amplification", amplification, AMPLIFICATION[backend]))
    else:
        print(f"  read amplification: {amplification:.2f}")
    if backend in FAULTS:
        good.append(within("major faults per sample", faults, FAULTS[backend]))
    else:
        print(f"  major faults per sample: {faults:.2f}")
    agreement = middle([counter.device_read_bytes / counter.block_device_read_bytes for counter in counters])
    good.append(abs(agreement - 1) <= AGREE_FRAC)
    print(f"  of the block device's own counter: {agreement:.3f} {'agrees' if good[-1] else 'DISAGREES'}")
    return good


def main() -> int:
    """Run the cells and print one block per backend."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--replicates", type=int, help="fresh processes per cell, 5 by default")
    parser.add_argument("--size", type=int, default=4000, help="images [default: 4,000]")
    parser.add_argument("--stores", type=Path, help="keep the stores here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        stores = arguments.stores or Path(scratch) / "stores"
        records = bench_text(
            SCENARIO.format(size=arguments.size), Path(scratch) / "run", stores, arguments.replicates
        )
    ahead = records[0].environment.match["block_device"]["read_ahead_kb"] if records[0].environment else None
    if ahead != str(READ_AHEAD_KB):
        print(f"read_ahead_kb is {ahead} here, and {READ_AHEAD_KB} where the known amplification comes from")
    good: list[bool] = []
    for backend in dict.fromkeys(record.cell.backend.name for record in records):
        good += check(backend, [record for record in records if record.cell.backend.name == backend])
    print(f"\n{good.count(False)} of {len(good)} checks failed")
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
