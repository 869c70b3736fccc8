"""Does the profile see memory that grows, and when it is full? ``python -m benchmarks.profile_memory``.

Each loop runs alone, in a process of its own, those that are planted to grow in a control group with 1200 MiB until
they are killed; the profile tells beforehand at which step. Exit code 1 if fewer than the goals are right.
"""

import argparse
import collections
import contextlib
import functools
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import storebench
from benchmarks.control_groups import control_group
from storebench.profiling.profile_report import ProfileReport

LIMIT_BYTES, SIDE, TOLERANCE = 1200 << 20, 256, 0.2
TOLD_S, STEADY_S, STEP_S = 12.0, 14.0, 0.01
COPIED = "copies of a list"


class Images(Dataset[Any]):
    """Images that are made, maybe with a cache."""

    def __init__(self, *, caches: int = 0, objects: int = 0, sizes: int = 1) -> None:
        self.caches, self.sizes = caches, sizes
        self.cache: dict[int, Any] = {}
        self.objects = [[number] for number in range(objects)]

    def __len__(self) -> int:
        return 1 << 24

    def __getitem__(self, index: int) -> Any:
        for place in range(index * 4000, index * 4000 + 4000 if self.objects else 0):
            self.objects[place % len(self.objects)]
        if self.caches:
            self.cache[index % self.caches] = np.ones(SIDE * SIDE * 3, np.uint8)
        return torch.ones(3, SIDE, SIDE + index % self.sizes, dtype=torch.uint8)


class Cached(Images):
    @functools.cache  # noqa: B019 - that is the fault
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


class Named(Images):
    def __getitem__(self, index: int) -> Any:
        return {"image": super().__getitem__(index), "label": index}


def loader(dataset: Dataset[Any] | None = None, workers: int = 0, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset or Images(), options.pop("batch_size", 4), num_workers=workers, **options)


def looped(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch
        time.sleep(STEP_S)


def plain(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


def keeping(batches: Iterable[Any]) -> Iterator[Any]:
    kept = []
    for batch in batches:
        kept.append(batch)
        yield batch


def keeping_graphs(batches: Iterable[Any]) -> Iterator[Any]:
    layer, losses = torch.nn.Conv2d(3, 4, 3, stride=2), []
    for batch in batches:
        losses.append(layer(batch[:1].float()).relu().sum())
        yield batch


def keeping_features(batches: Iterable[Any]) -> Iterator[Any]:
    features = []
    for batch in batches:
        features.append(batch[0].numpy().copy())
        yield batch


def shuffling(batches: Iterable[Any]) -> Iterator[Any]:
    held: collections.deque[Any] = collections.deque(maxlen=20)
    for batch in batches:
        held.append(batch)
        yield batch


def training(batches: Iterable[Any]) -> Iterator[Any]:
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=4), torch.nn.Flatten(), torch.nn.LazyLinear(10)
    )
    network(torch.zeros(1, 3, SIDE, SIDE))
    optimizer = torch.optim.Adam(network.parameters())
    for batch in batches:
        network(batch.float()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield batch


def evaluating(batches: Iterable[Any]) -> Iterator[Any]:
    for step, batch in enumerate(batches):
        if step % 100 == 99:
            np.ones(64 << 20, np.uint8).sum()
        yield batch


def in_epochs(batches: Any) -> Iterator[Any]:
    while True:
        for _, batch in zip(range(200), batches, strict=False):
            yield batch


def mapped(batches: Iterable[Any]) -> Iterator[Any]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "data.bin")
        path.write_bytes(bytes(256 << 20))
        data = np.memmap(path, np.uint8, "r")
        for step, batch in enumerate(batches):
            data[(step << 18) % len(data) :][: 1 << 18].sum()
            yield batch


Loop = tuple[Callable[[], Any], Callable[[Any], Iterator[Any]]]
GROWING: dict[str, Loop] = {
    "cache in 2 workers": (lambda: loader(Images(caches=1 << 30), 2), plain),
    "cache in 1 worker": (lambda: loader(Images(caches=1 << 30), 1), plain),
    "cache without workers": (lambda: loader(Images(caches=1 << 30)), plain),
    "lru_cache of transforms": (lambda: loader(Cached(), 2), plain),
    "kept batches, no workers": (loader, keeping),
    "kept batches, 2 workers": (lambda: loader(None, 2, batch_size=2), keeping),
    "kept dicts, 1 worker": (lambda: loader(Named(), 1), keeping),
    "kept losses": (loader, keeping_graphs),
    "kept features, 2 workers": (lambda: loader(None, 2), keeping_features),
    "kept batches, generator": (
        lambda: (torch.ones((4, 3, SIDE, SIDE), dtype=torch.uint8) for _ in range(1 << 30)),
        keeping,
    ),
}
STEADY: dict[str, Loop] = {
    "no workers": (loader, plain),
    "2 workers": (lambda: loader(None, 2), plain),
    "images of many sizes": (lambda: loader(Images(sizes=100), 2, batch_size=1), plain),
    "20 held batches": (lambda: loader(None, 1), shuffling),
    "bounded cache": (lambda: loader(Images(caches=100), 2), plain),
    "training": (loader, training),
    "evaluation": (loader, evaluating),
    "workers anew each epoch": (lambda: loader(None, 2), in_epochs),
    "mapped file": (lambda: loader(None, 1), mapped),
    "generator": (lambda: (torch.ones(4, 3, SIDE, SIDE) for _ in range(1 << 30)), plain),
}
COPYING: dict[str, Loop] = {COPIED: (lambda: loader(Images(objects=3_000_000), 2, batch_size=16), plain)}


def run(name: str, folder: Path) -> None:
    """Run a loop, note its steps and, halfway, what the profile says."""
    make, train = (GROWING | STEADY | COPYING)[name]
    torch.set_num_threads(1)
    # Each batch of workers that is kept holds a file open.
    resource.setrlimit(resource.RLIMIT_NOFILE, 2 * resource.getrlimit(resource.RLIMIT_NOFILE)[1:])
    profiled = storebench.profile(make(), show=False)
    began, told = time.monotonic(), False
    steps = (folder / "steps").open("wb", buffering=0)  # a byte for each
    for step, _ in enumerate(looped(train(profiled))):
        steps.write(b".")
        passed_s = time.monotonic() - began
        if not told and passed_s > (TOLD_S if name in GROWING else STEADY_S):
            report: ProfileReport = profiled.report()
            memory = report.memory
            grown = memory.growth.full_step if memory and memory.growth else 0
            copied = memory.sizes["copied by workers"] if memory else 0
            told = True
            (folder / "told").write_text(
                f"{grown} {copied} {step}\n" + "\n".join(memory.lines() if memory else ())
            )
            if name not in GROWING:
                os._exit(0)


def outcome(name: str) -> tuple[int, int, int, str]:
    """Return the step that was told, the last one, the copied bytes, and what was said."""
    place = TemporaryDirectory(dir=".", ignore_cleanup_errors=True)  # workers may just be ending
    with place, contextlib.ExitStack() as stack:
        folder = Path(place.name).resolve()
        command = [sys.executable, "-m", __spec__.name if __spec__ else "", "--case", name, str(folder)]
        if name in GROWING:
            group = stack.enter_context(
                control_group(f"storebench-memory-{os.getpid()}-{[*GROWING].index(name)}", "memory")
            )
            limit = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
            (group.folder / limit).write_text(str(LIMIT_BYTES))
            command = ["sh", "-c", f'echo $$ > {group.folder}/cgroup.procs && exec "$@"', "sh", *command]
        # A killed process leaves its temporary files.
        environment = {**os.environ, "TMPDIR": str(folder)}
        subprocess.run(command, capture_output=True, timeout=240, check=False, env=environment)
        last = (folder / "steps").stat().st_size - 1
        if not (folder / "told").exists():
            return 0, last, 0, "ended before the profile was asked"
        figures, _, text = (folder / "told").read_text().partition("\n")
        full, copied, _ = map(int, figures.split())
        return full, last, copied, text


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="part of the names of loops")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        run(options.case[0], Path(options.case[1]))
        return
    grown = near = false = copies = 0
    names = [name for name in (*GROWING, *STEADY, *COPYING) if options.only in name]
    for name, (full, last, copied, text) in zip(names, map(outcome, names), strict=True):
        grown += name in GROWING and full > 0
        false += name in STEADY and (full > 0 or copied > 0)
        copies += name in COPYING and copied > 0
        near += name in GROWING and abs(full / last - 1.0) <= TOLERANCE
        ends = (
            f"full at {full:,}, was at {last:,}"
            if name in GROWING
            else f"full at {full:,}"
            if full
            else "steady"
        )
        print(f"{name:28} {ends}\n    " + text.replace("\n", "\n    "), flush=True)
    counts = [sum(name in kind for name in names) for kind in (GROWING, STEADY, COPYING)]
    print(
        f"growth found in {grown} of {counts[0]}, its end within {TOLERANCE:.0%} in {near}; "
        f"in {false} of {counts[1]} steady loops; copies in {copies} of {counts[2]}"
    )
    sys.exit(int(grown < counts[0] or near < 0.8 * counts[0] or false > 0 or copies < counts[2]))


if __name__ == "__main__":
    main()
