"""How fast a torch DataLoader is with other numbers of workers, if nothing else runs."""

import contextlib
import os
import time
from typing import Any

from torch.utils.data import DataLoader

_SECONDS = 2.0


def sweep(loader: "DataLoader[Any]", seconds: float = _SECONDS) -> dict[int, float]:
    """Return batches per second by the number of workers, each from a few seconds without a loop."""
    cores = len(os.sched_getaffinity(0))
    counts = {0, cores, 2 * cores, loader.num_workers} | {1 << power for power in range(cores.bit_length())}
    return {count: _rate(_with_workers(loader, count), seconds) for count in sorted(counts)}


def _with_workers(loader: "DataLoader[Any]", count: int) -> "DataLoader[Any]":
    options: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_sampler is not None and hasattr(loader.dataset, "__getitem__"):
        options = {"batch_sampler": loader.batch_sampler}
    if count:
        options |= {
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    return DataLoader(
        loader.dataset,
        num_workers=count,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        pin_memory=loader.pin_memory,
        **options,
    )


def _rate(loader: "DataLoader[Any]", seconds: float) -> float:
    """Return batches per second, from the first batch of the last worker on."""
    batches = iter(loader)
    with contextlib.suppress(StopIteration):
        for _ in range(max(1, loader.num_workers)):
            next(batches)
    began, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
        if time.perf_counter() - began >= seconds:
            break
    return count / (time.perf_counter() - began)
