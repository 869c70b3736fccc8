"""Formats that are read as streams: shards in a drawn order, shuffled in a buffer; their order is known beforehand."""

import io
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from storebench.arrays import Indices, randomness
from storebench.formats.common import load_integers, save_array
from storebench.formats.options import Options, integer
from storebench.formats.peers.rows import Row, RowsReader, required
from storebench.formats.peers.writers import LibraryWriter
from storebench.formats.reader import BUFFER_NOTE, DISPLACEMENT_NOTE, NEIGHBOURS_NOTE, RequestTable, Seed
from storebench.formats.remote import Objects, Piece
from storebench.places.objects import ObjectStore
from storebench.record.manifest import Manifest

SHARDS_FILE = "shards.npy"

SHARDS, SHARD_BYTES = 8, 100_000_000  # the least number of shards of a store, and the most bytes of one

T = TypeVar("T")
Numbered = tuple[int, Row]


class ShardsWriter(LibraryWriter):
    """Write shards, and beside them the number of samples of each."""

    labels_beside = True

    def _start(self) -> None:
        self.sizes: list[int] = []
        self.most = max(1, -(-self.spec.dataset.count // SHARDS))  # samples of one shard

    def _finish(self) -> None:
        super()._finish()
        save_array(self.folder / SHARDS_FILE, np.asarray(self.sizes, np.int64))


@dataclass(frozen=True, kw_only=True)
class StreamOptions(Options):
    """Options of readers called ``stream``."""

    buffer: int = integer(
        default=1000,
        least=1,
        most=1 << 24,
        meaning="samples in the shuffle buffer; 1 shuffles only the shards",
    )
    inflight: int = integer(
        default=4,
        least=1,
        most=64,
        meaning="whole shards that are requested ahead of the one that is parsed, at a server",
    )


class StreamReader(RowsReader):
    """Serve an epoch in the format's own order; any other request reads the shards from the beginning."""

    options_type = StreamOptions
    options: StreamOptions
    _objects: Objects | None = None  # of a server

    def _open(self) -> Any:
        parts = _parts(self.store)
        self._require_all(range(sum(map(len, parts))), range(self.manifest.count))
        # The numbers of the samples of each file.
        self.shards = dict(zip(map(required, self._paths(len(parts))), parts, strict=True))
        if self.url:
            self._objects = Objects(self.store, ObjectStore(self.url), self.options.inflight)
            self.opened.callback(self._objects.close)
        self._stream: Iterator[Numbered] | None = None
        self._scan: Iterator[Numbered] = iter(())
        self.hold("_stream")
        self.hold("_scan")
        self._scanned = self.manifest.count  # samples that the scan is past
        self._departures = 0
        return self._labels_beside()

    @classmethod
    def native_order(cls, store: Path, manifest: Manifest, options: Options, seed: Seed) -> Indices:
        assert isinstance(options, StreamOptions)
        parts = cls.shuffled_shards(_parts(store), seed)
        numbers = cls.shuffled(chain.from_iterable(parts), options.buffer, seed)
        return np.fromiter(numbers, np.int64, manifest.count)

    def _paths(self, count: int) -> list[Path]:
        return [self.store / self.shard_name(number) for number in range(count)]

    @staticmethod
    @abstractmethod
    def shard_name(number: int) -> str:
        """Return the name of a shard's file."""

    @staticmethod
    @abstractmethod
    def shuffled_shards(shards: list[T], seed: Seed) -> list[T]:
        """Return the shards in the order of an epoch."""

    @staticmethod
    @abstractmethod
    def shuffled(samples: Iterator[T], buffer: int, seed: Seed) -> Iterator[T]:
        """Yield the samples as the shuffle buffer does."""

    @abstractmethod
    def _serve(self, seed: Seed | None) -> Iterator[Numbered]:
        """Yield the samples of all shards with their numbers, shuffled unless `seed` is None."""

    def _files(self, paths: list[Path], buffering: int = -1) -> Iterator[tuple[Path, IO[bytes]]]:
        """Yield the shards one after the other, each open until the next: files, or the contents that a server sent."""
        if self._objects is None:
            for path in paths:
                with path.open("rb", buffering) as file:
                    yield path, file
        else:
            pieces = [Piece(path.name, length=path.stat().st_size) for path in paths]
            for path, content in zip(paths, self._objects.in_sequence(pieces), strict=True):
                yield path, io.BytesIO(content)

    def requests(self) -> RequestTable | None:
        return None if self._objects is None else self._objects.requests()

    def _plan(self, batches: Sequence[Indices]) -> None:
        self._pass_seed = self.plan_seed
        self._stream = self._serve(self._pass_seed) if batches else None

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        for is_last in (False, True) if self._stream is not None else ():
            assert self._stream is not None
            served = list(islice(self._stream, len(numbers)))
            if [number for number, _ in served] == numbers:
                return [row for _, row in served]
            # A batch that does not follow is the first one of the next pass, or none of this epoch.
            if self._pass_seed is not None:
                self._pass_seed = (*self._pass_seed[:-1], self._pass_seed[-1] + 1)
            self._stream = None if is_last else self._serve(self._pass_seed)
            self._departures += is_last
        return self._gathered(numbers)

    def _gathered(self, numbers: list[int]) -> list[Row]:
        """Return samples from a scan of the shards in their order, which begins again if it is past one of them."""
        wanted, rows = set(numbers), dict[int, Row]()
        if min(wanted) < self._scanned:
            self._scan, self._scanned = self._serve(None), 0
        for number, row in self._scan:
            self._scanned = number + 1
            if number in wanted:
                rows[number] = row
                if len(rows) == len(wanted):
                    break
        return [rows[number] for number in numbers]

    def notes(self) -> dict[str, str]:
        notes = {BUFFER_NOTE: str(self.options.buffer)}
        if self.plan_seed is not None:
            order = self.native_order(self.store, self.manifest, self.options, self.plan_seed)
            displacement, neighbours = randomness(order)
            notes |= {DISPLACEMENT_NOTE: f"{displacement:.4f}", NEIGHBOURS_NOTE: f"{neighbours:.4f}"}
        if self._departures:
            notes["batches outside of the native order"] = str(self._departures)
        return notes


def _parts(store: Path) -> list[range]:
    """Return the numbers of the samples of each shard."""
    ends = np.cumsum(load_integers(store / SHARDS_FILE)).tolist()
    return [range(start, end) for start, end in pairwise([0, *ends])]
