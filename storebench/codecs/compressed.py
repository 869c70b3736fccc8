"""PNG, JPEG and WebP of images of one size: Pillow encodes, and a decoder of choice decodes."""

import io
from typing import ClassVar

import numpy as np
from PIL import Image as PilImage

from storebench.codecs.base import Codec, Payload
from storebench.codecs.decoders import Decoder, PillowDecoder, undecodable
from storebench.datasets.base import Image
from storebench.datasets.images import JPEG, PNG, WEBP
from storebench.errors import CorruptDataError

# The quality of JPEGs for which none is given.
JPEG_QUALITY = 90


def with_quality(codec: str, quality: int | None) -> str:
    """Return the name of a codec at a quality; None is the default."""
    return codec if quality is None else f"{codec}:{quality}"


class _CompressedCodec(Codec):
    """Base of PNG, JPEG and WebP, grey and RGB only."""

    kind: ClassVar[str]

    def __init__(self, decoder: Decoder | None, **save_options: int) -> None:
        self.decoder = decoder or PillowDecoder()
        self._save_options = save_options

    def encode(self, image: Image) -> bytes:
        buffer = io.BytesIO()
        pixels = image[:, :, 0] if image.shape[2] == 1 else image
        PilImage.fromarray(pixels).save(buffer, self.kind, **self._save_options)
        return buffer.getvalue()

    def decode_into(self, payload: Payload, out: Image) -> None:
        """Decompress into `out`, as grey if `out` has 1 channel and as RGB if it has 3."""
        mode = "L" if out.shape[2] == 1 else "RGB"
        with undecodable(self.name, payload):
            pixels = self.decoder.pixels(payload, self.kind, mode)
        if pixels.shape[:2] != out.shape[:2]:
            raise CorruptDataError(
                f"a {self.name} payload decodes to {pixels.shape[:2]} pixels, not {out.shape[:2]}"
            )
        out[...] = np.asarray(pixels).reshape(out.shape)


class PngCodec(_CompressedCodec):
    """PNG at zlib level 6 (libpng's default): lossless."""

    name = "png"
    lossless = True
    suffix = ".png"
    kind = PNG

    def __init__(self, decoder: Decoder | None = None) -> None:
        super().__init__(decoder, compress_level=6)


class JpegCodec(_CompressedCodec):
    """JPEG with halved chroma (4:2:0); its digest covers the decoded pixels."""

    name = "jpeg"
    lossless = False
    suffix = ".jpg"
    kind = JPEG

    def __init__(self, decoder: Decoder | None = None, quality: int | None = None) -> None:
        super().__init__(decoder, quality=quality or JPEG_QUALITY, subsampling=2)
        self.name = with_quality(self.name, quality)


class WebpCodec(_CompressedCodec):
    """WebP: lossless, or lossy at a quality."""

    name = "webp"
    suffix = ".webp"
    kind = WEBP

    def __init__(self, decoder: Decoder | None = None, quality: int | None = None) -> None:
        self.lossless = quality is None
        super().__init__(decoder, **({"lossless": 1} if quality is None else {"quality": quality}))
        self.name = with_quality(self.name, quality)
