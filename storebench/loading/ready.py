"""Batches that are ready before an epoch begins: real samples, augmented once, served in rotation."""

from collections.abc import Callable

import numpy as np
import torch

from storebench.formats.base import Indices, Reader
from storebench.loading.augment import Augment
from storebench.loading.order import epoch_order

READY_BATCHES = 8
"""Ready batches of one producer, if they fit into `READY_BYTES`."""

READY_BYTES = 64 << 20
"""Memory for one producer's ready batches. Two are made in any case, so that consecutive batches differ."""


class ReadyBatches:
    """A few different batches of a store's samples, with their own labels."""

    def __init__(
        self,
        reader: Reader,
        augment: Augment,
        *,
        seed: int,
        worker: int,
        allocate: Callable[[tuple[int, ...]], torch.Tensor],
    ) -> None:
        self._reader = reader
        self._augment = augment
        self._seed = seed
        self._first = worker * READY_BATCHES
        self._allocate = allocate
        self._batches: list[tuple[torch.Tensor, Indices]] = []
        self._rows = self._turn = 0

    def prepare(self, rows: int) -> None:
        """Make batches of at least `rows` samples, unless those that are there are as large."""
        if rows <= self._rows:
            return
        shape = (rows, *self._augment.output_shape(self._reader.image_shape))
        count = max(2, min(READY_BATCHES, READY_BYTES // int(np.prod(shape))))
        self._batches = [self._make(self._first + number, shape) for number in range(count)]
        self._rows = rows

    def take(self, rows: int) -> tuple[torch.Tensor, Indices]:
        """Return pixels, uint8 [rows, H, W, C], and labels, int64 [rows], of the batch whose turn it is."""
        self.prepare(rows)
        pixels, labels = self._batches[self._turn % len(self._batches)]
        self._turn += 1
        return pixels[:rows], labels[:rows]

    def _make(self, epoch: int, shape: tuple[int, ...]) -> tuple[torch.Tensor, Indices]:
        order = epoch_order(len(self._reader.labels), seed=self._seed, epoch=epoch)
        indices = np.resize(order, shape[0])
        decoded = np.empty((shape[0], *self._reader.image_shape), np.uint8)
        self._reader.fetch_into(indices, decoded)
        pixels = self._allocate(shape)
        self._augment.apply(decoded, indices, pixels.numpy(), seed=self._seed, epoch=epoch)
        return pixels, self._reader.labels[indices]
