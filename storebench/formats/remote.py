"""Readers of servers: several requests in flight, out of order within a window, served in the harness's order."""

import operator
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from storebench.arrays import Indices
from storebench.errors import UsageError
from storebench.formats.base import ReaderInfo
from storebench.formats.options import Options, integer
from storebench.formats.reader import Fetched, Reader, RequestTable, Traits
from storebench.formats.windows import Batch
from storebench.places.copying import store_key
from storebench.places.objects import ObjectStore, PlaceFailedError
from storebench.record.manifest import Manifest


class Piece(NamedTuple):
    """An object, or a part of one."""

    key: str  # below the store's own prefix
    start: int | None = None  # first byte; None for the whole object
    length: int = 0  # 0 if it is not known beforehand


class Objects:
    """The objects of one store at a place: `inflight` requests are under way at the same time, each of them timed.

    Raises
    ------
    PlaceFailedError
        The place does not answer, refuses, or delivers another number of bytes than were stored.
    """

    def __init__(self, store: Path, place: ObjectStore, inflight: int) -> None:
        self._place, self._prefix = place, store_key(store)
        self._requests: list[tuple[int, int, int]] = []  # appended to by all threads
        self._inflight, self._pool = inflight, ThreadPoolExecutor(inflight, "storebench-objects")

    def ask(self, piece: Piece) -> Future[bytes]:
        return self._pool.submit(self._get, piece)

    def in_sequence(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """Yield one piece after the other; `inflight` more are under way while the caller works on one."""
        ahead = deque[Future[bytes]]()
        try:
            for piece in pieces:
                ahead.append(self.ask(piece))
                if len(ahead) > self._inflight:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for arriving in ahead:
                arriving.cancel()

    def requests(self) -> RequestTable:
        return np.array(self._requests, np.int64).reshape(-1, 3)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _get(self, piece: Piece) -> bytes:
        key, begun = f"{self._prefix}/{piece.key}", time.perf_counter_ns()
        part = () if piece.start is None else (piece.start, piece.length)
        content = self._place.get(key, *part)
        if piece.length and len(content) != piece.length:
            what = f"{len(content)} bytes where {piece.length} were expected"
            raise PlaceFailedError(what, where=f"{self._place.url}/{key}")
        self._requests.append((begun, time.perf_counter_ns(), len(content)))
        return content


@dataclass(frozen=True, kw_only=True)
class RemoteOptions(Options):
    """Options of readers of an object store."""

    inflight: int = integer(
        default=16, least=1, most=1024, meaning="requests that are under way at the same time"
    )
    window: int = integer(
        default=256,
        least=1,
        most=1 << 20,
        meaning="samples that are requested or have arrived before the loop takes them",
    )


class RemoteReader(Reader):
    """Serve payloads from the objects of one place; labels and the index lie beside the manifest on this disk."""

    options_type = RemoteOptions
    options: RemoteOptions

    def __init__(self, store: Path, manifest: Manifest, options: Options, url: str) -> None:
        super().__init__(store, manifest, options)
        assert isinstance(options, RemoteOptions)
        if not url:
            raise UsageError(
                "this reader asks an object store", hint="Name one with --place s3:http://HOST:PORT/BUCKET."
            )
        self._objects = Objects(store, self._client(url), options.inflight)
        self._ahead: deque[tuple[int, Future[bytes]]] = deque()
        self._planned: deque[int] = deque()
        self._open_index()

    def _client(self, url: str) -> ObjectStore:
        return ObjectStore(url)

    @abstractmethod
    def _open_index(self) -> None:
        """Read the labels, and what `_piece` needs, from the store's own folder."""

    @abstractmethod
    def _piece(self, number: int) -> Piece:
        """Return where sample `number` is."""

    @classmethod
    def ahead_bytes(cls, options: Options, manifest: Manifest) -> int:
        assert isinstance(options, RemoteOptions)
        return options.window * manifest.payload_bytes // max(1, manifest.count)

    def _plan(self, batches: Sequence[Indices]) -> None:
        self._drop_ahead()
        self._planned.extend(number for batch in batches for number in self._checked(batch))
        self._ask_ahead()

    def _fetch(self, indices: Indices) -> list[bytes]:
        numbers = self._checked(indices)
        planned = (number for number, _ in self._ahead)
        if not self._ahead or any(map(operator.ne, numbers, planned)):  # a call outside of the plan
            self._drop_ahead()
            self._planned.extend(numbers)
            self._ask_ahead()
        payloads = []
        for _ in numbers:
            _, arriving = self._ahead.popleft()
            payloads.append(arriving.result())
            self._ask_ahead()
        return payloads

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        for payload, row in zip(self._fetch(indices), out.reshape(len(out), -1), strict=True):
            row[:] = np.frombuffer(payload, np.uint8)
        return Fetched(out.nbytes)

    def _ask_ahead(self) -> None:
        while self._planned and len(self._ahead) < self.options.window:
            number = self._planned.popleft()
            self._ahead.append((number, self._objects.ask(self._piece(number))))

    def _drop_ahead(self) -> None:
        self._planned.clear()
        for _, arriving in self._ahead:
            arriving.cancel()
        self._ahead.clear()

    def requests(self) -> RequestTable:
        return self._objects.requests()

    def _close(self) -> None:
        self._drop_ahead()
        self._objects.close()


def ranges_of(reader: type[RemoteReader]) -> ReaderInfo:
    """Return the description of a reader that asks for a part of a large object per sample."""
    return ReaderInfo(
        reader=reader,
        summary="one range of an object per sample, several in flight",
        traits=Traits(remote=True, served=True, forks=False),
        note="needs --place s3:URL",
    )
