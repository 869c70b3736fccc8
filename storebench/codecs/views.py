"""Which part of an image of any size becomes a sample of a fixed size."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RESIZED_OVER_SIDE = 256 / 224
"""Short side of an image that is resized for evaluation, over the side of the crop from its middle."""

AREA_FRAC = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
ATTEMPTS = 10
DRAWS = 4 * ATTEMPTS + 1
"""Random numbers that one view may need: four per attempt, and one for mirroring."""

_MIRRORED_FRAC = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A rectangle of an image, in its pixels, and whether it is mirrored left to right."""

    left: float
    top: float
    width: float
    height: float
    mirrored: bool = False


Choose = Callable[[int, int], View]
"""Return the view of an image, given its width and height."""


def centre_view(width: int, height: int, out_height: int, out_width: int) -> View:
    """Return the view for evaluation: what resizing the short side and cropping the middle would keep."""
    scale = min(width / out_width, height / out_height) / RESIZED_OVER_SIDE
    wide, high = out_width * scale, out_height * scale
    return View(left=(width - wide) / 2, top=(height - high) / 2, width=wide, height=high)


def random_view(width: int, height: int, draws: Sequence[float]) -> View:
    """Return the view for training: RandomResizedCrop and a horizontal flip, as torchvision defines them."""
    mirrored = draws[-1] < _MIRRORED_FRAC
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
