"""PNG and JPEG of images of one size: Pillow encodes, and a decoder of choice decodes."""

import io
from typing import ClassVar

import numpy as np
from PIL import Image as PilImage

from storebench.codecs.base import Codec, Payload
from storebench.codecs.decoders import Decoder, PillowDecoder, undecodable
from storebench.datasets.base import Image
from storebench.datasets.images import JPEG, PNG
from storebench.errors import CorruptDataError


class _CompressedCodec(Codec):
    """Base of PNG and JPEG, grey and RGB only."""

    kind: ClassVar[str]
    save_options: ClassVar[dict[str, int]]

    def __init__(self, decoder: Decoder | None = None) -> None:
        self.decoder = decoder or PillowDecoder()

    def encode(self, image: Image) -> bytes:
        buffer = io.BytesIO()
        pixels = image[:, :, 0] if image.shape[2] == 1 else image
        PilImage.fromarray(pixels).save(buffer, self.kind, **self.save_options)
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
    save_options: ClassVar[dict[str, int]] = {"compress_level": 6}


class JpegCodec(_CompressedCodec):
    """JPEG at quality 90 with halved chroma (4:2:0); its digest covers the decoded pixels."""

    name = "jpeg"
    lossless = False
    suffix = ".jpg"
    kind = JPEG
    save_options: ClassVar[dict[str, int]] = {"quality": 90, "subsampling": 2}
