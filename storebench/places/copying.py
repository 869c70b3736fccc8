"""Whole stores copied to a place and back, and what was achieved there."""

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from storebench.places.base import MissingFileError, PlaceFailedError
from storebench.places.objects import ObjectStore
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
_PROBE = ".storebench-probe"
_PROBE_BYTES = 8 << 20

# The prefix of what was copied to a place, a list of keys for each store: there may be other objects beside them.
_LISTS = ".storebench-copies"


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
    return f"{store.parent.name}/{store.name}"


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
    """Copy the files of a store into a place, in place of another one of its name; first, list what is put there."""
    place, prefix = ObjectStore(url), store_key(store)
    _remove_copy(place, prefix)
    files = [*_files(store), store / MANIFEST_NAME]
    place.put(f"{_LISTS}/{prefix}", "\n".join(str(path.relative_to(store)) for path in files).encode())

    def copy(path: Path) -> None:
        place.put(f"{prefix}/{path.relative_to(store)}", path)

    with ThreadPoolExecutor(COPYING) as pool:
        list(pool.map(copy, files[:-1]))
    copy(files[-1])


def clean(url: str) -> int:
    """Delete what `measured` and `copy_there` have put into a place, and nothing else; return the number of objects."""
    place = ObjectStore(url)
    count = sum(_remove_copy(place, key.removeprefix(f"{_LISTS}/")) for key in place.sizes(_LISTS))
    probes = {f"{_PROBE}/small", f"{_PROBE}/large"} & place.sizes(_PROBE).keys()
    for key in probes:
        place.delete(key)
    return count + len(probes)


def _remove_copy(place: ObjectStore, prefix: str) -> int:
    """Delete the objects of one store, its manifest first and their list last; return their number."""
    with contextlib.suppress(MissingFileError):
        names = place.get(f"{_LISTS}/{prefix}").decode().split("\n")
        # What the place has itself, so that no list leads out of the prefix.
        keys = {f"{prefix}/{name}" for name in names} & place.sizes(prefix).keys()
        place.delete(f"{prefix}/{MANIFEST_NAME}")
        with ThreadPoolExecutor(COPYING) as pool:
            list(pool.map(place.delete, keys))
        place.delete(f"{_LISTS}/{prefix}")
        return len(keys) + 1
    return 0


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
