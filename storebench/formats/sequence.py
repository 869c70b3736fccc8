"""An open reader as a sequence: its length, a sample by its index, several samples by a list of indices."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from storebench.arrays import Indices
from storebench.datasets.base import Image
from storebench.formats.arrays import Batch

Several = slice | Sequence[int] | npt.NDArray[np.integer[Any]]
"""Several samples: a slice, a list (or range, or tuple) of integers, or an integer array [n]."""


class SampleSequence(ABC):
    """Decoded samples by index, with the index rules of a list."""

    labels: npt.NDArray[np.int64]  # int64 [count]
    image_shape: tuple[int, int, int]  # (H, W, C) of every image

    @abstractmethod
    def read_into(self, indices: Indices, out: Batch) -> None:
        """Write the decoded pixels of `indices` into ``out[:len(indices)]``."""

    def __len__(self) -> int:
        return len(self.labels)

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> tuple[Image, int]: ...

    @overload
    def __getitem__(self, index: Several) -> tuple[Batch, Indices]: ...

    def __getitem__(
        self, index: int | np.integer[Any] | Several
    ) -> tuple[Image, int] | tuple[Batch, Indices]:
        """Return decoded samples in new arrays: ``reader[7]``, ``reader[-1]``, ``reader[:10]``, ``reader[[3, 1, 2]]``."""
        count = len(self)
        if isinstance(index, slice):
            return self._samples(np.arange(*index.indices(count), dtype=np.int64))
        if isinstance(index, Sequence) or (isinstance(index, np.ndarray) and index.ndim):
            return self._samples(_from_start(np.asarray(index), count))
        number = operator.index(index)
        if not -count <= number < count:
            raise _outside(number, count)
        pixels, labels = self._samples(np.array([number % count], np.int64))
        return pixels[0], int(labels[0])

    def __iter__(self) -> Iterator[tuple[Image, int]]:
        return (self[index] for index in range(len(self)))

    def _samples(self, indices: Indices) -> tuple[Batch, Indices]:
        pixels = np.empty((len(indices), *self.image_shape), np.uint8)
        self.read_into(indices, pixels)
        return pixels, self.labels[indices]


def _from_start(wanted: npt.NDArray[Any], count: int) -> Indices:
    """Return integers as int64 [n] in ``range(count)``, the negative ones counted from the end."""
    if not wanted.size:
        return np.empty(0, np.int64)  # numpy would make an array of floats from an empty list
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
        raise TypeError(f"sample indices are integers in one dimension, not {wanted.dtype}{wanted.shape}")
    outside = (wanted < -count) | (wanted >= count)
    if outside.any():
        raise _outside(wanted[outside][0], count)
    return wanted.astype(np.int64) % count


def _outside(index: object, count: int) -> IndexError:
    return IndexError(f"sample index {index} is out of range for {count} samples")
