"""How fast a torch DataLoader is with other numbers of workers, if nothing else runs."""

import contextlib
import copy
import os
import time
import warnings
from typing import Any

from torch.utils.data import DataLoader

_SECONDS = 2.0


def sweep(loader: "DataLoader[Any]") -> dict[int, float]:
    """Return batches per second by the number of workers, each from a few seconds without a loop; none if batches are too few."""
    cores = len(os.sched_getaffinity(0))
    counts = {0, cores, 2 * cores, loader.num_workers} | {1 << power for power in range(cores.bit_length())}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        rates = {count: _rate(_with_workers(loader, count)) for count in sorted(counts)}
    if not rates[loader.num_workers]:
        return {}
    return {count: rate for count, rate in rates.items() if rate}


def _with_workers(loader: "DataLoader[Any]", count: int) -> "DataLoader[Any]":
    other = copy.copy(loader)
    other._iterator = None  # noqa: SLF001 - workers that persist are those of the loader that was copied
    other.num_workers = count
    other.prefetch_factor = (loader.prefetch_factor or 2) if count else None
    return other


def _rate(loader: "DataLoader[Any]") -> float:
    """Return batches per second, from the first batch of the last worker on."""
    batches = iter(loader)
    with contextlib.suppress(StopIteration):
        for _ in range(max(1, loader.num_workers)):
            next(batches)
    began, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
        if time.perf_counter() - began >= _SECONDS:
            break
    return count / (time.perf_counter() - began)
