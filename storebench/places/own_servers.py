"""The servers of one run: those that it names, and its own for everything that is emulated here."""

import contextlib
import shlex
from pathlib import Path

from storebench.places.copying import about, copy_there, extent, has_store, measured
from storebench.places.servers import SERVERS, PlaceServer
from storebench.record.schema import PlaceFacts
from storebench.settings.words import Place
from storebench.system.isolated import apart
from storebench.system.progress import Say


class Places:
    """Places that hold stores until `running` is closed."""

    def __init__(self, running: contextlib.ExitStack) -> None:
        self._running = running
        self._own: dict[str, PlaceServer] = {}
        self._known: dict[str, tuple[str, str, PlaceFacts]] = {}

    def holding(self, store: Path, place: Place, say: Say) -> tuple[str, PlaceFacts]:
        """Return the address of a server that has the files of `store`, and what was achieved there."""
        key, kept = place.removeprefix("copy:"), ""
        if place.url:
            kept = f"; they stay there until 'storebench place clean {shlex.quote(key)}'"
        if key not in self._known:
            if place.url:
                url, (facts, direct) = place.url, apart(about, place.url)
            else:
                if place.kind not in self._own:
                    say(f"starting a server on this machine ({place.kind})")
                    self._own[place.kind] = self._running.enter_context(SERVERS[place.kind]())
                server = self._own[place.kind]
                (url, facts), direct = server.behind(place.emulated), server.direct
            say(f"measuring {url} with 2 objects, 8 MiB{kept}")
            self._known[key] = url, direct, apart(measured, url, direct, facts)
        url, direct, facts = self._known[key]
        if not apart(has_store, store, direct):
            say(f"copying {store.name} to {url}: {extent(store)}{kept}")
            apart(copy_there, store, direct)
        return url, facts

    def counters(self, place: Place) -> str:
        """Return the address at which the server of a place counts what it serves; "" if it is not the run's own."""
        server = None if place.url else self._own.get(place.kind)
        return server.counters if server else ""
