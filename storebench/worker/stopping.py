"""How a replicate's process ends when it is told to, or when the runner is killed: its producers first."""

import multiprocessing
import signal
import sys
import time
from typing import NoReturn

from storebench.system.processes import end_with_parent

_PRODUCERS_END_S = 1.0
"""How long producers may take to end before they are killed."""


def end_with_the_runner() -> None:
    """End in order on SIGTERM, SIGINT and SIGHUP; the kernel sends SIGTERM when the runner is killed."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    end_with_parent(signal.SIGTERM)


def _stop(number: int, _frame: object) -> NoReturn:
    # Producers first: in the middle of a batch they would not notice the end, and live on.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch raises an error for each of them
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    deadline = time.monotonic() + _PRODUCERS_END_S
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
        child.kill()  # a producer that is stopped, or busy
    sys.exit(128 + number)
