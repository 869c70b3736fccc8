"""Seeded augmentation: a crop and a mirroring that depend on seed, epoch and sample index only.

It belongs to the harness, never to a format, so that every backend trains on
the very same pixels whatever process prepares them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from storebench.formats.base import Batch, Indices

Pixels = npt.NDArray[np.uint8]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What is done to each training image.

    Attributes
    ----------
    crop
        Side of the square that is cut out at a random place; None keeps the whole image.
    mirror
        Whether every other image (at random) is flipped left to right.
    """

    crop: int | None = None
    mirror: bool = False

    @property
    def identity(self) -> bool:
        """Whether the pixels stay as they are."""
        return self.crop is None and not self.mirror

    def output_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return (H, W, C) of an augmented image."""
        height, width, channels = image_shape
        return (height, width, channels) if self.crop is None else (self.crop, self.crop, channels)

    def apply(self, images: Batch, indices: Indices, out: Batch, *, seed: int, epoch: int) -> None:
        """Write the augmented `images` [n, H, W, C] into `out` [n, h, w, C], both uint8."""
        height, width = out.shape[1:3]
        bits = random_bits(indices, seed=seed, epoch=epoch)
        tops = (bits & np.uint64(0xFFFF)) % np.uint64(images.shape[1] - height + 1)
        lefts = (bits >> np.uint64(16) & np.uint64(0xFFFF)) % np.uint64(images.shape[2] - width + 1)
        flips = (bits >> np.uint64(32) & np.uint64(1)) * np.uint64(self.mirror)
        for row, (top, left, flip) in enumerate(
            zip(tops.tolist(), lefts.tolist(), flips.tolist(), strict=True)
        ):
            window = images[row, top : top + height, left : left + width]
            out[row] = _mirrored(window) if flip else window


def _mirrored(window: Pixels) -> Pixels:
    """Return an image, uint8 [h, w, C], flipped left to right; numpy's own copy of a mirrored view takes ten times as long."""
    mirrored: Pixels = torch.flip(torch.from_numpy(window), (1,)).numpy()
    return mirrored


def center_crop(images: Batch, side: int | None) -> Batch:
    """Return the middle `side` x `side` of images [n, H, W, C] (a view); None keeps them whole."""
    if side is None:
        return images
    top, left = (images.shape[1] - side) // 2, (images.shape[2] - side) // 2
    return images[:, top : top + side, left : left + side]


def random_bits(indices: Indices, *, seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    """Return 64 random bits for each index, uint64 [n]: SplitMix64 (Steele et al., 2014) of seed, epoch and index."""
    with np.errstate(over="ignore"):
        stream = _mix(np.array([seed], dtype=np.uint64) + _GOLDEN * np.uint64(epoch + 1))
        return _mix(stream + _GOLDEN * (indices.astype(np.uint64) + np.uint64(1)))


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = values ^ values >> np.uint64(31)
    return mixed
