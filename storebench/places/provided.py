"""The object stores of one run: those that it names, and one of its own for all that are emulated here."""

import contextlib
from pathlib import Path

from storebench.places.objects import ObjectStore, about, ensure_objects, measured
from storebench.progress import Say
from storebench.places.servers import ObjectServer
from storebench.results import PlaceFacts
from storebench.settings.words import Place


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
            self._known[key] = self._named(place) if place.url else self._emulated(place, say)
        url, facts = self._known[key]
        ensure_objects(store, ObjectStore(self._own.url if self._own and not place.url else url), say)
        return url, facts

    @staticmethod
    def _named(place: Place) -> tuple[str, PlaceFacts]:
        store = ObjectStore(place.url)
        return place.url, measured(store, about(store))

    def _emulated(self, place: Place, say: Say) -> tuple[str, PlaceFacts]:
        if self._own is None:
            say("starting an object store on this machine")
            self._own = self._running.enter_context(ObjectServer())
        emulated = place.emulated or {}
        return self._own.behind(emulated.get("first-byte-ms"), emulated.get("mb-s"))
