"""How steady this machine's speed is from moment to moment: ``python -m benchmarks.steadiness [--seconds N]``.

The same short loop runs on the cores in turn. A virtual machine shares its physical cores with neighbours, and its steal time shows
only a part of what they take: the loop also takes longer while it runs. What such a machine measures has wider
intervals, and needs more rounds. Nothing else should run meanwhile; a line says how much did.
"""

import argparse
import os
import time
from collections.abc import Sequence

import numpy as np
import psutil

ADDITIONS = 1_000_000
STEADY_MOST = 1.2
"""Most that the slowest tenth of loops on a steady machine takes, in units of the fastest tenth."""


def spread(seconds: Sequence[float]) -> float:
    """Return the time that nine in ten loops of one core stay below over the time that one in ten stays below."""
    fast, slow = np.quantile(seconds, [0.1, 0.9])
    return float(slow / fast)


def loops(cores: Sequence[int], seconds: float) -> dict[int, list[float]]:
    """Run the loop on the cores in turn for so long, at least twice on each, and return the seconds of each loop by core."""
    took: dict[int, list[float]] = {core: [] for core in cores}
    allowed, end = os.sched_getaffinity(0), time.perf_counter() + seconds
    while len(took[cores[-1]]) < 2 or time.perf_counter() < end:
        for core in cores:
            os.sched_setaffinity(0, {core})
            took[core].append(loop_s())
    os.sched_setaffinity(0, allowed)
    return took


def loop_s() -> float:
    """Return the seconds that one loop takes."""
    start, total = time.perf_counter(), 0
    for number in range(ADDITIONS):
        total += number
    return time.perf_counter() - start


def main() -> None:
    """Print what varied, and what else ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    before, own_before, start = psutil.cpu_times(), time.process_time(), time.perf_counter()
    by_core = loops(cores, arguments.seconds)
    wall, own = time.perf_counter() - start, time.process_time() - own_before
    after = psutil.cpu_times()
    found = max(spread(took) for took in by_core.values())
    verdict = "steady" if found <= STEADY_MOST else "not steady: expect wide intervals"
    everything = [took for some in by_core.values() for took in some]
    print(
        f"{len(everything)} loops, {1000 * float(np.median(everything)):.1f} ms at the median; on the least steady core the slowest tenth "
        f"takes at least {found:.2f} times as long as the fastest tenth ({verdict}; {STEADY_MOST} is the limit)"
    )
    busy = sum(getattr(after, name) - getattr(before, name) for name in ("user", "nice", "system"))
    print(
        f"steal time: {(after.steal - before.steal) / wall:.1%} of one core; "
        f"other processes: {max(0.0, busy - own) / wall:.1%} of one core"
    )


if __name__ == "__main__":
    main()
