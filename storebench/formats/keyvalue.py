"""Helpers of the key-value formats: keys, the record of labels, and the loop over ``get``."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from storebench.arrays import Indices
from storebench.errors import StorebenchError
from storebench.formats.base import Fetched, Reader
from storebench.formats.common import damaged, wrong_length
from storebench.formats.options import Options
from storebench.formats.windows import Batch, out_of_range
from storebench.record.manifest import Manifest

# Keys as Caffe's tools write them: big-endian digits, so that their order is the samples'.
make_key: Callable[[int], bytes] = b"%08d".__mod__

# Holds every label as little-endian int64 [count]; sorts after all samples.
LABEL_KEY = b"label"

StoredValue = bytes | memoryview


def pack_labels(labels: Sequence[int]) -> bytes:
    """Return the record of `labels`."""
    return np.asarray(labels, dtype="<i8").tobytes()


class KeyValueReader(Reader):
    """Read one record per sample through a library's ``get``."""

    library_errors: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self._image_bytes = manifest.dataset.image_bytes
        self._rows: list[slice] = []
        # A missing record is None, on which the loops below fail.
        self._loop_errors: tuple[type[Exception], ...] = (TypeError, ValueError, *self.library_errors)
        self._get: Callable[[bytes], StoredValue | None] = self._open()
        try:
            self.labels = self._read_labels()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _open(self) -> Callable[[bytes], StoredValue | None]:
        """Open the library's handle and return its ``get``."""

    @abstractmethod
    def _close(self) -> None:
        """Release what `_open` opened; harmless if `_open` failed."""

    def _fetch(self, indices: Indices) -> list[bytes]:
        numbers = indices.tolist()
        try:
            # bytes() copies a view of mapped memory, and returns bytes unchanged.
            return list(map(bytes, map(self._get, map(make_key, numbers))))  # type: ignore[arg-type]
        except self._loop_errors as error:
            raise self._explain(numbers, error) from error

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        numbers = indices.tolist()
        batch = out.reshape(-1).data
        size = self._image_bytes
        while len(self._rows) < len(numbers):
            self._rows.append(slice(len(self._rows) * size, (len(self._rows) + 1) * size))
        try:
            for row, value in zip(self._rows, map(self._get, map(make_key, numbers)), strict=False):
                batch[row] = value  # type: ignore[assignment]
        except self._loop_errors as error:
            raise self._explain(numbers, error) from error
        return Fetched(len(batch))

    def _read_labels(self) -> npt.NDArray[np.int64]:
        count = self.manifest.count
        try:
            record = self._get(LABEL_KEY)
        except self.library_errors as error:
            raise damaged(f"the record of labels cannot be read ({error})", self.store) from error
        if record is None:
            raise damaged("the record of labels is missing", self.store)
        if len(record) != 8 * count:
            raise damaged(f"{len(record)} bytes of labels where {8 * count} were expected", self.store)
        return np.frombuffer(record, dtype="<i8").astype(np.int64)

    def _explain(self, numbers: list[int], error: Exception) -> IndexError | StorebenchError:
        """Return the error behind a failed loop. The indices are checked only here: a wrong one has no record."""
        count = self.manifest.count
        if any(not 0 <= number < count for number in numbers):
            return out_of_range(count)
        for number in numbers:
            try:
                value = self._get(make_key(number))
            except self.library_errors as cause:
                return damaged(f"sample {number} cannot be read ({cause})", self.store)
            if value is None:
                return damaged(f"sample {number} is missing", self.store)
            if self.payload_codec == "raw" and len(value) != self._image_bytes:
                return wrong_length(number, len(value), self._image_bytes, self.store)
        return damaged(f"samples cannot be read ({error})", self.store)
