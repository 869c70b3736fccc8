"""An object store and its client: objects by key, ranges of them, and whole stores copied there and back."""

import datetime as dt
import functools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from storebench.errors import CellFailedError, MissingDependencyError
from storebench.manifest import MANIFEST_NAME
from storebench.results import PlaceFacts

if TYPE_CHECKING:
    from obstore.store import S3Store

ABOUT = ".storebench-place.json"
"""The object in which a server of ours says what it is and what it emulates."""

COPYING = 16
"""Requests in flight while a whole store is copied."""

_PROBES = 9
_PROBE = ".storebench-probe"
_PROBE_BYTES = 8 << 20
_RETRIES = 3
_GIVE_UP = dt.timedelta(seconds=30)

T = TypeVar("T")


class PlaceFailedError(CellFailedError):
    """A place does not answer, refuses, or serves something else than was stored."""


class ObjectStore:
    """A bucket, or a part of one, at ``http[s]://HOST[:PORT]/BUCKET[/PREFIX]``.

    Credentials come from the environment (AWS_ACCESS_KEY_ID and its companions); without any, requests are not signed.
    Every method may raise `PlaceFailedError`, whose line names the object and what the server said.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = _client(url)

    def get(self, key: str) -> bytes:
        """Return an object."""
        import obstore

        return self._asked(key, lambda: bytes(obstore.get(self._client, key).bytes()))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes of an object."""
        import obstore

        return self._asked(
            key, lambda: bytes(obstore.get_range(self._client, key, start=start, length=length))
        )

    def put(self, key: str, content: bytes | Path) -> None:
        """Store an object."""
        import obstore

        self._asked(key, lambda: obstore.put(self._client, key, content))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size of every object whose key begins with `prefix` and a slash."""
        import obstore

        def listed() -> dict[str, int]:
            return {one["path"]: one["size"] for batch in obstore.list(self._client, prefix) for one in batch}

        return self._asked(prefix, listed)

    def delete(self, keys: list[str]) -> None:
        """Delete objects."""
        import obstore

        for key in keys:
            self._asked(key, functools.partial(obstore.delete, self._client, key))

    def has(self, key: str, content: bytes) -> bool:
        """Return whether an object exists and has this content."""
        try:
            return self.get(key) == content
        except PlaceFailedError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise

    def _asked(self, key: str, request: Callable[[], T]) -> T:
        from obstore.exceptions import BaseError

        try:
            return request()
        except (BaseError, OSError) as error:
            raise PlaceFailedError(_reason(error), where=f"{self.url}/{key}") from error


def _client(url: str) -> "S3Store":
    try:
        from obstore.store import S3Store
    except ModuleNotFoundError:
        raise MissingDependencyError("object stores need obstore", hint="Run: pip install '.[s3]'.") from None
    parts = urlsplit(url)
    bucket, _, prefix = parts.path.strip("/").partition("/")
    signed = {} if "AWS_ACCESS_KEY_ID" in os.environ else {"skip_signature": True}
    settings: dict[str, Any] = {
        "endpoint": f"{parts.scheme}://{parts.netloc}",
        "virtual_hosted_style_request": False,
        "region": os.environ.get("AWS_REGION", "us-east-1"),
        "client_options": {"allow_http": parts.scheme == "http", "timeout": "30s", "connect_timeout": "5s"},
        "retry_config": {"max_retries": _RETRIES, "retry_timeout": _GIVE_UP},
    }
    return S3Store(bucket, prefix=prefix or None, **settings, **signed)


def _reason(error: Exception) -> str:
    """Return the clause of the client's message that says what happened, without the request and its addresses."""
    if isinstance(error, FileNotFoundError):
        return "there is no such object"
    if isinstance(error, PermissionError):
        return "the server refuses access; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    text = str(error).partition("Debug source:")[0]
    for mark in ("Server returned non-2xx status code: ", "HTTP error: ", " - "):
        text = text.rpartition(mark)[2]
    return f"the server did not deliver it ({' '.join(text.split())[:120]})"


def about(url: str) -> PlaceFacts:
    """Return what a place says about itself; a server that is not ours says nothing."""
    store = ObjectStore(url)
    try:
        return PlaceFacts(**json.loads(store.get(ABOUT)))
    except PlaceFailedError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
    return PlaceFacts(server=f"the server at {urlsplit(store.url).netloc}")


def measured(url: str, facts: PlaceFacts | None = None) -> PlaceFacts:
    """Return the facts of a place with the time of a small request and the rate of a large one, as they are now."""
    store, facts = ObjectStore(url), facts or about(url)
    if len(store.sizes(_PROBE)) != 2:
        store.put(f"{_PROBE}/small", b"1")
        store.put(f"{_PROBE}/large", bytes(_PROBE_BYTES))
    first_s = statistics.median(_seconds(lambda: store.get(f"{_PROBE}/small")) for _ in range(_PROBES))
    large_s = min(_seconds(lambda: store.get(f"{_PROBE}/large")) for _ in range(3))
    rate = _PROBE_BYTES / max(1e-9, large_s - first_s) / 1e6
    return replace(facts, first_byte_ms=round(1000 * first_s, 2), mb_s=round(rate, 1))


def _seconds(request: Callable[[], object]) -> float:
    begun = time.perf_counter()
    request()
    return time.perf_counter() - begun


def store_key(store: Path) -> str:
    """Return the part of all keys of a store's objects: its dataset and its name."""
    return f"{store.parent.name}/{store.name}"


def has_store(store: Path, url: str) -> bool:
    """Return whether a place has the files of this store: its manifest is copied last."""
    return ObjectStore(url).has(f"{store_key(store)}/{MANIFEST_NAME}", (store / MANIFEST_NAME).read_bytes())


def copy_there(store: Path, url: str) -> None:
    """Copy the files of a store into a place, in the stead of another one of its name."""
    place, prefix = ObjectStore(url), store_key(store)
    place.delete([f"{prefix}/{MANIFEST_NAME}", *place.sizes(prefix)])

    def copy(path: Path) -> None:
        place.put(f"{prefix}/{path.relative_to(store)}", path)

    with ThreadPoolExecutor(COPYING) as pool:
        for _ in pool.map(copy, _files(store)):
            pass
    copy(store / MANIFEST_NAME)


def copy_back(store: Path, url: str, target: Path) -> float:
    """Copy the files of a store from a place into the empty folder `target`; return the seconds that it took."""
    begun, place, prefix = time.perf_counter(), ObjectStore(url), store_key(store)

    def copy(key: str) -> None:
        path = target / key.removeprefix(f"{prefix}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(place.get(key))

    with ThreadPoolExecutor(COPYING) as pool:
        for _ in pool.map(copy, place.sizes(prefix)):
            pass
    return time.perf_counter() - begun


def _files(store: Path) -> Iterator[Path]:
    return (path for path in store.rglob("*") if path.is_file() and path.name != MANIFEST_NAME)
