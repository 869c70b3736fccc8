"""Image files as they are: a view of each image becomes a sample when it is read."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image as PilImage

from storebench.codecs.base import Codec, Payload
from storebench.codecs.compressed import PngCodec
from storebench.codecs.decoders import Decoder, PillowDecoder, undecodable
from storebench.datasets.base import Image
from storebench.datasets.images import MOST_PIXELS
from storebench.errors import CorruptDataError

AREA_FRAC = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
ATTEMPTS = 10
# Random numbers that one view may need: four per attempt, and one for mirroring.
DRAWS = 4 * ATTEMPTS + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A rectangle of an image, in its pixels, and whether it is mirrored left to right."""

    left: float
    top: float
    width: float
    height: float
    mirrored: bool = False


# Return the view of an image, given its width and height.
Choose = Callable[[int, int], View]


def centre_view(width: int, height: int, out_height: int, out_width: int) -> View:
    """Return the view for evaluation: what resizing the short side and cropping the middle would keep."""
    scale = min(width / out_width, height / out_height) / (256 / 224)
    wide, high = out_width * scale, out_height * scale
    return View(left=(width - wide) / 2, top=(height - high) / 2, width=wide, height=high)


def random_view(width: int, height: int, draws: Sequence[float]) -> View:
    """Return the view for training: RandomResizedCrop and a horizontal flip, as torchvision defines them."""
    mirrored = draws[-1] < 0.5
    low, high = map(math.log, RATIO)
    for at in range(0, 4 * ATTEMPTS, 4):
        by_area, by_ratio, down, across = draws[at : at + 4]
        area = width * height * (AREA_FRAC[0] + by_area * (AREA_FRAC[1] - AREA_FRAC[0]))
        ratio = math.exp(low + by_ratio * (high - low))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = int(across * (width - wide + 1)), int(down * (height - tall + 1))
            return View(left=left, top=top, width=wide, height=tall, mirrored=mirrored)
    wide, tall = width, height
    if width < RATIO[0] * height:
        tall = round(width / RATIO[0])
    elif width > RATIO[1] * height:
        wide = round(height * RATIO[1])
    left, top = (width - wide) // 2, (height - tall) // 2
    return View(left=left, top=top, width=wide, height=tall, mirrored=mirrored)


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
        return PngCodec().encode(image)

    def decode_into(self, payload: Payload, out: Image) -> None:
        """Write the part for evaluation into `out`, as grey if `out` has 1 channel and as RGB if it has 3."""
        self.decode(payload, out.shape).write(out)

    def decode(self, payload: Payload, shape: tuple[int, ...], choose: Choose | None = None) -> Decoded:
        """Decode an image, to be written into a sample of `shape` (H, W, C)."""
        high, wide, channels = shape
        with undecodable(self.name, payload):
            opened = self.decoder.open(payload)
            width, height = opened.size
            if width * height > MOST_PIXELS:
                raise CorruptDataError(
                    f"an image of {width:,} x {height:,} pixels, more than {MOST_PIXELS:,}"
                )
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
