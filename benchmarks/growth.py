"""Time and memory of converting and of running, up to a million samples: ``python -m benchmarks.growth``.

MNIST is extended to each size, converted into each store, and read once from a warm page cache without computing.
Everything takes about ten minutes and 3 GB of disk.
"""

import argparse
import contextlib
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from storebench.formats.registry import parse_backend, traits_of
from storebench.record.lines import read_records

SIZES = (10_000, 100_000, 1_000_000)
BACKENDS = ("png", "hdf5", "leveldb", "lmdb", "memory:native")
FILE_SIZES = (10_000, 100_000, 300_000)  # a million files take many minutes: name them with --sizes
IMAGE_BYTES = 28 * 28

SCENARIO = """\
name = "growth"
question = "?"
replicates = 1
ceilings = false  # constant: about four seconds, and up to 256 MiB

[[matrix]]
dataset = "mnist"
size = {size}
backends = ["{backend}"]
model = "none"
compute = "none"
cache = "warm"
"""
HEADER = (
    "| store | samples | convert (s) | CPU (s) | exponent | bytes per sample | epoch (s) | around it (s) | CPU (s) "
    "| exponent | bytes per sample |\n|---|" + "---:|" * 10 + "\n"
)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one command took: seconds of the clock and of all cores, and the most private memory of its processes."""

    size: int
    wall_s: float
    cpu_s: float
    memory_bytes: int
    epoch_s: float | None = None  # part of `wall_s`

    def cells(self, smaller: "Cost | None") -> list[str]:
        """Return cells of the table; growth is compared with the next smaller size."""
        around_s, epoch = self.wall_s - (self.epoch_s or 0), []
        if self.epoch_s is not None:
            epoch = [f"{self.epoch_s:.2f}"]
        cells = [*epoch, f"{around_s:.1f}", f"{self.cpu_s:.1f}"]
        if smaller is None:
            return [*cells, "", ""]
        times = around_s / (smaller.wall_s - (smaller.epoch_s or 0))
        more_bytes = (self.memory_bytes - smaller.memory_bytes) / (self.size - smaller.size)
        return [*cells, f"{math.log(times) / math.log(self.size / smaller.size):.2f}", f"{more_bytes:.0f}"]


def private_bytes(process: psutil.Process) -> int:
    """Return the private memory of a process and its descendants; pages of files are not among it."""
    total = 0
    with contextlib.suppress(psutil.Error):
        for member in [process, *process.children(recursive=True)]:
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{member.pid}/status").read_text(encoding="utf-8")
                total += sum(map(int, re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+)", status, re.MULTILINE)))
    return total << 10


def run(*arguments: str, size: int) -> Cost:
    """Run storebench, and look at its processes' memory all the while."""
    started, most = time.perf_counter(), 0
    command = [sys.executable, "-m", "storebench", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    watched = psutil.Process(process.pid)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        most = max(most, private_bytes(watched))
        time.sleep(0.05)
    assert process.stderr is not None
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(arguments)}: exit code {code}\n{process.stderr.read().decode()}")
    process.returncode = code
    cpu_s = usage.ru_utime + usage.ru_stime
    return Cost(size=size, wall_s=time.perf_counter() - started, cpu_s=cpu_s, memory_bytes=most)


def measure(backend: str, size: int, folder: Path) -> tuple[Cost, Cost]:
    """Convert and run once; the store is removed."""
    stores, out = folder / "stores", folder / "run"
    try:
        places = ["--out", str(stores), "--dataset", "mnist", "--size", str(size)]
        # In as many processes at every size, so that their memory is none of the growth.
        convert = run("convert", backend, "--processes", "2", *places, size=size)
        scenario = folder / "scenario.toml"
        scenario.write_text(SCENARIO.format(backend=backend, size=size), encoding="utf-8")
        trained = run("bench", str(scenario), "--stores", str(stores), "--out", str(out), size=size)
        epoch_s = read_records(out)[0].epoch_s
    finally:
        shutil.rmtree(stores, ignore_errors=True)
        shutil.rmtree(out, ignore_errors=True)
    held = size * IMAGE_BYTES if traits_of(parse_backend(backend)).holds_pixels else 0
    return convert, replace(trained, epoch_s=epoch_s, memory_bytes=trained.memory_bytes - held)


def main() -> None:
    """Measure every store at every size, and print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of samples, ascending")
    parser.add_argument("--backends", nargs="+", default=BACKENDS)
    parser.add_argument("--folder", type=Path, help="folder for the stores")
    given = parser.parse_args()
    print(HEADER, end="")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for backend in given.backends:
            smaller: tuple[Cost | None, Cost | None] = None, None
            for size in given.sizes or (FILE_SIZES if backend == "png" else SIZES):
                costs = measure(backend, size, Path(folder))
                cells = [cell for pair in zip(costs, smaller, strict=True) for cell in pair[0].cells(pair[1])]
                print(f"| {backend} | {size:,} | {' | '.join(cells)} |", flush=True)
                smaller = costs


if __name__ == "__main__":
    main()
