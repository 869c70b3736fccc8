"""The processes of cells and conversions: how they are started, and ended with all of their descendants."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from storebench.probes.code import cell_environment
from storebench.surroundings import Surroundings
from storebench.system.interrupts import Held
from storebench.system.processes import end_processes, expend, marked, started_here

GRACE_S = 3.0
"""Time for a process to end by itself before it is killed."""

_SOCKET_PATH_BYTES = 107
_SOCKET_NAME = "/pymp-12345678/listener-12345678"
_SHORT_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where batch systems give jobs folders with long names


def program(*arguments: str) -> list[str]:
    """Return the arguments with which an interpreter becomes the process of a replicate."""
    return ["-P", "-m", "storebench.worker", *arguments]


@contextlib.contextmanager
def started(
    command: list[str],
    scratch: Path,
    log: Path,
    around: Surroundings | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a cell's process. Unless it succeeds, it ends with the with statement, and so do all of its descendants."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            (around or Surroundings()).command(command),
            env={**cell_environment(), **variables_of(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        expend(process.pid)
        yield process
    finally:
        if process.poll() != 0:
            with Held():
                end(process)
                end_processes([scratch])


def exit_code(
    process: subprocess.Popen[bytes],
    timeout_s: float,
    each_second: Callable[[], None] | None = None,
) -> int | None:
    """Return the exit code of a process once it has ended, None if it ran out of time."""
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        try:
            return process.wait(left_s if each_second is None else min(1.0, left_s))
        except subprocess.TimeoutExpired:
            if each_second is None or left_s <= 1.0:
                return None
            each_second()


def end(process: subprocess.Popen[Any], grace_s: float = GRACE_S) -> None:
    """Ask a process to end, even a stopped one, and kill it if it does not; a process that has ended is no error."""
    process.terminate()
    process.send_signal(signal.SIGCONT)
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def variables_of(scratch: Path) -> dict[str, str]:
    """Return the environment variables that differ between the processes that this one starts for temporary folders."""
    variables = started_here(marked(scratch, {}))
    # torch puts its sockets into the folder for temporary files, and the kernel accepts no longer path for one.
    places = (str(scratch), os.environ.get("TMPDIR", ""), *_SHORT_PLACES)
    short = (
        place
        for place in places
        if place and len(os.fsencode(place)) + len(_SOCKET_NAME) <= _SOCKET_PATH_BYTES
    )
    if (place := next((place for place in short if os.access(place, os.W_OK | os.X_OK)), None)) is not None:
        variables["TMPDIR"] = place
    return variables
