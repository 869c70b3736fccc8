"""What `storebench.profile` costs: ``python -m benchmarks.profile_overhead``.

Two loops over one dataset, one of them profiled, take turns step by step, in random order, for three kinds of loader
and steps of a few milliseconds. So both have the same memory: where a dataset and its batches lie, and how often the kernel gives them
pages anew, is worth several percent by chance. What its threads take, beside both loops, is counted
apart. Exit code 1 where the profile adds more than 1% beyond doubt after its first ten seconds.
"""

import argparse
import ctypes
import gc
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import storebench
from benchmarks.turns import FEWEST_ROUNDS, Compared, words
from storebench.profiling.recorder import ALL_NS

MOST = 1.01
KEEP_MEMORY = {-4: 0, -1: 2**31 - 1}
"""Parameters of glibc's `mallopt`, M_MMAP_MAX and M_TRIM_THRESHOLD: freed memory stays with the process."""
STEPS, BATCH, SIDE = 120, 32, 128
"""A step takes about four milliseconds of one core."""
order = random.Random(7)


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


def epoch_of(
    loaders: tuple[Iterable[Any], Iterable[Any]], layer: Callable[[Any], Any]
) -> tuple[float, float]:
    """Return the seconds of an epoch of each loop, whose steps take turns."""
    gc.collect()
    loops = [iter(loader) for loader in loaders]  # the profile would time one that began beside its own
    held, seconds = [None, None], [0.0, 0.0]
    for _ in range(STEPS):
        for side in (0, 1) if order.getrandbits(1) else (1, 0):
            began = time.perf_counter()
            held[side], _ = next(loops[side])
            layer(held[side])
            seconds[side] += time.perf_counter() - began
    for loop in loops:
        next(loop, None)
    return seconds[0], seconds[1]


@torch.no_grad()
def main() -> None:
    """Print each loader's ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="for each loader")
    parser.add_argument("--only", default="", help="part of the names of loaders")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for parameter, value in KEEP_MEMORY.items():
        ctypes.CDLL(None).mallopt(parameter, value)
    layer = torch.nn.Conv2d(3, 8, 3, stride=2)
    is_more = False
    for name, make in ((name, make) for name, make in LOADERS.items() if options.only in name):
        images = Flipped()
        loaders = make(images), storebench.profile(make(images), show=False)
        epoch_of(loaders, layer)
        for part, part_s in (("at first", 1e-9 * ALL_NS), ("later", options.seconds)):
            began, threads_s = time.monotonic(), time.thread_time() - time.process_time()
            sides: tuple[list[float], list[float]] = ([], [])
            while len(sides[0]) < FEWEST_ROUNDS or time.monotonic() - began < part_s:
                for side, seconds in zip(sides, epoch_of(loaders, layer), strict=True):
                    side.append(seconds)
            threads_s += time.process_time() - time.thread_time()
            compared = Compared(before=sides[0], after=sides[1], elapsed_s=time.monotonic() - began)
            added_us, threads_us = compared.added_us(STEPS).mid, 1e6 * threads_s / STEPS / len(sides[0])
            step_ms, verdict = 1e3 * min(compared.before) / STEPS, words(compared, "profiled/plain", MOST)
            adds = f"{added_us:.0f} us added, threads {threads_us:.0f} us"
            print(f"{name}, {part}, {step_ms:.1f} ms per step, {adds}: {verdict}", flush=True)
        is_more = is_more or (compared.ratio.low or 0.0) > MOST
    sys.exit(int(is_more))


if __name__ == "__main__":
    main()
