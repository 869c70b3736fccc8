"""How steady this machine's speed is from moment to moment: ``python -m benchmarks.steadiness [--seconds N]``.

The same short loop runs on the cores in turn (`storebench.probes.rates`). What a machine measures whose speed varies
has wider intervals, and needs more rounds. Nothing else should run meanwhile; a line says how much did. `storebench doctor`
does the same for two seconds.
"""

import argparse
import os
import time

import numpy as np
import psutil

from storebench.probes.rates import STEADY_MOST, loops, spread


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
