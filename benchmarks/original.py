"""What converting to ``original`` costs beside a plain copy of the files, and how much of it is the check that they decode.

``python -m benchmarks.original``, or ``make bench-original``. The image files of a folder are copied under several names
into a temporary folder. In every round, in turn and in a random order:

- copy: ``cp -r`` of that folder
- read: every file is read, in one process
- check: every file is read and decoded as ``convert`` does, in one process
- convert: ``storebench.stores.convert`` into files and into one LMDB file, in as many threads as it chooses, with its
  verification; with the check and without it (``--no-decode``)

After each copy and conversion, dirty pages are written back (``sync``), and the time of that counts. Files are in the page
cache. Nothing is deleted before the end, because an ext4 without a journal creates files several times as slowly for five
minutes after others were deleted. Figures are medians over rounds, in seconds and per image, and the median ratio to
the copy of the same round.

    python -m benchmarks.original [--dataset PATH] [--times N] [--rounds N]
"""

import argparse
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from storebench.datasets.base import DatasetSpec
from storebench.datasets.images import checked
from storebench.formats.registry import parse_backend
from storebench.stores.convert import BuildOptions, ensure_store

SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})


def photographs(source: Path, target: Path, times: int) -> list[Path]:
    """Copy the image files of a folder `times` times into class folders of `target`; return the copies."""
    files = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES)
    made = []
    for number in range(times):
        for file in files:
            folder = target / file.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            made.append(Path(shutil.copyfile(file, folder / f"{number}-{file.name}")))
    return made


def copy(source: Path, scratch: Path) -> None:
    """Copy the folder as ``cp -r`` does."""
    subprocess.run(["cp", "-r", source, scratch / "copy"], check=True)
    os.sync()


def read(files: Sequence[Path]) -> None:
    """Read every file."""
    for file in files:
        file.read_bytes()


def check(files: Sequence[Path]) -> None:
    """Read and decode every file."""
    for file in files:
        checked(file.read_bytes(), str(file))


def converted(source: Path, scratch: Path, backend: str, *, decode: bool) -> None:
    """Convert the folder."""
    spec = DatasetSpec(name=f"folder:{source}")
    ensure_store(spec, parse_backend(backend), scratch / "stores", options=BuildOptions(decode=decode))
    os.sync()


def main() -> None:
    """Time all ways in turn and print one line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = Path(os.environ.get("STOREBENCH_DATA", "data"))
    parser.add_argument("--dataset", type=Path, default=data / "imagenet" / "train", metavar="PATH")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "photographs")
        files = photographs(given.dataset, source, given.times)
        ways: dict[str, Callable[[Path], None]] = {
            "copy": partial(copy, source),
            "read": lambda _: read(files),
            "check": lambda _: check(files),
        }
        for backend in ("original", "lmdb+original"):
            for words, decode in (("", True), (" --no-decode", False)):
                ways[f"convert {backend}{words}"] = partial(converted, source, backend=backend, decode=decode)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        order = random.Random(0)
        for _ in range(given.rounds):
            for name in order.sample(list(ways), len(ways)):
                scratch = Path(tempfile.mkdtemp(dir=folder))
                begun = time.perf_counter()
                ways[name](scratch)
                seconds[name].append(time.perf_counter() - begun)
    size = f"{len(files):,} files, {given.rounds} rounds, {len(os.sched_getaffinity(0))} cores"
    print(f"{size}\n{'':34} {'s':>7} {'ms/image':>9} {'range, s':>16} {'/ copy':>7}")
    for name, times in seconds.items():
        each = 1000 * median(times) / len(files)
        ratio = median(mine / plain for mine, plain in zip(times, seconds["copy"], strict=True))
        print(
            f"{name:34} {median(times):7.2f} {each:9.3f} {min(times):8.2f} to {max(times):.2f} {ratio:8.2f}"
        )


if __name__ == "__main__":
    main()
