"""Whole stores copied to a place and back, and what was achieved there."""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from storebench.places.objects import MissingFileError, ObjectStore, PlaceFailedError
from storebench.record.manifest import MANIFEST_NAME
from storebench.record.schema import PlaceFacts
from storebench.units import number_of, rounded_bytes

# The file in which a server of the run describes itself and its emulation.
ABOUT = ".storebench-place.json"

# Requests in flight while a whole store is copied.
COPYING = 16

_PROBES = 9

# Small requests end after this time; large ones grow until one takes a third of it.
_PROBE_S = 3.0
_PROBE_BYTES = 8 << 20

# The prefix of all that runs put into a place: there may be other objects beside it.
_OWN = "storebench-copies"
_PROBE = f"{_OWN}/probe"


def announce(url: str, facts: PlaceFacts) -> None:
    """Store at a place what it is, so that every run that reads there records it."""
    ObjectStore(url).put(ABOUT, json.dumps(asdict(facts)).encode())


def about(url: str) -> PlaceFacts:
    """Return the facts of a place: those that a server of the run wrote, or only the address of another one."""
    try:
        return PlaceFacts(**json.loads(ObjectStore(url).get(ABOUT)))
    except (MissingFileError, ValueError, TypeError):
        return PlaceFacts(server=f"the server at {urlsplit(url).netloc}")


def holds(url: str, key: str, content: bytes) -> bool:
    """Whether a place has an object with this content."""
    try:
        return ObjectStore(url).get(key) == content
    except MissingFileError:
        return False


def measured(url: str, direct: str, facts: PlaceFacts) -> PlaceFacts:
    """Return the facts of a place with the time of a small request and the rate of a large one, as they are now.

    A place that cannot be written stays unmeasured.
    """
    client, behind = ObjectStore(url), ObjectStore(direct)
    if not holds(url, f"{_PROBE}/small", b"1"):
        try:
            behind.put(f"{_PROBE}/large", bytes(_PROBE_BYTES))
            behind.put(f"{_PROBE}/small", b"1")
        except PlaceFailedError:
            return facts
    begun, small_s = time.perf_counter(), list[float]()
    while len(small_s) < 2 or (len(small_s) < _PROBES and time.perf_counter() - begun < _PROBE_S):
        small_s.append(_seconds(lambda: client.get(f"{_PROBE}/small")))
    # Parts first, which tell a slow line soon; then the whole object, for servers that serve ranges slowly.
    for size in (_PROBE_BYTES >> 6, _PROBE_BYTES >> 3, _PROBE_BYTES):
        part, tries = ((0, size), 1) if size < _PROBE_BYTES else ((), 3)
        request = partial(client.get, f"{_PROBE}/large", *part)
        sent_s = min(_seconds(request) for _ in range(tries)) - min(small_s)
        if sent_s > _PROBE_S / 3:
            break
    rate = float(f"{size / sent_s / 1e6:.4g}") if sent_s > 0 else None
    return replace(facts, first_byte_ms=round(1000 * statistics.median(small_s), 2), mb_s=rate)


def _seconds(request: Callable[[], object]) -> float:
    begun = time.perf_counter()
    request()
    return time.perf_counter() - begun


def store_key(store: Path) -> str:
    """Return the part of all keys of a store's objects: its dataset and its name."""
    return f"{_OWN}/{store.parent.name}/{store.name}"


def has_store(store: Path, url: str) -> bool:
    """Whether a place has the files of this store: its manifest is copied last."""
    return holds(url, f"{store_key(store)}/{MANIFEST_NAME}", (store / MANIFEST_NAME).read_bytes())


def require_copy(store: Path, url: str) -> None:
    """Raise `PlaceFailedError` unless a place has all files of a store, whole: libraries may read zeros instead."""
    prefix = store_key(store)
    sizes = ObjectStore(url).sizes(prefix)
    for path in _files(store):
        key, size = f"{prefix}/{path.relative_to(store)}", path.stat().st_size
        if (there := sizes.get(key)) != size:
            what = "there is no such object" if there is None else f"{there} bytes where {size} were stored"
            raise PlaceFailedError(what, where=f"{url}/{key}")


def copy_there(store: Path, url: str) -> None:
    """Copy the files of a store into a place, in place of another one of its name; its manifest is copied last."""
    place, prefix = ObjectStore(url), store_key(store)
    _remove(place, prefix)

    def copy(path: Path) -> None:
        place.put(f"{prefix}/{path.relative_to(store)}", path)

    with ThreadPoolExecutor(COPYING) as pool:
        list(pool.map(copy, _files(store)))
    copy(store / MANIFEST_NAME)


def clean(url: str) -> int:
    """Delete what runs have put into a place, and nothing else; return the number of objects."""
    return _remove(ObjectStore(url), _OWN)


def _remove(place: ObjectStore, prefix: str) -> int:
    """Delete the objects below a prefix, manifests first, so that no part passes for a whole store."""
    keys = place.sizes(prefix).keys()
    manifests = {key for key in keys if key.endswith(f"/{MANIFEST_NAME}")}
    with ThreadPoolExecutor(COPYING) as pool:
        for part in (manifests, keys - manifests):
            list(pool.map(place.delete, part))
    return len(keys)


def extent(store: Path) -> str:
    """Return the part of a store that is copied, in words."""
    sizes = [path.stat().st_size for path in (*_files(store), store / MANIFEST_NAME)]
    return f"{number_of(len(sizes), 'object')}, {rounded_bytes(sum(sizes))}"


def copy_back(store: Path, url: str, target: Path) -> float:
    """Copy the files of a store from a place into the empty folder `target`; return the seconds that it took."""
    begun, place, prefix = time.perf_counter(), ObjectStore(url), store_key(store)

    def copy(path: Path) -> None:
        name = path.relative_to(store)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(place.get(f"{prefix}/{name}"))

    with ThreadPoolExecutor(COPYING) as pool:
        list(pool.map(copy, [*_files(store), store / MANIFEST_NAME]))
    return time.perf_counter() - begun


def _files(store: Path) -> Iterator[Path]:
    return (path for path in store.rglob("*") if path.is_file() and path.name != MANIFEST_NAME)
