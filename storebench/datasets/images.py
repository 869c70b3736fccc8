"""Turn an image file's bytes into 256 x 256 RGB, as Caffe's convert_imageset does."""

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
"""What an image file may have: more than the largest one that Pillow decodes needs without compression."""

# JPEG stands for MPO as well: Pillow opens both as JPEG, and knows no opener called "MPO".
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
"""What Pillow's decoders raise on damaged files."""


def decode_rgb(stream: BinaryIO, where: str) -> Image:
    """Decode an image file and resize it to exactly 256 x 256, the aspect ratio given up.

    Grey, palette, CMYK and 16-bit images become RGB; transparency is dropped;
    the orientation in EXIF is ignored, as OpenCV did when the paper's tool used it.

    Returns
    -------
    Image
        uint8 [256, 256, 3].

    Raises
    ------
    CorruptDataError
        It does not decode; the message begins with `where`.
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
    if isinstance(error, UnidentifiedImageError):  # its own words are about a Python object
        return f"damaged, or none of {', '.join(_PILLOW_FORMATS)}"
    return str(error) or type(error).__name__


def _to_rgb(image: PilImage.Image) -> PilImage.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16") or image.mode == "I":
        return PilImage.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("P", "PA"):
        # By way of RGBA: Pillow warns when a palette with transparency loses it at once.
        image = image.convert("RGBA")
    return image.convert("RGB")


def _resize(image: PilImage.Image) -> PilImage.Image:
    """Resize as OpenCV's INTER_LINEAR: each pixel from its four nearest, without averaging over more.

    Pillow's own ``resize`` widens the filter when it shrinks. That is smoother,
    but not what convert_imageset made, and smoother pixels compress better.
    """
    width, height = image.size
    if (width, height) == (SIDE, SIDE):
        return image
    matrix = (width / SIDE, 0, 0, 0, height / SIDE, 0)
    return image.transform(
        (SIDE, SIDE), PilImage.Transform.AFFINE, matrix, resample=PilImage.Resampling.BILINEAR
    )
