"""LevelDB in windows of the order: each is read in key order with one iterator, and served as asked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import plyvel

from storebench.arrays import Indices
from storebench.formats.arrays import Batch
from storebench.formats.base import Fetched
from storebench.formats.common import damaged
from storebench.formats.keyvalue import make_key
from storebench.formats.leveldb.get import LevelDbGetReader
from storebench.formats.options import Options, size
from storebench.manifest import Manifest

MOST_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LevelDbSortedOptions(Options):
    """Options of ``leveldb:sorted``."""

    window_bytes: int = size(
        name="window_mib",
        default=32,
        least=1,
        most=MOST_MIB,
        unit=1 << 20,
        meaning="how many MiB of samples are loaded together; they are held in memory",
    )


class LevelDbSortedReader(LevelDbGetReader):
    """Load the next window of the plan in key order, so that a block is looked up once for all its samples."""

    options_type = LevelDbSortedOptions
    options: LevelDbSortedOptions

    def __init__(self, store: Path, manifest: Manifest, options: LevelDbSortedOptions) -> None:
        self._iterator: Any = None
        self._held: dict[int, bytes] = {}
        self._coming: Iterator[Indices] = iter(())
        self._windows = 0
        super().__init__(store, manifest, options)

    @classmethod
    def ahead_bytes(cls, options: Options, manifest: Manifest) -> int:  # noqa: ARG003 - the window does not depend on the store
        """Return the window."""
        assert isinstance(options, LevelDbSortedOptions)
        return options.window_bytes

    def _fetch(self, indices: Indices) -> list[bytes]:
        numbers = self._checked(indices)
        missing = [sample for sample in numbers if sample not in self._held]
        if missing:
            self._load_window(indices, numbers)
        return [self._held[sample] for sample in numbers]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        payloads = self._fetch(indices)
        batch = out.reshape(-1).data
        try:
            for row, payload in zip(self._row_slices(len(payloads)), payloads, strict=False):
                batch[row] = payload
        except ValueError as error:
            raise self._explain(indices.tolist(), error) from error
        return Fetched(len(batch))

    def _plan(self, batches: Sequence[Indices]) -> None:
        self._held.clear()
        self._coming = iter(batches)

    def notes(self) -> dict[str, str]:
        """Add the number of windows that were loaded."""
        return {
            **super().notes(),
            "windows": f"{self._windows} of up to {self.options.window_bytes >> 20} MiB",
        }

    def _read_labels(self) -> npt.NDArray[np.int64]:
        labels = super()._read_labels()
        self._iterator = self._db.raw_iterator(fill_cache=False)
        return labels

    def _close(self) -> None:
        self._held.clear()
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None
        super()._close()

    def _load_window(self, indices: Indices, numbers: list[int]) -> None:
        """Load the requested batch, and the batches that follow it in the plan as far as the window reaches."""
        mean = max(1, self.manifest.payload_bytes // max(1, self.manifest.count))
        wanted = set(numbers)
        planned = next(self._coming, None)
        # A call that departs from the plan ends it, because the next calls are unknown.
        if planned is None or not np.array_equal(planned, indices):
            self._coming = iter(())
        while len(wanted) * mean < self.options.window_bytes:
            batch = next(self._coming, None)
            if batch is None:
                break
            wanted.update(self._checked(batch))
        self._held.clear()
        self._windows += 1
        try:
            self._walk(sorted(wanted))
        except plyvel.Error as error:
            raise damaged(f"LevelDB cannot read it ({error})", self.store) from error

    def _walk(self, numbers: list[int]) -> None:
        iterator, last = self._iterator, -2
        for sample in numbers:
            key = make_key(sample)
            if sample == last + 1:
                iterator.next()
            else:
                iterator.seek(key)
            if not iterator.valid() or iterator.key() != key:
                raise damaged(f"sample {sample} is missing", self.store)
            self._held[sample] = iterator.value()
            last = sample
