"""How steady this machine's speed is from moment to moment: ``python -m benchmarks.steadiness [--seconds N]``.

The same short loop runs on each core in turn. A virtual machine shares its physical cores with neighbours that no counter of
its kernel shows: its steal time stays 0, and the loop takes up to twice as long. What such a machine measures has
wider intervals, and needs more rounds.
"""

import argparse
import os
import time
from collections.abc import Sequence

import numpy as np

ADDITIONS = 1_000_000
STEADY_MOST = 1.2
"""Most that the slowest tenth of loops on a steady machine takes, in units of the fastest tenth."""


def spread(seconds: Sequence[float]) -> float:
    """Return the time that nine in ten loops stay below over the time that one in ten stays below."""
    fast, slow = np.quantile(seconds, [0.1, 0.9])
    return float(slow / fast)


def loops(cores: Sequence[int], seconds: float) -> list[float]:
    """Run the loop on each core in turn for so long, at least twice on each, and return the seconds of each loop."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while len(took) < 2 * len(cores) or time.perf_counter() < end:
        os.sched_setaffinity(0, {cores[len(took) % len(cores)]})
        took.append(loop_s())
    return took


def loop_s() -> float:
    """Return the seconds that one loop takes."""
    start, total = time.perf_counter(), 0
    for number in range(ADDITIONS):
        total += number
    return time.perf_counter() - start


def main() -> None:
    """Print a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    took = loops(sorted(os.sched_getaffinity(0)), arguments.seconds)
    found = spread(took)
    verdict = "steady" if found <= STEADY_MOST else "not steady: expect wide intervals"
    print(
        f"{len(took)} loops, {1000 * float(np.median(took)):.1f} ms at the median; the slowest tenth takes at least {found:.2f} "
        f"times as long as the fastest tenth ({verdict}; {STEADY_MOST} is the limit)"
    )


if __name__ == "__main__":
    main()
