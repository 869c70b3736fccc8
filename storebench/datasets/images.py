"""Turn the bytes of an image file into 256 x 256 RGB, as Caffe's convert_imageset does."""

import struct
import zlib
from typing import BinaryIO

import numpy as np
from PIL import Image as PilImage
from PIL import UnidentifiedImageError

from storebench.datasets.base import Image
from storebench.errors import CorruptDataError

SIDE = 256
EXTENSIONS = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")

MOST_FILE_BYTES = 1 << 30
"""Bound on an image file: more than the largest image that Pillow accepts takes uncompressed."""

# JPEG includes MPO: Pillow opens both as JPEG and has no opener called "MPO".
_PILLOW_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF", "PPM")
_DOES_NOT_DECODE = (
    OSError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
    PilImage.DecompressionBombError,
)
"""Errors that Pillow's decoders raise for damaged files."""


def decode_rgb(stream: BinaryIO, where: str) -> Image:
    """Decode an image file and resize it to exactly 256 x 256 without keeping the aspect ratio.

    Grey, palette, CMYK and 16-bit images become RGB; transparency is dropped;
    EXIF orientation is ignored, as in the OpenCV that the paper's tool used.

    Returns
    -------
    Image
        uint8 [256, 256, 3].

    Raises
    ------
    CorruptDataError
        The file does not decode; the message begins with `where`.
    """
    try:
        with PilImage.open(stream, formats=_PILLOW_FORMATS) as image:
            return np.array(_resize(_to_rgb(image)))
    except _DOES_NOT_DECODE as error:
        raise CorruptDataError(
            f"does not decode ({_reason(error)})",
            where=where,
            hint="Replace the file or take it out of the folder.",
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):  # its own message is about a Python object
        return f"damaged, or none of {', '.join(_PILLOW_FORMATS)}"
    return str(error) or type(error).__name__


def _to_rgb(image: PilImage.Image) -> PilImage.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16") or image.mode == "I":
        return PilImage.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("P", "PA"):
        # Through RGBA, because Pillow warns if a palette with transparency loses it directly.
        image = image.convert("RGBA")
    return image.convert("RGB")


def _resize(image: PilImage.Image) -> PilImage.Image:
    """Resize as OpenCV's INTER_LINEAR does: each pixel from its four nearest, without averaging over more.

    Pillow's own ``resize`` widens the filter when it shrinks an image. The result
    is smoother than convert_imageset's, and smoother pixels compress better.
    """
    width, height = image.size
    if (width, height) == (SIDE, SIDE):
        return image
    matrix = (width / SIDE, 0, 0, 0, height / SIDE, 0)
    return image.transform(
        (SIDE, SIDE), PilImage.Transform.AFFINE, matrix, resample=PilImage.Resampling.BILINEAR
    )
