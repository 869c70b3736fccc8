"""The preparation of samples, by seed, epoch and index only: a crop and a mirroring, or the part of an image file."""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storebench.arrays import ImageShape
from storebench.codecs import OriginalCodec, get_codec
from storebench.codecs.original import DRAWS, Choose, random_view
from storebench.errors import CorruptDataError
from storebench.formats.base import Batch, Indices, Reader
from storebench.formats.windows import Windows, shape_of
from storebench.system.kernel import load_kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """The augmentation of each training image."""

    crop: int | None = None
    mirror: bool = False
    resized: int | None = None

    @property
    def identity(self) -> bool:
        return self.crop is None and not self.mirror and self.resized is None

    def output_shape(self, image_shape: ImageShape) -> ImageShape:
        height, width, channels = image_shape
        side = self.crop if self.resized is None else self.resized
        return (height, width, channels) if side is None else (side, side, channels)

    def views(self, indices: Indices, *, seed: int, epoch: int) -> Sequence[Choose | None]:
        """Return for each image of any size the function that chooses its part; None for the part for evaluation."""
        if self.resized is None:
            return [None] * len(indices)
        draws = random_draws(indices, DRAWS, seed=seed, epoch=epoch).tolist()
        return [functools.partial(random_view, draws=row) for row in draws]

    def windows(self, indices: Indices, image_shape: ImageShape, *, seed: int, epoch: int) -> Windows:
        height, width, ranges = self._sizes(image_shape)
        kernel = load_kernel()
        if kernel is None:
            return self._windows_without_kernel(indices, image_shape, seed=seed, epoch=epoch)
        indices = np.ascontiguousarray(indices, np.int64)
        places = kernel.draw(_stream(seed, epoch), indices, ranges, mirror=self.mirror)
        return Windows(places=places, height=height, width=width)

    def apply(self, images: Batch, indices: Indices, out: Batch, *, seed: int, epoch: int) -> None:
        """Write the augmented `images` [n, H, W, C] into `out` [n, h, w, C], both uint8."""
        self.windows(indices, shape_of(images), seed=seed, epoch=epoch).cut(images, out)

    def apply_without_kernel(
        self, images: Batch, indices: Indices, out: Batch, *, seed: int, epoch: int
    ) -> None:
        """Do as `apply` does by numpy and torch alone: slower, so that the two can be compared."""
        windows = self._windows_without_kernel(indices, shape_of(images), seed=seed, epoch=epoch)
        windows.cut_without_kernel(images, out)

    def _windows_without_kernel(
        self, indices: Indices, image_shape: ImageShape, *, seed: int, epoch: int
    ) -> Windows:
        height, width, ranges = self._sizes(image_shape)
        bits = random_bits(indices, seed=seed, epoch=epoch)
        places = np.empty((len(bits), 3), np.int64)
        places[:, 0] = (bits & np.uint64(0xFFFF)) % np.uint64(ranges[0])
        places[:, 1] = (bits >> np.uint64(16) & np.uint64(0xFFFF)) % np.uint64(ranges[1])
        places[:, 2] = (bits >> np.uint64(32) & np.uint64(1)) * np.uint64(self.mirror)
        return Windows(places=places, height=height, width=width)

    def _sizes(self, image_shape: ImageShape) -> tuple[int, int, tuple[int, int]]:
        """Return height and width of a window, and how many tops and lefts there are to choose from."""
        height, width, _ = self.output_shape(image_shape)
        ranges = (image_shape[0] - height + 1, image_shape[1] - width + 1)
        if min(ranges) < 1:
            raise ValueError(f"a crop of {height}x{width} does not fit into images of {image_shape}")
        return height, width, ranges


def center_crop(images: Batch, side: int | None) -> Batch:
    """Return the middle `side` x `side` of images [n, H, W, C] (a view); None keeps them whole."""
    if side is None:
        return images
    top, left = (images.shape[1] - side) // 2, (images.shape[2] - side) // 2
    return images[:, top : top + side, left : left + side]


def random_bits(indices: Indices, *, seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    """Return 64 random bits for each index, uint64 [n]: SplitMix64 (Steele et al., 2014) of seed, epoch and index."""
    return _mix(np.uint64(_stream(seed, epoch)) + _GOLDEN * (indices.astype(np.uint64) + np.uint64(1)))


def round_seed(seed: int, replicate: int) -> int:
    """Return the seed of the augmentation in a round, 64 bits; that of round 0 is the cell's seed."""
    return (seed + replicate * 0xD1B54A32D192ED03) % 2**64


@functools.lru_cache(maxsize=16)
def _stream(seed: int, epoch: int) -> int:
    """Return the start of the random bits of an epoch, 64 bits."""
    with np.errstate(over="ignore"):
        stream = _mix(np.array([seed], dtype=np.uint64) + _GOLDEN * np.uint64(epoch + 1))
    return int(stream[0])


def random_draws(indices: Indices, count: int, *, seed: int, epoch: int) -> npt.NDArray[np.float64]:
    """Return `count` random numbers from 0 to below 1 for each index, float64 [n, count], from one stream per index."""
    start = random_bits(indices, seed=seed, epoch=epoch)[:, None]
    with np.errstate(over="ignore"):
        bits = _mix(start + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = values ^ values >> np.uint64(31)
    return mixed


def prepare_files(
    reader: Reader, payloads: Sequence[bytes], indices: Indices, out: Batch, views: Sequence[Choose | None]
) -> int:
    """Write the samples of image files into `out`, uint8 [n, H, W, C]; return the wall time of decoding, in ns."""
    decoder = get_codec(reader.payload_codec)
    assert isinstance(decoder, OriginalCodec)
    spent = [(0, 0)] * len(payloads)

    def prepare(row: int) -> None:
        started = time.perf_counter_ns()
        try:
            decoded = decoder.decode(payloads[row], out.shape[1:], views[row])
        except CorruptDataError as error:
            raise CorruptDataError(f"sample {indices[row]}: {error.what}", where=reader.store) from error
        decoded_at = time.perf_counter_ns()
        decoded.write(out[row])
        spent[row] = decoded_at - started, time.perf_counter_ns() - decoded_at

    began = time.perf_counter_ns()
    reader.spread(prepare, len(payloads))
    wall_ns = time.perf_counter_ns() - began
    decoding, resizing = (sum(part) for part in zip(*spent, strict=True)) if spent else (0, 0)
    return wall_ns * decoding // max(1, decoding + resizing)
