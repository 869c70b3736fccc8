"""A value of a container: the bytes of an image file, or raw pixels if their shape is known."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from storebench.datasets.base import Image
from storebench.datasets.images import EXTENSIONS, SUFFIXES, suffix_of
from storebench.errors import CorruptDataError

_PICKLES = (b"\2", b"\3", b"\4", b"\5")


def is_image_file(value: bytes | memoryview) -> bool:
    return suffix_of(bytes(value[:16])) != SUFFIXES[0]


def is_pickle(value: bytes | memoryview) -> bool:
    return bytes(value[:1]) == b"\x80" and bytes(value[1:2]) in _PICKLES and bytes(value[-1:]) == b"."


def image_or_pixels(
    value: bytes | memoryview, sides: Sequence[Any], where: str, *, planar: bool = False
) -> bytes | Image:
    """Return the bytes of an image file, or raw pixels of height, width and channels; `planar` if channels come first."""
    if is_image_file(value):
        return bytes(value)
    if all(isinstance(side, int) and side > 0 for side in sides) and len(value) == np.prod(sides):
        height, width, channels = sides
        if channels in (1, 3):
            flat = np.frombuffer(value, np.uint8)
            if planar:
                return np.ascontiguousarray(flat.reshape(channels, height, width).transpose(1, 2, 0))
            return flat.reshape(height, width, channels).copy()
    if is_pickle(value):
        what = "a pickled value, which is not read because it could run any code"
        raise CorruptDataError(what, where=where, hint="Write the images again as image files.")
    raise CorruptDataError(
        f"{len(value):,} bytes that are no image file ({', '.join(EXTENSIONS[:2])}, ...)",
        where=where,
        hint="Name another field for the images, or write them as image files.",
    )
