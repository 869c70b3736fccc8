"""End a replicate's process on a signal, or when the process that started it is killed."""

import faulthandler
import multiprocessing
import signal
import sys
import time
from typing import NoReturn

from storebench.ranks.launch import TELL_STACKS
from storebench.system.processes import end_with_starter

_PRODUCERS_END_S = 1.0
"""Seconds that producers may take to end before they are killed."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def end_with_the_runner() -> None:
    """Handle SIGTERM, SIGINT and SIGHUP by ending the producers first; the kernel sends SIGTERM if the runner is killed."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    end_with_starter(signal.SIGTERM)


def end_at_once() -> None:
    """Let SIGTERM, SIGINT and SIGHUP end the process without a word, even while it waits for another rank in C code."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def tell_stacks_when_asked() -> None:
    """Write the stacks of all threads when `TELL_STACKS` comes; producers that are forked from now on do so as well."""
    faulthandler.register(TELL_STACKS, all_threads=True)


def _stop(number: int, _frame: object) -> NoReturn:
    # Producers first: one in the middle of a batch would not notice that this process has ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises an error for each child that ends
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    deadline = time.monotonic() + _PRODUCERS_END_S
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
        child.kill()  # it is stopped or busy
    sys.exit(128 + number)
