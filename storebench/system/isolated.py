"""Run a function in a forked process with limits of time and memory: a library's crash ends only that process."""

import faulthandler
import multiprocessing
import os
import resource
import signal
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ParamSpec, TypeVar

import psutil

from storebench.errors import CellFailedError, CorruptDataError, StorebenchError
from storebench.system.interrupts import Held
from storebench.system.processes import end_with_parent, signal_name
from storebench.system.unexpected import summary
from storebench.units import format_bytes

P = ParamSpec("P")
T = TypeVar("T")


def run_isolated(work: Callable[[], T], *, doing: str, where: Path, limit_s: float, memory_bytes: int) -> T:
    """Call a function that reads a file in a forked process, and return its result; `doing` begins its errors."""

    def ended(how: str, state: str = "damaged") -> CorruptDataError:
        hint = f"The file is probably {state}: check it with the program that wrote it."
        return CorruptDataError(f"{doing} {how}", where=where, hint=hint)

    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_answer, args=(work, sender, receiver, memory_bytes), daemon=True
    )
    try:
        # Blocked signals are inherited, so this process alone decides what an interrupt means.
        with Held(), warnings.catch_warnings():
            # Python warns of a fork beside other threads. This child waits for none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        sender.close()
        if not receiver.poll(limit_s):
            raise ended(f"took longer than {limit_s:.0f} s", "too large or damaged")
        try:
            result, error = receiver.recv()
        except (EOFError, OSError):
            process.join()
            code = process.exitcode or 0
            ending = signal_name(code) if code < 0 else f"exit code {code}"
            raise ended(f"ended {'by' if code < 0 else 'with'} {ending}") from None
    finally:
        if process.pid is not None:
            process.kill()
            process.join()
        receiver.close()
    if isinstance(error, MemoryError):
        raise ended(
            f"takes more than {format_bytes(memory_bytes)} of memory", "too large or damaged"
        ) from None
    if error is not None:
        raise error
    answer: T = result
    return answer


def _answer(work: Callable[[], T], sender: Connection, receiver: Connection, memory_bytes: int) -> None:
    receiver.close()
    end_with_parent(signal.SIGKILL)
    # What a library prints before it crashes is discarded.
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = psutil.Process().memory_info().data + memory_bytes
    resource.setrlimit(
        resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
    )
    result: T | None = None
    error: Exception | None = None
    try:
        result = work()
    except StorebenchError as expected:
        error = expected
    except MemoryError:
        error = MemoryError()
    except Exception as unknown:  # noqa: BLE001 - whatever it is, it belongs to the caller: there it is raised
        error = RuntimeError(summary(unknown))
        error.add_note("".join(traceback.format_exception(unknown)))
    sender.send((result, error))


def apart(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function in a forked process, so that it leaves no library's thread to this one, which may fork later."""
    with ProcessPoolExecutor(
        1, multiprocessing.get_context("fork"), initializer=end_with_parent, initargs=(signal.SIGKILL,)
    ) as pool:
        try:
            return pool.submit(work, *arguments, **named).result()
        except BrokenProcessPool:
            raise CellFailedError("the process that was to do it was killed") from None
