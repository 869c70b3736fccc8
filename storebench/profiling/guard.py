"""Keep failures of the profiler and the audit out of the user's program."""

import contextlib
import functools
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from storebench.system.unexpected import unexpected_line

_P = ParamSpec("_P")
_R = TypeVar("_R")
_G = TypeVar("_G", bound="Guard")


def say(text: str) -> None:
    """Write to standard error, if there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def is_handlers(error: Exception) -> bool:
    """Whether a caught error is the program's own, of a handler of signals such as torch's for workers that die."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {
        getattr(of, "__code__", None) for handler in handlers for of in (handler, type(handler).__call__)
    }
    below = error.__traceback__ and error.__traceback__.tb_next
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(below))


class Guard:
    """Attempts work of its own: the first failure is told, and nothing more is attempted."""

    has_failed = False

    def attempt(self, function: Callable[[], _R]) -> _R | None:
        if self.has_failed:
            return None
        try:
            return function()
        except Exception as error:
            if is_handlers(error):
                raise
            self.has_failed = True
            say(f"storebench: no longer watching; your program goes on. {unexpected_line(error)}")
            return None


def guarded(method: Callable[Concatenate[_G, _P], _R]) -> Callable[Concatenate[_G, _P], _R | None]:
    """Have a method of a guard return None if it fails, or something has failed before."""

    @functools.wraps(method)
    def attempt(self: _G, /, *args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        return self.attempt(functools.partial(method, self, *args, **kwargs))

    return attempt
