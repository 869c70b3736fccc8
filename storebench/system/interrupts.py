"""Interrupts (Ctrl-C, SIGTERM, a closed terminal) from the program's first line to its last: one line, exit code 130.

`install` runs before anything else is imported, so this module imports only modules that Python itself has loaded by
then. A signal that was ignored when the program started (``nohup``) stays ignored.
"""

import _signal  # type: ignore[import-not-found]  # `signal` adds enumerations to it, which take two milliseconds
import atexit
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` would have to be loaded first
    from typing import NoReturn

EXIT_INTERRUPTED = 130
LINE = "storebench: interrupted; nothing half-written was kept"

_NUMBERS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)
_SAME_S = 1.0
"""Signals within this time of the first are the same interrupt; a closing terminal sends several."""

_AGAIN_S = 0.02
"""Delay before an interrupt that was lost in a destructor is raised again."""


class _State:
    """State of interrupts in this process.

    Attributes
    ----------
    seen
        Whether an interrupt was raised in a `Raised` block.
    announced
        Whether the line has been written.
    block
        The `Raised` block that is active.
    held
        Number of active `Held` blocks.
    waiting
        The signal that came in one of them, or 0.
    """

    seen = False
    announced = False
    installed = False
    block: "Raised | None" = None
    held = 0
    waiting = 0


def install() -> None:
    """End the process at once on an interrupt, with one line and exit code 130; there is nothing to clean up yet.

    Within a `Raised` block, that block's handler applies instead. Calling this twice is harmless.
    """
    for number in _NUMBERS:
        if _is_ours(number):
            _signal.signal(number, _leave)
    if not _State.installed:
        _State.installed = True
        sys.unraisablehook = _not_raised
        # Registered first and so called last: a signal while the interpreter shuts down would otherwise end it directly.
        atexit.register(_ignore)


def seen() -> bool:
    """Return whether an interrupt was raised in a `Raised` block of this process."""
    return _State.seen


def leave() -> "NoReturn":
    """End this process, which an interrupt has stopped, with exit code 130.

    Python alone does not do that reliably: if the interrupt passed through code that was compiled from text, such as the
    methods that `dataclasses` generates, CPython ends by SIGINT regardless of the requested exit code.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no other way to run them and exit with this code
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 - contextlib may not be loaded yet
            stream.flush()
        except (OSError, ValueError):
            pass  # its reader has gone, or it was closed
    os._exit(EXIT_INTERRUPTED)


def was_announced() -> bool:
    """Return whether the line was already written, and mark it as written."""
    before, _State.announced = _State.announced, True
    return before


class Raised:
    """Raise `KeyboardInterrupt` on an interrupt inside a with statement, so that its work can clean up.

    If a library turned the interrupt into another error, the block still ends with `KeyboardInterrupt`.
    """

    def __init__(self) -> None:
        self._before: dict[int, object] = {}
        self._first_s: float | None = None
        self._lost = False

    def __enter__(self) -> None:
        _State.announced, _State.block = False, self
        for number in _NUMBERS:
            if _is_ours(number):
                self._before[number] = _signal.getsignal(number)
                _signal.signal(number, self._raise)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        _State.block = None
        for number, before in self._before.items():
            _signal.signal(number, before)
        if self._lost or (self._first_s is not None and isinstance(error, Exception)):
            raise KeyboardInterrupt from error

    def lost(self) -> None:
        """Raise the interrupt again shortly: Python dropped it because it was raised in a destructor or a callback."""
        import threading

        self._lost = True
        again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), _signal.SIGINT))
        again.daemon = True
        again.start()

    def _raise(self, number: int, _frame: object) -> None:
        if _State.held:
            _State.waiting = number
            return
        now = time.monotonic()
        if self._first_s is not None and now - self._first_s < _SAME_S and not self._lost:
            return
        self._first_s, self._lost = now, False
        _State.seen = True
        raise KeyboardInterrupt


class Held:
    """Hold interrupts back for the time of a with statement that must not be cut in two, and is short.

    The kernel may deliver a signal to a thread of a library, which blocks none; it is raised when the statement ends.

    Parameters
    ----------
    numbers
        The signals that this thread blocks, and every process that it starts meanwhile.
    """

    def __init__(self, numbers: tuple[int, ...] = _NUMBERS) -> None:
        self._numbers = numbers
        self._before: object = None

    def __enter__(self) -> None:
        _State.held += 1
        self._before = _signal.pthread_sigmask(_signal.SIG_BLOCK, self._numbers)

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        _State.held -= 1
        waiting = 0 if _State.held else _State.waiting
        if waiting:
            _State.waiting = 0
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._before)
        if waiting:
            os.kill(os.getpid(), waiting)


def _is_ours(number: int) -> bool:
    """Return whether a signal is neither ignored nor handled by code that Python cannot restore."""
    return _signal.getsignal(number) not in (_signal.SIG_IGN, None)


def _not_raised(dropped: "sys.UnraisableHookArgs") -> None:
    """Handle an exception that Python drops: raise an interrupt again, and print others only for debugging.

    Destructors of libraries repeat errors that were already reported, such as a full disk.
    """
    if isinstance(dropped.exc_value, KeyboardInterrupt) and _State.block is not None:
        _State.block.lost()
    elif os.environ.get("STOREBENCH_DEBUG", "0") not in ("", "0"):
        sys.__unraisablehook__(dropped)


def _ignore() -> None:
    """Ignore interrupts from here on, in whichever thread the kernel delivers them: all work is finished and reported."""
    for number in _NUMBERS:
        if _is_ours(number):
            _signal.signal(number, _signal.SIG_IGN)


def _leave(_number: int, _frame: object) -> None:
    if not was_announced():
        try:  # noqa: SIM105 - contextlib may not be loaded yet
            os.write(2, f"{LINE}\n".encode())
        except OSError:
            pass  # the terminal has gone
    os._exit(EXIT_INTERRUPTED)
