"""Codecs turn one image into bytes and back: raw, PNG and JPEG.

A codec is stateless and picklable, and knows nothing about the container of its
payloads: container and codec are separate axes of every result.
"""

import io
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from PIL import Image as PilImage

from storebench.datasets.base import Image
from storebench.errors import CorruptDataError, UnknownNameError

Payload = bytes | bytearray | memoryview


class Codec(ABC):
    """Turn an image into bytes and back.

    Attributes
    ----------
    name
        The name in backends and results.
    lossless
        Whether decoding returns exactly the pixels that were encoded.
    suffix
        File extension for a single payload.
    """

    name: ClassVar[str]
    lossless: ClassVar[bool]
    suffix: ClassVar[str]

    @abstractmethod
    def encode(self, image: Image) -> bytes:
        """Return the payload of a uint8 [H, W, C] image, C = 1 or 3."""

    @abstractmethod
    def decode_into(self, payload: Payload, out: Image) -> None:
        """Write the pixels of `payload` into `out`, uint8 [H, W, C], C order.

        Raises
        ------
        CorruptDataError
            The payload does not decode to an image of that shape.
        """


class RawCodec(Codec):
    """The pixels unchanged: H x W x C bytes in C order."""

    name = "raw"
    lossless = True
    suffix = ".raw"

    def encode(self, image: Image) -> bytes:
        """Return the pixels' bytes."""
        return np.ascontiguousarray(image, dtype=np.uint8).tobytes()

    def decode_into(self, payload: Payload, out: Image) -> None:
        """Copy the bytes into `out`."""
        if len(payload) != out.size:
            raise CorruptDataError(
                f"a raw payload has {len(payload)} bytes, the image shape {out.shape} needs {out.size}"
            )
        out[...] = np.frombuffer(payload, dtype=np.uint8).reshape(out.shape)


class _PillowCodec(Codec):
    """Base of PNG and JPEG: Pillow does the work, grey and RGB only."""

    pillow_format: ClassVar[str]
    save_options: ClassVar[dict[str, int]]

    def encode(self, image: Image) -> bytes:
        """Return the compressed image file's bytes."""
        buffer = io.BytesIO()
        pixels = image[:, :, 0] if image.shape[2] == 1 else image
        PilImage.fromarray(pixels).save(buffer, self.pillow_format, **self.save_options)
        return buffer.getvalue()

    def decode_into(self, payload: Payload, out: Image) -> None:
        """Decompress into `out`, as grey if `out` has 1 channel and as RGB if it has 3."""
        mode = "L" if out.shape[2] == 1 else "RGB"
        try:
            with PilImage.open(io.BytesIO(payload), formats=(self.pillow_format,)) as image:
                converted = image if image.mode == mode else image.convert(mode)
                pixels = np.asarray(converted)
        except (OSError, ValueError, SyntaxError, PilImage.DecompressionBombError) as error:
            raise CorruptDataError(
                f"a {self.name} payload of {len(payload)} bytes does not decode ({error})"
            ) from error
        if pixels.shape[:2] != out.shape[:2]:
            raise CorruptDataError(
                f"a {self.name} payload decodes to {pixels.shape[:2]} pixels, not {out.shape[:2]}"
            )
        out[...] = pixels.reshape(out.shape)


class PngCodec(_PillowCodec):
    """PNG at zlib level 6 (libpng's default): lossless."""

    name = "png"
    lossless = True
    suffix = ".png"
    pillow_format = "PNG"
    save_options: ClassVar[dict[str, int]] = {"compress_level": 6}


class JpegCodec(_PillowCodec):
    """JPEG at quality 90 with halved chroma (4:2:0); its digest covers the decoded pixels."""

    name = "jpeg"
    lossless = False
    suffix = ".jpg"
    pillow_format = "JPEG"
    save_options: ClassVar[dict[str, int]] = {"quality": 90, "subsampling": 2}


CODECS: dict[str, Codec] = {codec.name: codec for codec in (RawCodec(), PngCodec(), JpegCodec())}


def get_codec(name: str) -> Codec:
    """Return the codec called `name`, or raise `UnknownNameError`."""
    try:
        return CODECS[name]
    except KeyError:
        raise UnknownNameError.of("codec", name, CODECS) from None
