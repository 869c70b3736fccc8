"""Processes that this one starts: they die before it when memory runs out, end with it, and can be found again.

A process that is started for a temporary folder carries the folder's name in its environment (`MARK`), and so does
everything that it starts. `end_processes` finds them by that, whatever became of those that started them.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

MARK = "STOREBENCH_SCRATCH"
"""Environment variable with the name of the temporary folder that a process was started for."""

EXPENDABLE = 500
"""Added to oom_score_adj: as if the process used half of the memory more than it does."""

_MOST = 1000
_ENDING_S = 5.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def expend(pid: int | None = None) -> None:
    """Have the kernel kill a process, and those that it starts later, before others when memory runs out.

    Parameters
    ----------
    pid
        The process; None is this one.
    """
    path = Path("/proc", "self" if pid is None else str(pid), "oom_score_adj")
    # Raising it is permitted to everybody; where there is no such file the kernel chooses by size alone.
    with contextlib.suppress(OSError, ValueError):
        path.write_text(str(min(_MOST, int(path.read_text()) + EXPENDABLE)))


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def started_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None where there is no such process.

    Id and start together name one process for good: ids are used again.
    """
    try:
        stat = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the name in parentheses, which may hold anything; the start is the 22nd.
    return int(stat.rpartition(")")[2].split()[19])


def own_name() -> str:
    """Return a word that no other process on this machine has, ever: see `is_dead`."""
    return f"{_namespace()}-{os.getpid()}-{started_ticks(os.getpid())}"


def is_dead(name: str) -> bool:
    """Return whether the process that a word of `own_name` names has gone; a container's is known to the container."""
    namespace, pid, ticks = name.split("-")
    return namespace == str(_namespace()) and str(started_ticks(int(pid))) != ticks


def _namespace() -> int:
    """Return the number of the namespace in which ids of processes are counted."""
    return Path("/proc/self/ns/pid").stat().st_ino


def marked(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for a process that is started for a temporary folder: by them it is found."""
    return {**variables, MARK: folder.name}


def end_processes(folders: Collection[Path]) -> list[int]:
    """Kill every process of this user that was started for one of the folders, and wait until it has gone.

    Stopped processes die of it as well. Returns the ids.
    """
    marks = {f"{MARK}={folder.name}".encode() for folder in folders}
    ended: set[int] = set()
    deadline = time.monotonic() + _ENDING_S
    # Again until none is left: a process may have forked just before it was killed.
    while (found := {pid for pid in _own_processes() if _kill(pid, marks)}) and time.monotonic() < deadline:
        ended |= found
        time.sleep(0.01)
    return sorted(ended)


def _own_processes() -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if folder.stat().st_uid == os.geteuid():
                    yield int(folder.name)


def _kill(pid: int, marks: AbstractSet[bytes]) -> bool:
    """Kill a process if it carries one of the marks; return whether it does."""
    try:
        # A handle: the process that is looked at is the one that is killed, even if it ends in between.
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        variables = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
        if marks.isdisjoint(variables):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False  # it has ended, or is not ours to look at
    finally:
        os.close(handle)
    return True
