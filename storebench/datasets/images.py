"""What image files are and how Pillow opens them: their extensions and formats, and their pixels as RGB of one size."""

import struct
import zlib

import numpy as np
from PIL import Image as PilImage
from PIL import ImageFile, UnidentifiedImageError

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


def be_strict() -> None:
    """Make Pillow refuse images that are cut off, whatever another library has asked it for."""
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


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


def resized(image: PilImage.Image, size: tuple[int, int]) -> PilImage.Image:
    """Return an image at another size (height, width), as OpenCV's INTER_LINEAR makes it.

    Each pixel comes from its four nearest, without averaging over more. Pillow's own ``resize`` widens the filter when
    it shrinks an image. The result is smoother than convert_imageset's, and smoother pixels compress better.
    """
    width, height = image.size
    high, wide = size
    if (width, height) == (wide, high):
        return image
    matrix = (width / wide, 0, 0, 0, height / high, 0)
    return image.transform(
        (wide, high), PilImage.Transform.AFFINE, matrix, resample=PilImage.Resampling.BILINEAR
    )
