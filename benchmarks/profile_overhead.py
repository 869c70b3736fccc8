"""What `storebench.profile` costs: ``python -m benchmarks.profile_overhead``.

The same loop over the same loader takes turns (`benchmarks.turns`) with and without the profile, for three kinds of
loader and steps of a few milliseconds. Both sides read one dataset, and freed memory stays with the process: where
a dataset lies in memory, and how often the kernel gives a batch its pages anew, is worth 10% by chance. The clock
counts CPU time, workers included, which other programs disturb least. Exit code 1 where the profile adds more than
1% beyond doubt.
"""

import argparse
import ctypes
import functools
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, Dataset

import storebench
from benchmarks.turns import take_turns, words

MOST = 1.01
KEEP_MEMORY = {-4: 0, -1: 2**31 - 1}
"""Parameters of glibc's `mallopt`: M_MMAP_MAX and M_TRIM_THRESHOLD."""
STEPS, BATCH, SIDE = 60, 32, 128
"""A step takes about four milliseconds of one core."""


class Flipped(Dataset[Any]):
    """Images in memory that are cropped, flipped and scaled."""

    def __init__(self) -> None:
        self.images = torch.randint(0, 255, (64, 3, SIDE + 8, SIDE + 8), dtype=torch.uint8)

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index % 64, :, index % 8 : index % 8 + SIDE, :-8]
        return image.flip(2).float().div(255), index % 10

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of an epoch without a loader."""
        for step in range(STEPS):
            yield torch.stack([self[step * BATCH + index][0] for index in range(BATCH)]), None


LOADERS: dict[str, Callable[[Flipped], Iterable[Any]]] = {
    "DataLoader without workers": lambda images: DataLoader(images, batch_size=BATCH),
    "DataLoader, 1 worker": lambda images: DataLoader(images, BATCH, num_workers=1, persistent_workers=True),
    "generator": lambda images: images,
}


def cpu_s() -> float:
    """Return the CPU seconds of this process and its workers so far."""
    children = [psutil.Process(child.pid).cpu_times() for child in multiprocessing.active_children()]
    return time.process_time() + sum(times.user + times.system for times in children)


@torch.no_grad()
def main() -> None:
    """Print each loader's ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="for each loader")
    parser.add_argument("--only", default="", help="part of the names of loaders")
    parser.add_argument("--wall", action="store_true", help="count wall time, for a quiet machine")
    options = parser.parse_args()
    clock = time.perf_counter if options.wall else cpu_s
    torch.set_num_threads(1)
    for parameter, value in KEEP_MEMORY.items():
        ctypes.CDLL(None).mallopt(parameter, value)
    layer = torch.nn.Conv2d(3, 8, 3, stride=2)
    is_more = False
    for name, make in ((name, make) for name, make in LOADERS.items() if options.only in name):
        images = Flipped()
        plain, profiled = make(images), storebench.profile(make(images), show=False)

        def turn(_number: int, loader: Iterable[Any]) -> float:
            began = clock()
            for images, _ in loader:
                layer(images)
            return clock() - began

        compared = take_turns(
            functools.partial(turn, loader=plain),
            functools.partial(turn, loader=profiled),
            options.seconds,
            turns=3,
        )
        step_ms = 1e3 * min(compared.before) / STEPS
        verdict, added_us = words(compared, "profiled/plain", MOST), compared.added_us(STEPS).mid
        print(f"{name}, {step_ms:.1f} ms per step, {added_us:.0f} us added: {verdict}", flush=True)
        is_more = is_more or (compared.ratio.low or 0.0) > MOST
    sys.exit(int(is_more))


if __name__ == "__main__":
    main()
