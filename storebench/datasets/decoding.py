"""Decode whole image files: the one place that decides which image files can be read, whatever is made of them."""

import numpy as np
from PIL import Image as PilImage

from storebench.datasets.base import Image
from storebench.datasets.headers import JPEG, PNG, REPLACE_HINT, check_file, read_header
from storebench.datasets.images import (
    DOES_NOT_DECODE,
    SIDE,
    be_strict,
    load_rgb,
    open_image,
    reason_of,
    resized,
)
from storebench.errors import CorruptDataError


def decode_rgb(content: bytes, where: str, size: tuple[int, int] = (SIDE, SIDE)) -> Image:
    """Decode an image file and resize it without keeping the aspect ratio, as Caffe's convert_imageset does."""
    return np.array(resized(_picture(content, where), size))


def checked(content: bytes, where: str, *, decode: bool = True) -> bytes:
    """Return the bytes of an image file that `decode_rgb` decodes; it is decoded to find out."""
    if not decode:
        try:
            if check_file(content).kind in (JPEG, PNG):
                return content
        except CorruptDataError as error:
            raise CorruptDataError(error.what, where=where, hint=error.hint) from error
    try:
        _picture(content, where, reduced=True)
    except CorruptDataError:
        _picture(content, where)
    return content


def _picture(content: bytes, where: str, *, reduced: bool = False) -> PilImage.Image:
    """Return all pixels of an image file as RGB, or the fewest that still take all of its bytes."""
    be_strict()
    try:
        read_header(content)  # refuses a decompression bomb before anything is decoded
        with open_image(content) as image:
            if reduced:
                # In its own mode: grey alone would hide colours whose sampling does not decode.
                image.draft(None, (1, 1))
            return load_rgb(image)
    except CorruptDataError as error:
        raise CorruptDataError(error.what, where=where, hint=error.hint) from error
    except DOES_NOT_DECODE as error:
        raise CorruptDataError(_reason(content, error), where=where, hint=REPLACE_HINT) from error


def _reason(content: bytes, error: Exception) -> str:
    """Return the reason why a file does not decode: truncation, or Pillow's message."""
    try:
        check_file(content)
    except CorruptDataError as damage:
        return damage.what
    return f"does not decode ({reason_of(error)})"
