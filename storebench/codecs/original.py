"""Image files as they are: the payload is the file's own bytes, and images become samples of one size when they are read."""

import io
import math
from dataclasses import dataclass

import numpy as np
from PIL import Image as PilImage

from storebench.codecs.base import Codec, Payload
from storebench.codecs.decoders import Decoder, PillowDecoder, check_size, undecodable
from storebench.codecs.views import Choose, View, centre_view
from storebench.datasets.base import Image

Shape = tuple[int, ...]
"""(H, W, C) of a sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """A decoded image and the part of it that becomes a sample."""

    picture: PilImage.Image  # the pixels of the whole image, perhaps at a reduced scale
    view: View  # the part, in pixels of `picture`

    def write(self, out: Image) -> None:
        """Resize the part into `out`, uint8 [H, W, C]: bilinear with antialiasing, then mirrored if that was drawn."""
        view, picture = self.view, self.picture
        right = min(view.left + view.width, picture.width)
        bottom = min(view.top + view.height, picture.height)
        resized = picture.resize(
            (out.shape[1], out.shape[0]),
            PilImage.Resampling.BILINEAR,
            box=(max(view.left, 0), max(view.top, 0), right, bottom),
        )
        if view.mirrored:
            resized = resized.transpose(PilImage.Transpose.FLIP_LEFT_RIGHT)
        out[...] = np.asarray(resized).reshape(out.shape)


class OriginalCodec(Codec):
    """The bytes of an image file, unchanged. Each image has its own size."""

    name = "original"
    lossless = False
    suffix = ".img"

    def __init__(self, decoder: Decoder | None = None, *, scaled: bool = False) -> None:
        self.decoder = decoder or PillowDecoder()
        self.scaled = scaled

    def encode(self, image: Image) -> bytes:
        """Return a PNG of the image, which stands for the file of an image that has none."""
        buffer = io.BytesIO()
        PilImage.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(buffer, "PNG")
        return buffer.getvalue()

    def decode_into(self, payload: Payload, out: Image) -> None:
        """Write the part for evaluation into `out`, as grey if `out` has 1 channel and as RGB if it has 3."""
        self.decode(payload, out.shape).write(out)

    def decode(self, payload: Payload, shape: Shape, choose: Choose | None = None) -> Decoded:
        """Decode an image, to be written into a sample of `shape` (H, W, C)."""
        high, wide, channels = shape
        with undecodable(self.name, payload):
            opened = self.decoder.open(payload)
            check_size(opened.size)
            width, height = opened.size
            view = choose(width, height) if choose else centre_view(width, height, high, wide)
            least = None
            if self.scaled:
                least = (math.ceil(width * wide / view.width), math.ceil(height * high / view.height))
            picture = opened.load("L" if channels == 1 else "RGB", least)
        across, down = picture.width / width, picture.height / height
        if (across, down) != (1, 1):
            view = View(
                left=view.left * across,
                top=view.top * down,
                width=view.width * across,
                height=view.height * down,
                mirrored=view.mirrored,
            )
        return Decoded(picture=picture, view=view)
