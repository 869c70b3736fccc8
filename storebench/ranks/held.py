"""The samples that one rank of a data store owns, in memory and in messages: as pixels, or as payloads."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from storebench.arrays import Bytes
from storebench.errors import CellFailedError
from storebench.formats.base import Batch, Indices
from storebench.ranks.owners import Owners, Positions

ByteCounts = npt.NDArray[np.int64]
"""Bytes of samples, int64 [n]."""


class HeldSamples(ABC):
    """Samples in the memory of their owner."""

    def __init__(self, own: Indices) -> None:
        self.own = own
        self.held_bytes = 0
        self._kept = np.zeros(len(own), bool)

    @property
    def missing(self) -> int:
        """Number of own samples that are not in memory yet."""
        return len(self.own) - int(np.count_nonzero(self._kept))

    @abstractmethod
    def pack(self, samples: Indices) -> Bytes:
        """Return a copy of own samples as the content of a message, in the order of `samples`."""

    def _new(self, samples: Indices) -> tuple[Positions, Positions]:
        """Return the rows of `samples` with own samples that are not in memory yet, each sample once, and their places."""
        if not len(self.own):
            return np.empty(0, np.intp), np.empty(0, np.intp)
        places: Positions = np.minimum(np.searchsorted(self.own, samples), len(self.own) - 1)
        rows = np.flatnonzero((self.own[places] == samples) & ~self._kept[places])
        places, first = np.unique(places[rows], return_index=True)
        self._kept[places] = True
        return rows[first], places

    def _places(self, samples: Indices) -> Positions:
        """Return the places of own samples that are in memory."""
        places: Positions = np.minimum(np.searchsorted(self.own, samples), max(0, len(self.own) - 1))
        if len(samples) and not (
            len(self.own) and (self.own[places] == samples).all() and self._kept[places].all()
        ):
            raise CellFailedError("the data store was asked for a sample that this rank does not hold")
        return places


class HeldPixels(HeldSamples):
    """Pixels of images of one size."""

    def __init__(self, own: Indices, shape: tuple[int, int, int]) -> None:
        super().__init__(own)
        self._pixels = np.empty((len(own), *shape), np.uint8)
        self._image_bytes = int(np.prod(shape))

    def keep(self, samples: Indices, pixels: Batch) -> None:
        """Keep the own samples among `samples`, whose `pixels` are uint8 [n, H, W, C]."""
        rows, places = self._new(samples)
        self._pixels[places] = pixels[rows]
        self.held_bytes += len(rows) * self._image_bytes

    def pack(self, samples: Indices) -> Bytes:
        """Return a copy of own samples, uint8 [n * H * W * C]."""
        return self._pixels[self._places(samples)].reshape(-1)

    def put(self, samples: Indices, rows: Positions, out: Batch) -> None:
        """Copy own samples into rows of a batch, uint8 [n, H, W, C]."""
        out[rows] = self._pixels[self._places(samples)]


class HeldPayloads(HeldSamples):
    """Payloads as stored, for codecs that the harness decodes."""

    def __init__(self, own: Indices) -> None:
        super().__init__(own)
        self._payloads = [b""] * len(own)
        self._sizes = np.zeros(len(own), np.int64)

    @property
    def sizes(self) -> ByteCounts:
        """Bytes of each own payload, int64, in ascending order of the samples; 0 for those that are not in memory yet."""
        return self._sizes

    def keep(self, samples: Indices, payloads: Sequence[bytes]) -> None:
        """Keep the own samples among `samples`, with their `payloads`."""
        for row, place in zip(*self._new(samples), strict=True):
            payload = self._payloads[place] = payloads[row]
            self._sizes[place] = len(payload)
            self.held_bytes += len(payload)

    def pack(self, samples: Indices) -> Bytes:
        """Return own payloads, concatenated."""
        joined = bytearray().join(self.payloads(samples))
        return np.frombuffer(joined, np.uint8)

    def payloads(self, samples: Indices) -> list[bytes]:
        """Return own payloads."""
        return [self._payloads[place] for place in self._places(samples)]


def cut(content: Bytes, sizes: ByteCounts) -> list[bytes]:
    """Split a message into its payloads, given the bytes of each."""
    ends = np.cumsum(sizes).tolist()
    return [content[end - size : end].tobytes() for end, size in zip(ends, sizes.tolist(), strict=True)]


def joined_sizes(parts: Sequence[ByteCounts], owners: Owners) -> ByteCounts:
    """Return the bytes of every sample, int64 [count], from the sizes of each rank's own samples."""
    sizes = np.zeros(len(owners), np.int64)
    for rank, own in enumerate(parts):
        sizes[owners == rank] = own
    return sizes
