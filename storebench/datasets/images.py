"""What image files are and how Pillow opens them: their extensions and formats, and their pixels as RGB of one size."""

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from typing import IO

import numpy as np
from PIL import Image as PilImage
from PIL import ImageFile, UnidentifiedImageError

from storebench.errors import CorruptDataError

SIDE = 256
"""Default side of the images of folders and of ImageNet."""

EXTENSIONS = (
    *(".jpeg", ".jpg", ".jpe", ".jfif", ".jif", ".png", ".apng", ".bmp", ".dib", ".webp"),
    *(".tif", ".tiff", ".gif", ".ppm", ".pgm", ".pbm", ".pnm"),
)

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


DEPTH_RULE = "16-bit pixels become 8-bit ones by their high byte"
"""The one rule for more than 8 bits per channel. What has no defined range in 8 bits is refused."""

LEAST_LEVEL = 16
"""Least brightest level of a 16-bit image in 8 bits. A darker one holds 12 bits or fewer, and would become nearly black."""

_PHOTOMETRIC = 262
_SAMPLE_FORMAT, _UNSIGNED = 339, {1, 4}
"""The tag of TIFF for the kind of numbers, and the kinds that are unsigned integers."""


def open_image(source: bytes | IO[bytes], formats: tuple[str, ...] = PILLOW_FORMATS) -> PilImage.Image:
    """Open an image file by Pillow, whose warnings about metadata neither reach the user nor become errors."""
    warnings.filterwarnings(
        "ignore", module=r"PIL\."
    )  # kept in first place; threads and workers share no filters
    return PilImage.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=formats)


def is_deep(image: PilImage.Image) -> bool:
    """Return whether an image that was opened, and not loaded yet, has 16 bits per channel."""
    kinds = set(getattr(image, "tag_v2", {}).get(_SAMPLE_FORMAT, _UNSIGNED))
    wide = image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM"))
    if wide or kinds - _UNSIGNED:
        kind = "floating-point" if image.mode == "F" or 3 in kinds else "signed or 32-bit"
        raise CorruptDataError(
            f"{kind} pixels, which have no defined range in 8 bits", hint="Scale them to 8 bits first."
        )
    deep = image.mode.startswith("I") or any("16" in name for name in _raw_modes(image))
    if deep and getattr(image, "tag_v2", {}).get(_PHOTOMETRIC, 1) == 0:
        raise CorruptDataError("16-bit pixels in which 0 is white", hint="Scale them to 8 bits first.")
    return deep


def _raw_modes(image: PilImage.Image) -> Iterator[str]:
    for _, _, _, how in getattr(image, "tile", ()):
        yield str(how[0] if isinstance(how, tuple) and how else how)


def load_rgb(image: PilImage.Image) -> PilImage.Image:
    """Decode an image that was opened, and return it as RGB; see `DEPTH_RULE`."""
    deep = is_deep(image)
    image.load()
    rgb = to_rgb(image)
    if deep and np.asarray(rgb).max(initial=0) < LEAST_LEVEL:
        raise CorruptDataError(
            "16-bit pixels that use 12 bits or fewer, so they would become nearly black",
            hint="Scale them to 8 bits, or to all 16, first.",
        )
    return rgb


def to_rgb(image: PilImage.Image) -> PilImage.Image:
    """Return an image as RGB: grey is repeated, 16 bits become 8, transparency is dropped."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):
        return PilImage.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("P", "PA"):
        # Through RGBA, because Pillow warns if a palette with transparency loses it directly.
        image = image.convert("RGBA")
    return image.convert("RGB")


def resized(image: PilImage.Image, size: tuple[int, int]) -> PilImage.Image:
    """Return an image at another size (height, width), as OpenCV's INTER_LINEAR makes it."""
    width, height = image.size
    high, wide = size
    if (width, height) == (wide, high):
        return image
    matrix = (width / wide, 0, 0, 0, height / high, 0)
    return image.transform(
        (wide, high), PilImage.Transform.AFFINE, matrix, resample=PilImage.Resampling.BILINEAR
    )
