"""Turn the bytes of an image file into RGB of one size, 256 x 256 unless another is asked for, as convert_imageset does."""

import struct
import zlib
from typing import BinaryIO

import numpy as np
from PIL import Image as PilImage
from PIL import UnidentifiedImageError

from storebench.datasets.base import Image
from storebench.errors import CorruptDataError

SIDE = 256
"""Default side of the images of folders and of ImageNet."""

EXTENSIONS = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")

MOST_FILE_BYTES = 1 << 30
"""Bound on an image file: more than the largest image that Pillow accepts takes uncompressed."""

PILLOW_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF", "PPM")
"""Formats that are opened. JPEG includes MPO, for which Pillow has no opener of its own."""

DOES_NOT_DECODE = (
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


def decode_rgb(stream: BinaryIO, where: str, size: tuple[int, int] = (SIDE, SIDE)) -> Image:
    """Decode an image file and resize it without keeping the aspect ratio.

    Grey, palette, CMYK and 16-bit images become RGB; transparency is dropped;
    EXIF orientation is ignored, as in the OpenCV that the paper's tool used.

    Parameters
    ----------
    size
        Height and width of the result.

    Returns
    -------
    Image
        uint8 [height, width, 3].

    Raises
    ------
    CorruptDataError
        The file does not decode; the message begins with `where`.
    """
    try:
        with PilImage.open(stream, formats=PILLOW_FORMATS) as image:
            return np.array(_resize(to_rgb(image), size))
    except DOES_NOT_DECODE as error:
        raise CorruptDataError(
            f"does not decode ({reason_of(error)})",
            where=where,
            hint="Replace the file or take it out of the folder.",
        ) from error


def reason_of(error: Exception) -> str:
    """Return why Pillow does not decode a file, as a clause."""
    if isinstance(error, UnidentifiedImageError):  # its own message is about a Python object
        return f"damaged, or none of {', '.join(PILLOW_FORMATS)}"
    return str(error) or type(error).__name__


def to_rgb(image: PilImage.Image) -> PilImage.Image:
    """Return an image as RGB: grey is repeated, 16 bits become 8, transparency is dropped."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16") or image.mode == "I":
        return PilImage.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("P", "PA"):
        # Through RGBA, because Pillow warns if a palette with transparency loses it directly.
        image = image.convert("RGBA")
    return image.convert("RGB")


def _resize(image: PilImage.Image, size: tuple[int, int]) -> PilImage.Image:
    """Resize as OpenCV's INTER_LINEAR does: each pixel from its four nearest, without averaging over more.

    Pillow's own ``resize`` widens the filter when it shrinks an image. The result
    is smoother than convert_imageset's, and smoother pixels compress better.
    """
    width, height = image.size
    high, wide = size
    if (width, height) == (wide, high):
        return image
    matrix = (width / wide, 0, 0, 0, height / high, 0)
    return image.transform(
        (wide, high), PilImage.Transform.AFFINE, matrix, resample=PilImage.Resampling.BILINEAR
    )
