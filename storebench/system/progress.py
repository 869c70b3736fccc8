"""Callbacks for progress and messages, independent of who receives them: a person, a log or no one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int, int], None]
"""Called with (done, total) as work proceeds."""

Progress = Callable[[str], AbstractContextManager[Advance]]
"""Called with a title; returns a context that yields the callback for the progress of the work."""

Say = Callable[[str], None]
"""Called with one line for a waiting user."""


@contextmanager
def silent(_title: str) -> Iterator[Advance]:
    """Show nothing."""
    yield lambda _done, _total: None


def mute(_line: str) -> None:
    """Print nothing."""
