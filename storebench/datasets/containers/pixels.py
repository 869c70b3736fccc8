"""A value of a container: the bytes of an image file, or raw pixels if their shape is known."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storebench.datasets.base import Image
from storebench.datasets.images import EXTENSIONS, MOST_PIXELS, SUFFIXES, suffix_of
from storebench.errors import CorruptDataError

_SHORT = (SUFFIXES[0], ".jpg", ".bmp", ".ppm")  # kinds that are known by two bytes only, as pixels may have
_PICKLES = (b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5")


def is_image_file(value: bytes | memoryview) -> bool:
    return suffix_of(bytes(value[:16])) != SUFFIXES[0]


def is_pickle(value: bytes | memoryview) -> bool:
    return bytes(value[:2]) in _PICKLES and bytes(value[-1:]) == b"."


def refuse_large(sides: Sequence[int], where: str | Path) -> None:
    """Refuse pixels of a shape that no image has, before they are read."""
    if not 0 < math.prod(sides) <= 3 * MOST_PIXELS:
        shape = " x ".join(f"{side:,}" for side in sides)
        raise CorruptDataError(f"an image of {shape}, not of 1 to {MOST_PIXELS:,} pixels", where=where)


def image_or_pixels(
    value: bytes | memoryview, where: str, sides: Sequence[Any] = (), *, planar: bool = False
) -> bytes | Image:
    """Return the bytes of an image file, or raw pixels by their sides; `planar` if channels come first."""
    are_known = len(sides) == 3 and all(isinstance(side, int) and side > 0 for side in sides)
    are_pixels = len(value) == (math.prod(sides) if are_known else 0)
    # Pixels may begin as image files of some kinds do.
    if is_image_file(value) and not (are_pixels and suffix_of(bytes(value[:16])) in _SHORT):
        return bytes(value)
    if are_pixels:
        refuse_large(sides, where)
        if sides[2] not in (1, 3):
            what = f"pixels of {sides[2]} channels, and 1 or 3 are read"
            raise CorruptDataError(what, where=where, hint="Write them as grey or RGB.")
        height, width, channels = sides
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
