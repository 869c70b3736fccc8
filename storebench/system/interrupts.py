"""Interrupts (Ctrl-C, SIGTERM, a closed terminal) from the first line to the last: one line, exit code 130."""

import _signal  # type: ignore[import-not-found]  # `signal` adds enumerations to it, which take two milliseconds
import atexit
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would have to be loaded first
    from typing import Any, NoReturn

EXIT_INTERRUPTED = 130
LINE = "storebench: interrupted; nothing half-written was kept"

_NUMBERS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)
# Signals within this time of the first are the same interrupt; a closing terminal sends several.
_SAME_S = 1.0


class _State:
    """Whether `install` ran, an interrupt was raised, and its line written."""

    installed = seen = announced = False


def install() -> None:
    """End the process at once on an interrupt, with one line and exit code 130; there is nothing to clean up yet."""
    _handle(_leave)
    if not _State.installed:
        _State.installed = True
        sys.unraisablehook = _not_raised
        # Registered first, so called last: a signal while the interpreter shuts down would end it directly.
        atexit.register(_handle, _signal.SIG_IGN)


def seen() -> bool:
    """Return True after an interrupt in a `Raised` block of this process."""
    return _State.seen


def leave() -> "NoReturn":
    """End with exit code 130; after an interrupt in code compiled from text, CPython would end by SIGINT."""
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no other way to run them and exit with this code
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 - contextlib may not be loaded yet
            stream.flush()
        except (OSError, ValueError):
            pass  # its reader has gone, or it was closed
    os._exit(EXIT_INTERRUPTED)


def was_announced() -> bool:
    """Return True if the line was already written, and mark it as written."""
    before, _State.announced = _State.announced, True
    return before


class Raised:
    """Raise `KeyboardInterrupt` on an interrupt inside a with statement, so that its work can clean up."""

    def __enter__(self) -> None:
        _State.announced = False
        self._first_s: float | None = None
        self._before = _handle(self._raise)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        for number, before in self._before.items():
            _signal.signal(number, before)
        if self._first_s is not None and (error is None or isinstance(error, Exception)):
            raise KeyboardInterrupt from error

    def _raise(self, _number: int, _frame: object) -> None:
        if self._first_s is None or time.monotonic() - self._first_s > _SAME_S:
            self._first_s = time.monotonic()
            _State.seen = True
            raise KeyboardInterrupt


class Held:
    """Hold interrupts back for the time of a with statement that must not be cut in two, and is short.

    Processes that are started meanwhile inherit the signals that are blocked.
    """

    def __init__(self, blocked: tuple[int, ...] = _NUMBERS) -> None:
        self._blocked = blocked

    def __enter__(self) -> None:
        self._waiting = 0
        self._mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, self._blocked)
        # The mask is that of one thread: the kernel may give a signal to another, whose handler runs in this one.
        try:
            self._before = _handle(self._wait)
        except ValueError:  # it runs in another thread
            self._before = {}

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._mask)
        for number, before in reversed(self._before.items()):  # SIGINT last, whose handler may raise at once
            _signal.signal(number, before)
        if self._waiting:
            os.kill(os.getpid(), self._waiting)

    def _wait(self, number: int, _frame: object) -> None:
        self._waiting = number


def _handle(handler: "Any") -> "dict[int, Any]":
    """Set the handler of each signal that is not ignored, and return the handlers before."""
    ours = [number for number in _NUMBERS if _signal.getsignal(number) not in (_signal.SIG_IGN, None)]
    return {number: _signal.signal(number, handler) for number in ours}


def _not_raised(dropped: "sys.UnraisableHookArgs") -> None:
    """Print what Python drops in destructors and callbacks only for debugging."""
    if os.environ.get("STOREBENCH_DEBUG", "0") not in ("", "0"):
        sys.__unraisablehook__(dropped)


def _leave(_number: int, _frame: object) -> None:
    if not was_announced():
        try:  # noqa: SIM105 - contextlib may not be loaded yet
            os.write(2, f"{LINE}\n".encode())
        except OSError:
            pass  # the terminal has gone
    os._exit(EXIT_INTERRUPTED)
