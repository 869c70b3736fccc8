"""Imports that the garbage collector leaves alone."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Import without the garbage collector, and exempt everything that exists at the end from later collections.

    What torch's import makes stays until the process ends. The collector would go through it again and again: during the
    import, for a third of its time; in collections that fall into timed steps; and at the end of the process.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
