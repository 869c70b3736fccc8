"""Child processes: they die first when memory runs out, end with their parent, and can be found again."""

import contextlib
import functools
import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from storebench.system.libc import LIBC

if TYPE_CHECKING:
    import psutil

start_program = subprocess.Popen
"""Starts every program of the package (``python -P -m storebench.worker``, ``storebench.ranks.agent``, ...).

A process that has imported the package may put a class here that forks instead, as the tests do.
"""

# Environment variable with the name of the temporary folder for which a process was started.
MARK = "STOREBENCH_SCRATCH"

# Environment variable with the id of the process that started this one; descendants do not inherit it.
_STARTER = "STOREBENCH_STARTER"

# Added to oom_score_adj: counts as half of the memory in addition to the process's own.
EXPENDABLE = 500

# Longest wait for other threads before a fork; threads that never rest are the caller's own.
SETTLING_S = 1.0

_MOST = 1000
_ENDING_S = 5.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def expend(pid: int | None = None) -> None:
    """Have the kernel kill a process, and those that it starts later, first when memory runs out."""
    path = Path("/proc", "self" if pid is None else str(pid), "oom_score_adj")
    # Any process may raise the value; without such a file the kernel chooses by size alone.
    with contextlib.suppress(OSError, ValueError):
        path.write_text(str(min(_MOST, int(path.read_text()) + EXPENDABLE)))


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the thread that started it ends."""
    LIBC.prctl(_PR_SET_PDEATHSIG, number)


def end_with_starter(number: signal.Signals) -> None:
    """Do the same, and send the signal now if the process that started this one has already ended (`started_here`)."""
    end_with_parent(number)
    starter = os.environ.pop(_STARTER, None)
    if starter is not None and os.getppid() != int(starter):
        os.kill(os.getpid(), number)


def started_here(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for a child of this process that calls `end_with_starter`."""
    return {**variables, _STARTER: str(os.getpid())}


def signal_name(code: int) -> str:
    """Return the name of the signal that ended a process, from its exit code, which is negative."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"SIGRTMIN{-code - signal.SIGRTMIN:+d}"


def started_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if there is no such process."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the name in parentheses, which may contain anything; the start time is field 22.
    return int(stat.rpartition(")")[2].split()[19])


def marked(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that mark a process as started for a temporary folder, so that it can be found."""
    return {**variables, MARK: folder.name}


def end_processes(folders: Collection[Path]) -> list[int]:
    """Kill every process of this user that was started for one of the folders, and wait until it has ended."""
    import psutil

    marks, ended = {folder.name for folder in folders}, set[int]()
    deadline = time.monotonic() + _ENDING_S
    # Repeat until none is left: a process may have forked just before it was killed.
    while (processes := _marked_processes(marks)) and time.monotonic() < deadline:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
                # Without memory, but still there, it holds its files and locks.
                while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
                    time.sleep(0.005)
        ended |= {process.pid for process in processes}
    return sorted(ended)


def _marked_processes(marks: Collection[str]) -> list["psutil.Process"]:
    import psutil

    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has ended, or this user may not inspect it
            mine = process.pid != os.getpid() and process.uids().effective == os.geteuid()
            if mine and process.environ().get(MARK) in marks:
                processes.append(process)
    return processes


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Import without the garbage collector, and exempt everything that exists at the end from later collections."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@functools.cache
def fork_when_settled() -> None:
    """From now on, let the other threads of this process finish what they are doing before each fork of it."""
    os.register_at_fork(before=wait_for_other_threads)


def wait_for_other_threads() -> None:
    """Wait until no other thread of this process has run at two moments a millisecond apart, or for `SETTLING_S`."""
    deadline = time.monotonic() + SETTLING_S
    quiet = 0
    while quiet < 2 and time.monotonic() < deadline:
        time.sleep(0.001)  # without the GIL, which such a thread may be waiting for
        quiet = 0 if _another_thread_runs() else quiet + 1


def _another_thread_runs() -> bool:
    this_thread = str(threading.get_native_id())
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            state = (thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2][:1]
            if state == "R" and thread.name != this_thread:
                return True
    return False
