"""Interrupts (Ctrl-C, SIGTERM, a closed terminal) from the program's first line to its last: one line, exit code 130.

`install` runs before anything else is imported, so this module imports only modules that Python itself has loaded by
then. A signal that was ignored when the program started (``nohup``) stays ignored.
"""

import _signal  # type: ignore[import-not-found]  # `signal` adds enumerations to it, which take two milliseconds
import _thread  # `threading` may not be loaded yet, and an import may be what an interrupt cuts
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

_LOOK_S = 0.02
"""Time between two looks at whether the main thread still acts on an interrupt."""

_SWALLOWED_S = 0.3
"""Time without acting on it after which an interrupt was swallowed, and is raised again."""


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

    Other people's code may swallow it: a library that tries whether something can be imported, a callback from C, a
    destructor. It is then raised again, until the block ends. If a library turned the interrupt into another error, or
    the block ended before it was raised again, the block still ends with `KeyboardInterrupt`.
    """

    def __init__(self) -> None:
        self._before: dict[int, object] = {}
        self._first_s: float | None = None
        self._swallowed = False
        self._watched = False

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
        if self._first_s is not None and (error is None or isinstance(error, Exception)):
            raise KeyboardInterrupt from error

    def _raise(self, number: int, _frame: object) -> None:
        if _State.held:
            _State.waiting = number
            return
        now = time.monotonic()
        if self._first_s is not None and now - self._first_s < _SAME_S and not self._swallowed:
            return
        self._first_s, self._swallowed = now, False
        _State.seen = True
        if not self._watched:
            self._watched = True
            _thread.start_new_thread(self._watch, (_thread.get_ident(),))
        raise KeyboardInterrupt

    def _watch(self, thread: int) -> None:
        """Raise the interrupt again in a thread once nothing acts on it any more."""
        acted_s = time.monotonic()
        while _State.block is self:
            time.sleep(_LOOK_S)
            if _acts_on_interrupt(thread):
                acted_s = time.monotonic()
            elif time.monotonic() - acted_s > _SWALLOWED_S and _State.block is self:
                self._swallowed, self._watched = True, False
                _signal.pthread_kill(thread, _signal.SIGINT)
                return


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


def _acts_on_interrupt(thread: int) -> bool:
    """Return whether a thread runs an ``except``, a ``finally`` or an ``__exit__`` that an interrupt led it into."""
    current = sys._current_exceptions().get(thread)  # noqa: SLF001 - it is documented
    error = current[1] if isinstance(current, tuple) else current  # a tuple before Python 3.12
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _not_raised(dropped: "sys.UnraisableHookArgs") -> None:
    """Print an exception that Python drops only for debugging; an interrupt among them is raised again.

    Destructors of libraries repeat errors that were already reported, such as a full disk.
    """
    swallowed = isinstance(dropped.exc_value, KeyboardInterrupt) and _State.block is not None
    if not swallowed and os.environ.get("STOREBENCH_DEBUG", "0") not in ("", "0"):
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
