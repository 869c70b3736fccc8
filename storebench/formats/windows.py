"""Batches and windows of images: where each window is, whether it is mirrored, and how it is copied."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storebench.arrays import ImageShape, Indices
from storebench.system.kernel import load_kernel

# Pixels of several images, uint8 [n, H, W, C], C order, owned by the caller.
Batch = npt.NDArray[np.uint8]


def out_of_range(count: int) -> IndexError:
    """Return the error for an index that no sample has."""
    return IndexError(f"a sample index is outside 0..{count - 1}")


def check_range(indices: Indices, count: int) -> None:
    """Raise `IndexError` if one of `indices` is not in ``range(count)``."""
    if len(indices) and (indices.min() < 0 or indices.max() >= count):
        raise out_of_range(count)


def require_fit(out: Batch, count: int, shape: tuple[int, ...], *, contiguous: bool = True) -> None:
    """Raise `ValueError` if a batch cannot take `count` images of `shape`."""
    carray = out.flags.carray
    if len(out) < count or out.shape[1:] != shape or out.dtype != np.uint8 or (contiguous and not carray):
        order = "" if carray else " that is read-only or not C-contiguous"
        raise ValueError(
            f"a batch of {out.dtype}{out.shape}{order} where C-contiguous uint8{(count, *shape)} "
            "or more images were expected"
        )


# The places of windows, int64 [n, 3]: top row, left column, and 1 for a window that is mirrored left to right, else 0.
Places = npt.NDArray[np.int64]

# Raw pixels of one or more images as they are stored, uint8 [bytes], C order.
FlatPixels = npt.NDArray[np.uint8]


# Not frozen, because one is made per batch.
@dataclass(kw_only=True, slots=True)
class Windows:
    """One window into each image of a batch, all of one size."""

    places: Places  # int64 [n, 3], C-contiguous
    height: int
    width: int  # rows and columns of every window

    def __len__(self) -> int:
        return len(self.places)

    def part(self, rows: slice) -> "Windows":
        """Return some of the windows; the step of `rows` is 1."""
        return Windows(places=self.places[rows], height=self.height, width=self.width)

    def cut(self, images: Batch, out: Batch, which: Indices | None = None) -> None:
        """Copy window i out of ``images[i]``, or out of ``images[which[i]]``, into ``out[i]``."""
        image_shape = shape_of(images)
        which = np.arange(len(self), dtype=np.int64) if which is None else which
        self.copy(images.reshape(-1), which * math.prod(image_shape), image_shape, out)

    def copy(self, source: FlatPixels, offsets: Indices, image_shape: ImageShape, out: Batch) -> None:
        """Copy window i out of the image that begins at ``source[offsets[i]]`` into ``out[i]``; see `cut`."""
        if self._cut_compiled(source, offsets, image_shape, out):
            return
        size = math.prod(image_shape)
        if len(self) and (offsets.min() < 0 or offsets.max() > source.size - size):
            raise _outside()
        self.copy_each([source[at : at + size] for at in offsets.tolist()], image_shape, out)

    def copy_each(self, images: Sequence[FlatPixels], image_shape: ImageShape, out: Batch) -> None:
        """Copy window i out of ``images[i]``, each whole and in its own memory, into ``out[i]``; see `cut`."""
        addresses = [image.__array_interface__["data"][0] for image in images]
        if not self._cut_compiled(None, np.array(addresses, np.int64), image_shape, out):
            self._cut_each((image.reshape(image_shape) for image in images), image_shape, out)

    def cut_without_kernel(self, images: Batch, out: Batch) -> None:
        """Copy window i out of ``images[i]`` into ``out[i]`` by numpy and torch, slower than the kernel does."""
        self._cut_each(iter(images), shape_of(images), out)

    def _cut_compiled(
        self, source: FlatPixels | None, offsets: Indices, image_shape: ImageShape, out: Batch
    ) -> bool:
        """Let the kernel cut, and return whether it could; ``source`` is None if the offsets are addresses."""
        kernel = load_kernel()
        if kernel is None or not out.flags.carray:
            return False
        # The kernel writes where it is told to, so the sizes must be right.
        shape = (self.height, self.width, image_shape[2])
        require_fit(out, len(self), shape)
        if len(offsets) != len(self) or kernel.cut(source, offsets, self.places, image_shape, out) < len(
            self
        ):
            raise _outside()
        return True

    def _cut_each(self, images: Iterable[Batch], image_shape: ImageShape, out: Batch) -> None:
        import torch

        tops, lefts = self.places[:, 0], self.places[:, 1]
        most = (image_shape[0] - self.height, image_shape[1] - self.width)
        if len(self) and (min(tops.min(), lefts.min()) < 0 or tops.max() > most[0] or lefts.max() > most[1]):
            raise _outside()
        for image, (top, left, mirrored), row in zip(images, self.places.tolist(), out, strict=False):
            row[...] = image[top : top + self.height, left : left + self.width]
            if mirrored:  # torch, because numpy copies a mirrored view byte by byte
                row[...] = torch.flip(torch.from_numpy(row), (1,)).numpy()


def shape_of(images: Batch) -> ImageShape:
    height, width, channels = images.shape[1:]
    return height, width, channels


def _outside() -> ValueError:
    return ValueError("a window is not inside of its image, or an image not inside of its store")
