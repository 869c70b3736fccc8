"""Which ways defeat a cache below this kernel? First touch against second touch of the same bytes: ``python -m benchmarks.touches``.

Every read is made with O_DIRECT, so this kernel's page cache takes no part. Stretches of 64 KiB are read twice, one at a
time and 16 at a time. Without a cache below, or where it was defeated, nothing distinguishes the reads of old bytes from
those of new ones: "first over second" is the same for bytes that were never read. The ways, in the order of measuring:

- written before other data: a file, of which nothing was read since other data was written after it;
- just written: a file that was written last;
- read a moment ago: the same stretches again, which shows the ratio of cached bytes;
- written before boot: bytes of files that were neither changed nor read since boot, according to this kernel;
- after reading other data: the stretches of the last two ways again, after all of the other data was read.

    python -m benchmarks.touches [--gib 12] [--folder .]

The other data is random, so that nothing below compresses it or keeps one copy of equal blocks, and it is removed at the end.
"""

import argparse
import contextlib
import mmap
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storebench.probes.direct_reads import Request, read_direct
from storebench.probes.mounts import mount_of
from storebench.probes.unread import Candidates, boot_time_s, unread_ranges
from storebench.stats import Comparison, compare
from storebench.system.scratch import scratch_folder
from storebench.units import Better

READ_BYTES = 64 << 10
SINGLES, GROUPS, IN_FLIGHT = 256, 24, 16
BLOCK_BYTES = 4 << 20
TARGET_BYTES = 1 << 30
RESERVE_BYTES = 8 << 30
"""Space on the disk that is left alone."""

SEARCH_S = 5.0
FEWEST = 12
"""Pairs below which no ratio is printed."""


@dataclass(frozen=True, kw_only=True)
class Touched:
    """First and second reads of the same stretches, as seconds: one at a time, and of groups."""

    singles: tuple[list[float], list[float]]
    groups: tuple[list[float], list[float]]


def write_random(path: Path, size: int) -> float:
    """Write random bytes past the page cache, and return the bytes per second."""
    rng = np.random.Generator(np.random.SFC64(int.from_bytes(os.urandom(8), "little")))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    started = time.perf_counter()
    try:
        with mmap.mmap(-1, BLOCK_BYTES) as buffer:  # O_DIRECT needs aligned memory
            for at in range(0, size, BLOCK_BYTES):
                buffer[:] = rng.bytes(BLOCK_BYTES)
                os.pwritev(fd, [buffer], at)
        os.fsync(fd)
    finally:
        os.close(fd)
    return size / (time.perf_counter() - started)


@contextlib.contextmanager
def opened(ranges: Sequence[tuple[str, int]]) -> Iterator[list[Request]]:
    """Open the files of some ranges for reads past the page cache."""
    fds: dict[str, int] = {}
    try:
        for path, _ in ranges:
            if path not in fds:
                fds[path] = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        yield [(fds[path], at) for path, at in ranges]
    finally:
        for fd in fds.values():
            os.close(fd)


def stretches(path: Path, count: int) -> list[tuple[str, int]]:
    """Return random stretches of a file, in random order."""
    size = path.stat().st_size
    return [(str(path), at * READ_BYTES) for at in random.sample(range(size // READ_BYTES), count)]


def touched(ranges: Sequence[tuple[str, int]]) -> Touched:
    """Read every stretch twice; a share of them one at a time, the others in groups."""
    with opened(ranges) as requests:
        singles = len(requests) * SINGLES // (SINGLES + GROUPS * IN_FLIGHT)
        alone = [[request] for request in requests[:singles]]
        rest = requests[singles:]
        groups = [rest[at : at + IN_FLIGHT] for at in range(0, len(rest) - IN_FLIGHT + 1, IN_FLIGHT)]
        return Touched(singles=_twice(alone, 1), groups=_twice(groups, IN_FLIGHT))


def _twice(parts: Sequence[Sequence[Request]], in_flight: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each part at the first and at the second pass over eight of them."""
    first: list[float] = []
    second: list[float] = []
    for at in range(0, len(parts), 8):
        for seconds in (first, second):
            seconds += [read_direct(part, READ_BYTES, in_flight).seconds for part in parts[at : at + 8]]
    return first, second


def ratio_words(later: Sequence[float], earlier: Sequence[float]) -> str:
    """Return the time of first reads over that of second reads, with its interval; "too few" without one."""
    if len(later) < FEWEST:
        return f"too few ({len(later)})"
    ratio: Comparison = compare(earlier, later, better=Better.LOWER)
    return f"{ratio.ratio:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def report(way: str, found: Touched) -> None:
    """Print one way: both ratios, and the medians behind them."""
    (first, second), (group, again) = found.singles, found.groups
    medians = ", ".join(f"{1e6 * float(np.median(seconds)):,.0f}" for seconds in (first, second) if seconds)
    print(
        f"{way}: first over second reads {ratio_words(first, second)} one at a time (medians {medians} us, {len(first)}"
        f" pairs), {ratio_words(group, again)} with {IN_FLIGHT} in flight ({len(group)} pairs)",
        flush=True,
    )


def read_other(path: Path) -> list[float]:
    """Read a file in a row past the page cache, and return the bytes per second of each GiB."""
    rates = []
    with opened([(str(path), 0)]) as [(fd, _)]:
        for start in range(0, path.stat().st_size, 1 << 30):
            end = min(start + (1 << 30), path.stat().st_size)
            requests = [(fd, at) for at in range(start, end, BLOCK_BYTES)]
            rates.append(read_direct(requests, BLOCK_BYTES, 8).bytes_per_s)
    return rates


def main() -> int:
    """Measure every way and print its ratios."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--gib", type=int, default=12, help="GiB of other data")
    parser.add_argument("--folder", type=Path, default=Path(), help="folder on the disk to measure")
    arguments = parser.parse_args()
    other_bytes, folder = arguments.gib << 30, arguments.folder.resolve()
    needed = other_bytes + 2 * TARGET_BYTES + RESERVE_BYTES
    if shutil.disk_usage(folder).free < needed:
        print(f"{folder}: {needed >> 30} GiB must be free; take a smaller --gib", file=sys.stderr)
        return 2
    count = SINGLES + GROUPS * IN_FLIGHT
    wanted = Candidates(folder=folder, mount=mount_of(folder), size=READ_BYTES, since_s=boot_time_s())
    old = unread_ranges(wanted, count, used=(), limit_s=SEARCH_S)
    with scratch_folder("kept", folder) as scratch:
        early, other, late = (scratch / name for name in ("early", "other", "late"))
        write_random(early, TARGET_BYTES)
        rate = write_random(other, other_bytes)
        print(f"other data: {arguments.gib} GiB written at {rate / 1e6:,.0f} MB/s", flush=True)
        write_random(late, TARGET_BYTES)
        last = stretches(late, count)
        report(f"written before {arguments.gib} GiB of other data", touched(stretches(early, count)))
        report("just written", touched(last))
        report("read a moment ago", touched(last))
        report("written before boot, not read since", touched(old))
        report("the same again", touched(old))
        rates = read_other(other)
        told = ", ".join(f"{rate / 1e6:,.0f}" for rate in rates)
        print(f"other data read in a row, MB/s by GiB in the order of writing: {told}", flush=True)
        report(f"just written, after reading {arguments.gib} GiB", touched(last))
        report(f"written before boot, after reading {arguments.gib} GiB", touched(old))
        rates = read_other(other)
        told = ", ".join(f"{rate / 1e6:,.0f}" for rate in rates)
        print(f"other data read in a row once more, MB/s by GiB: {told}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
