"""The object stores of one run: those that it names, and one of its own for all that are emulated here."""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from storebench.places.objects import copy_back, copy_there, has_store, measured
from storebench.places.servers import ObjectServer
from storebench.progress import Say
from storebench.results import PlaceFacts
from storebench.settings.words import Place
from storebench.system.processes import end_with_parent

P = ParamSpec("P")
T = TypeVar("T")


class Objects:
    """Places that hold stores until `running` is closed."""

    def __init__(self, running: contextlib.ExitStack) -> None:
        self._running = running
        self._own: ObjectServer | None = None
        self._known: dict[str, tuple[str, PlaceFacts]] = {}

    def holding(self, store: Path, place: Place, say: Say) -> tuple[str, PlaceFacts]:
        """Return the address of an object store that has the files of `store`, and what was achieved there."""
        key = place.removeprefix("copy:")
        if key not in self._known:
            url, facts = (place.url, None) if place.url else self._emulated(place, say)
            self._known[key] = url, apart(measured, url, facts)
        url, facts = self._known[key]
        direct = url if place.url or self._own is None else self._own.url
        if not apart(has_store, store, direct):
            say(f"copying {store.name} to {direct}")
            apart(copy_there, store, direct)
        return url, facts

    def _emulated(self, place: Place, say: Say) -> tuple[str, PlaceFacts]:
        if self._own is None:
            say("starting an object store on this machine")
            self._own = self._running.enter_context(ObjectServer())
        emulated = place.emulated or {}
        return self._own.behind(emulated.get("first-byte-ms"), emulated.get("mb-s"))


def copied_here(store: Path, url: str, target: Path) -> float:
    """Copy the files of a store from an object store into the folder `target`; return the seconds that it took."""
    return apart(copy_back, store, url, target)


def apart(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function in a process of its own: the client's threads do not survive a fork, and this process forks later."""
    with ProcessPoolExecutor(
        1, multiprocessing.get_context("fork"), initializer=end_with_parent, initargs=(signal.SIGKILL,)
    ) as pool:
        return pool.submit(work, *arguments, **named).result()
