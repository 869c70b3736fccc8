"""Draw the windows of a producer's planned batches, many batches per call."""

from collections.abc import Sequence

import numpy as np

from storebench.arrays import ImageShape
from storebench.formats.base import Indices
from storebench.formats.windows import Windows
from storebench.loading.augment import Augment

_AT_ONCE = 16
"""Batches per call: a call takes 2 us, most of it whatever it draws, a tenth of what a warm batch of 64 small images takes."""


class PlannedWindows:
    """Serve the windows of the batches of a plan, in order, from draws that were made for several of them.

    A batch that departs from the plan is drawn by itself. Its windows are the same either way, because they depend on
    seed, epoch and index only.

    Parameters
    ----------
    augment
        The augmentation; it has windows to draw.
    image_shape
        (H, W, C) of the images.
    """

    def __init__(self, augment: Augment, image_shape: ImageShape, *, seed: int) -> None:
        self._augment = augment
        self._image_shape = image_shape
        self._seed = seed
        self._epoch = -1
        self._left: list[Indices] = []
        self._drawn: Windows | None = None
        self._served = 0
        self._first = True

    def plan(self, batches: Sequence[Indices], *, epoch: int) -> None:
        """Replace the last plan by this one."""
        self._epoch, self._left, self._drawn = epoch, list(reversed(batches)), None
        self._first = True

    def take(self, indices: Indices, *, epoch: int) -> Windows:
        """Return the windows of a batch: drawn ahead if `indices` is the plan's next array, the very object.

        Raises
        ------
        ValueError
            The crop is larger than the images.
        """
        if epoch != self._epoch or not self._left or self._left[-1] is not indices:
            return self._draw(indices, epoch)
        if self._first:
            # In a worker of torch's DataLoader only this batch is the plan's own array: the others arrive as copies.
            self._first = False
            self._left.pop()
            return self._draw(indices, epoch)
        drawn, start = self._drawn, self._served
        if drawn is None or start == len(drawn):
            drawn, start = self._draw(np.concatenate(self._left[: -1 - _AT_ONCE : -1]), epoch), 0
            self._drawn = drawn
        self._left.pop()
        self._served = start + len(indices)
        return drawn.part(slice(start, self._served))

    def _draw(self, indices: Indices, epoch: int) -> Windows:
        return self._augment.windows(indices, self._image_shape, seed=self._seed, epoch=epoch)
