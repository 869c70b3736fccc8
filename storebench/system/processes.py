"""Child processes: they die first when memory runs out, end with their parent, and can be found again.

A process that is started for a temporary folder carries the folder's name in its environment (`MARK`), and so do its
descendants. `end_processes` finds them by that name, even after the processes that started them have ended.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from storebench.system.libc import LIBC

MARK = "STOREBENCH_SCRATCH"
"""Environment variable with the name of the temporary folder for which a process was started."""

_STARTER = "STOREBENCH_STARTER"
"""Environment variable with the id of the process that started this one; descendants do not inherit it."""

EXPENDABLE = 500
"""Added to oom_score_adj: counts as half of the memory in addition to the process's own."""

_MOST = 1000
_ENDING_S = 5.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def expend(pid: int | None = None) -> None:
    """Have the kernel kill a process, and those that it starts later, first when memory runs out.

    Parameters
    ----------
    pid
        The process; None is this one.
    """
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
    """Return the name of the signal that ended a process, from its exit code, which is negative.

    Real-time signals have no names of their own: they are counted from the first one, "SIGRTMIN+1".
    """
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"SIGRTMIN{-code - signal.SIGRTMIN:+d}"


def started_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if there is no such process.

    Process id and start time together identify a process permanently, although ids are reused.
    """
    try:
        stat = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the name in parentheses, which may contain anything; the start time is field 22.
    return int(stat.rpartition(")")[2].split()[19])


def own_name() -> str:
    """Return a name for this process that no other process on this machine ever has; see `is_dead`."""
    return f"{_namespace()}-{os.getpid()}-{started_ticks(os.getpid())}"


def is_dead(name: str) -> bool:
    """Return whether the process with a name from `own_name` has ended; only its own container can tell."""
    namespace, pid, ticks = name.split("-")
    return namespace == str(_namespace()) and str(started_ticks(int(pid))) != ticks


def _namespace() -> int:
    """Return the number of the PID namespace of this process."""
    return Path("/proc/self/ns/pid").stat().st_ino


def marked(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that mark a process as started for a temporary folder, so that it can be found."""
    return {**variables, MARK: folder.name}


def end_processes(folders: Collection[Path]) -> list[int]:
    """Kill every process of this user that was started for one of the folders, and wait until it has ended.

    This includes stopped processes. Returns their ids.
    """
    marks = {f"{MARK}={folder.name}".encode() for folder in folders}
    ended: set[int] = set()
    deadline = time.monotonic() + _ENDING_S
    # Repeat until none is left: a process may have forked just before it was killed.
    while killed := {pid: handle for pid in _own_processes() if (handle := _kill(pid, marks)) is not None}:
        ended |= killed.keys()
        for handle in killed.values():
            _wait(handle, deadline)
            os.close(handle)
        if time.monotonic() > deadline:
            break
    return sorted(ended)


def _wait(handle: int, deadline: float) -> None:
    """Wait until a process has ended; without memory, but still there, it holds its files and locks."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll(max(0, round(1000 * (deadline - time.monotonic()))))


def _own_processes() -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if folder.stat().st_uid == os.geteuid():
                    yield int(folder.name)


def _kill(pid: int, marks: AbstractSet[bytes]) -> int | None:
    """Kill a process if it carries one of the marks; return a handle of it, or None if it carries none."""
    try:
        # Through a handle, so that the inspected process is the one that is killed, even if it ends in between.
        handle = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        variables = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
        if not marks.isdisjoint(variables):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            return handle
    except OSError:
        pass  # it has ended, or this user may not inspect it
    os.close(handle)
    return None
