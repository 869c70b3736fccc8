"""Cores that other processes use while a benchmark runs, which distinguishes a busy machine from a slow one."""

import os
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE_FIELDS = (3, 4)  # idle and iowait, of the fields after "cpu"
_COUNTED_FIELDS = 8  # user to steal; user includes guest time
_SHORTEST_S = 0.1  # the kernel counts in ticks of 10 ms


class OthersProbe:
    """Count the CPU time of the whole machine, less that of this process and its descendants.

    Time that a hypervisor gave to other machines (steal) counts as used by others.
    """

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._before = _others_ticks()

    def cores(self) -> float | None:
        """Return the cores that others used on average since the probe was made; None if that cannot be counted."""
        took_s = time.monotonic() - self._started_s
        after = _others_ticks()
        if self._before is None or after is None or took_s < _SHORTEST_S:
            return None
        return max(0.0, (after - self._before) / _TICKS_PER_S / took_s)


def _others_ticks() -> float | None:
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    except (OSError, ValueError, IndexError):
        return None
    busy = sum(
        value for position, value in enumerate(fields[:_COUNTED_FIELDS]) if position not in _IDLE_FIELDS
    )
    return busy - _own_ticks()


def _own_ticks() -> int:
    """Return the ticks of this process, its living descendants, and their children that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            # The name, in parentheses, may hold anything; the fields after it are state, ppid and so on.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        parents[int(entry.name)] = int(fields[1])
        ticks[int(entry.name)] = sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime
    me = os.getpid()
    return sum(count for pid, count in ticks.items() if _descends(pid, me, parents))


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    seen = 0
    while pid and pid != ancestor and seen < len(parents):
        pid, seen = parents.get(pid, 0), seen + 1
    return pid == ancestor
