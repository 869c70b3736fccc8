"""Measure what else the machine does while a child process runs: other processes, steal, throttling.

Nothing here raises: a figure that cannot be read is None.
"""

import contextlib
import dataclasses
import os
import re
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from storebench.probes.counters import TICK_S
from storebench.probes.machine import cgroup_folders, read_text
from storebench.results import Conditions, disturbance

_USER, _NICE, _SYSTEM, _STEAL = 0, 1, 2, 7
"""Fields of a line of /proc/stat after the CPU's name. Interrupts are left out: most of them serve the cell's own I/O."""

_CLOCK_COUNTS = ("core_throttle_count", "package_throttle_count")


@dataclass(frozen=True, kw_only=True)
class _Totals:
    """Running totals at one moment."""

    at_s: float
    busy_s: float | None
    steal_s: float | None
    own_s: float
    throttled_s: float | None
    clock_throttles: int | None


class OtherWork:
    """Count the work of others from the moment it is made until `conditions`; children must have been waited for by then."""

    def __init__(self) -> None:
        self._cpus = sorted(os.sched_getaffinity(0))
        self._load = _load()
        self._before = _totals(self._cpus)

    def conditions(self, attempt: int = 1) -> Conditions:
        """Return the other work since this probe was made, with the verdict of the rule for disturbed replicates."""
        before, after = self._before, _totals(self._cpus)
        busy_s, steal_s = _grown(before.busy_s, after.busy_s), _grown(before.steal_s, after.steal_s)
        own_s = after.own_s - before.own_s
        conditions = Conditions(
            wall_s=after.at_s - before.at_s,
            cores=len(self._cpus),
            load=self._load,
            # The kernel counts in ticks, so a quiet machine may come out just below zero.
            others_cpu_s=None if busy_s is None else max(0.0, busy_s - own_s),
            steal_s=steal_s,
            throttled_s=_grown(before.throttled_s, after.throttled_s),
            clock_throttles=_counted(before.clock_throttles, after.clock_throttles),
            attempt=attempt,
        )
        return dataclasses.replace(conditions, disturbed=disturbance(conditions))


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _counted(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)


def _load() -> float | None:
    with contextlib.suppress(OSError):
        return os.getloadavg()[0]
    return None


def _totals(cpus: list[int]) -> _Totals:
    busy_s, steal_s = _cpu_seconds(cpus)
    own = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return _Totals(
        at_s=time.monotonic(),
        busy_s=busy_s,
        steal_s=steal_s,
        own_s=sum(usage.ru_utime + usage.ru_stime for usage in own),
        throttled_s=_throttled_s(),
        clock_throttles=_clock_throttles(cpus),
    )


def _cpu_seconds(cpus: list[int]) -> tuple[float | None, float | None]:
    """Return the seconds for which the CPUs ran processes, and those that were stolen from them."""
    lines = dict(re.findall(r"^cpu(\d+) (.*)$", read_text("/proc/stat") or "", re.MULTILINE))
    ticks = [[int(field) for field in lines[str(cpu)].split()] for cpu in cpus if str(cpu) in lines]
    if len(ticks) < len(cpus) or any(len(fields) <= _STEAL for fields in ticks):
        return None, None
    busy = sum(fields[_USER] + fields[_NICE] + fields[_SYSTEM] for fields in ticks)
    return busy * TICK_S, sum(fields[_STEAL] for fields in ticks) * TICK_S


def _throttled_s() -> float | None:
    """Return the seconds for which the quotas of this process's control groups stopped them; None without a quota."""
    throttled_s = []
    for folder in cgroup_folders("cpu"):
        text = read_text(folder / "cpu.stat") or ""
        for name, unit_s in (("throttled_usec", 1e-6), ("throttled_time", 1e-9)):
            count = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
            if count:
                throttled_s.append(int(count.group(1)) * unit_s)
    return max(throttled_s, default=None)


def _clock_throttles(cpus: list[int]) -> int | None:
    folders = [Path(f"/sys/devices/system/cpu/cpu{cpu}/thermal_throttle") for cpu in cpus]
    counts = [read_text(folder / name) for folder in folders for name in _CLOCK_COUNTS]
    known = [int(count) for count in counts if count is not None and count.isdecimal()]
    return sum(known) if known else None
