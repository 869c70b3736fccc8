"""How long work says how far it is, without knowing whether a person, a log or nobody listens."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int, int], None]
"""Called with (done, total) as work goes on."""

Progress = Callable[[str], AbstractContextManager[Advance]]
"""Called with a title; for the time of the context, what it returns is told how far the work is."""

Say = Callable[[str], None]
"""Called with one line that a person who waits should see."""


@contextmanager
def silent(_title: str) -> Iterator[Advance]:
    """Show nothing."""
    yield lambda _done, _total: None


def mute(_line: str) -> None:
    """Say nothing."""
