"""Measure how much the speed of the cores varies from moment to moment, by the same short loop again and again."""

import os
import time
from collections.abc import Sequence

import numpy as np

STEADY_MOST = 1.2
"""Most that the slowest tenth of loops on a steady machine takes, in units of the fastest tenth."""

_ADDITIONS = 1_000_000


def spread(seconds: Sequence[float]) -> float:
    """Return the time that nine in ten loops of one core stay below over the time that one in ten stays below."""
    fast, slow = np.quantile(seconds, [0.1, 0.9])
    return float(slow / fast)


def loops(cores: Sequence[int], seconds: float) -> dict[int, list[float]]:
    """Run the loop on the cores in turn for so long, at least twice on each, and return the seconds of each loop by core."""
    took: dict[int, list[float]] = {core: [] for core in cores}
    allowed, end = os.sched_getaffinity(0), time.perf_counter() + seconds
    try:
        while len(took[cores[-1]]) < 2 or time.perf_counter() < end:
            for core in cores:
                os.sched_setaffinity(0, {core})
                took[core].append(loop_s())
    finally:
        os.sched_setaffinity(0, allowed)
    return took


def loop_s() -> float:
    """Return the seconds that one loop takes, some hundredths."""
    start, total = time.perf_counter(), 0
    for number in range(_ADDITIONS):
        total += number
    return time.perf_counter() - start
