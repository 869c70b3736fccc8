"""Callbacks for progress and messages, independent of who receives them: a person, a log or no one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

# Called with (done, total) as work proceeds.
Advance = Callable[[int, int], None]

# Called with a title; returns a context that yields the callback for the progress of the work.
Progress = Callable[[str], AbstractContextManager[Advance]]

# Called with one line for a waiting user.
Say = Callable[[str], None]


@contextmanager
def silent(_title: str) -> Iterator[Advance]:
    """Show nothing."""
    yield lambda _done, _total: None


def mute(_line: str) -> None:
    """Print nothing."""
