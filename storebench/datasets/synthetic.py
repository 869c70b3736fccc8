"""Synthetic stand-ins of the datasets: images that compress as real ones do, and that a network can tell apart."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage
from PIL import ImageDraw, ImageFont

from storebench.datasets.base import Dataset, DatasetInfo, DatasetSpec, Image, Origin, Provenance
from storebench.datasets.sources import check_index, fingerprint
from storebench.errors import DataNotFoundError, UsageError
from storebench.settings.words import Split

FIELD_SIDE = 640
FIELD_COUNT = 4
GRAIN = 2.4  # mean of the grain's standard deviation, of 255 levels; PNG cannot compress grain

Float32s = npt.NDArray[np.float32]


def _picture(
    label: int,
    side: int,
    random: np.random.Generator,
    *,
    power: float,  # of the frequency, with which amplitudes fall
    contrast: float,  # mean of the images' standard deviation, of 255 levels
    pattern_frac: float,  # share of the contrast that comes from the class's pattern
) -> Image:
    """Return a synthetic photograph of class `label`, uint8 [side, side, 3]."""
    scene = _cut(_field(int(random.integers(FIELD_COUNT)), power), side, random)
    scene -= scene.mean()
    scene *= np.sqrt(1 - pattern_frac) / (scene.std() + 1e-3)
    scene += np.sqrt(pattern_frac) * _pattern(label, side)
    scene *= max(15.0, random.normal(contrast, 14.0))
    scene += _cut(_grain(), side, random) * (GRAIN * random.gamma(2.0, 0.5))
    scene += random.normal(118.0, 20.0)
    return scene.clip(0, 255, out=scene).astype(np.uint8)


photograph = functools.partial(_picture, power=1.45, contrast=66.0, pattern_frac=0.3)
thumbnail = functools.partial(_picture, power=1.5, contrast=54.0, pattern_frac=0.5)


def _cut(field: Float32s, side: int, random: np.random.Generator) -> Float32s:
    top, left = random.integers(0, FIELD_SIDE - side, 2)
    return field[top : top + side, left : left + side].copy()


@functools.cache
def _grain() -> Float32s:
    return np.random.default_rng(0x6A41).standard_normal((FIELD_SIDE, FIELD_SIDE, 3), dtype=np.float32)


@functools.cache
def _field(number: int, power: float) -> Float32s:
    """Return a large scene from which photographs are cut: noise with a falling spectrum, float32 [640, 640, 3]."""
    random = np.random.default_rng((0x5CE9E, number))
    rows, columns = np.fft.fftfreq(FIELD_SIDE)[:, None], np.fft.rfftfreq(FIELD_SIDE)[None, :]
    frequency = np.hypot(rows, columns)
    frequency[0, 0] = np.inf
    planes = np.fft.irfft2(
        np.fft.rfft2(random.standard_normal((4, FIELD_SIDE, FIELD_SIDE))) / frequency**power
    )
    planes /= planes.std(axis=(1, 2), keepdims=True)
    # One luminance shared by the three channels, and a little colour in each.
    return np.asarray((planes[:1] + 0.28 * planes[1:]).transpose(1, 2, 0), np.float32)


def _pattern(label: int, side: int) -> Float32s:
    """Return the coarse colour pattern of a class: float32 [side, side, 3]."""
    coarse = np.random.default_rng((0xC1A55, label)).standard_normal((3, 4, 4), dtype=np.float32)
    coarse = (coarse - coarse.mean()) / coarse.std()
    planes = [PilImage.fromarray(plane).resize((side, side), PilImage.Resampling.BICUBIC) for plane in coarse]
    return np.dstack([np.asarray(plane, np.float32) for plane in planes])


def digit(label: int, side: int, random: np.random.Generator) -> Image:
    """Return a printed digit, turned, moved and scaled, white on black: uint8 [side, side, 1]."""
    large, move = 4 * side, random.normal(0, 0.2 * side, 2)
    glyph = _glyph(label, large, int(random.integers(0, 4)))
    turned = glyph.rotate(random.normal(0, 10), PilImage.Resampling.BILINEAR, translate=(move[0], move[1]))
    edge = random.uniform(0, 0.5) * side
    box = (edge, edge, large - edge, large - edge)
    return np.array(turned.resize((side, side), PilImage.Resampling.BOX, box=box))[:, :, np.newaxis]


@functools.cache
def _glyph(label: int, side: int, stroke: int) -> PilImage.Image:
    picture = PilImage.new("L", (side, side))
    font = ImageFont.load_default(0.79 * side)
    middle = (side / 2, side / 2)
    ImageDraw.Draw(picture).text(middle, str(label), 255, font, anchor="mm", stroke_width=stroke)
    return picture


VERSION = 2  # part of the fingerprint; increased whenever the same seed gives different pixels
MOST_SIDE = 512  # largest side of a stand-in's images: they are cut from fields of 640 x 640


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The recipe of one stand-in; a count of 0 means that it has no such split."""

    number: int
    draw: Callable[[int, int, np.random.Generator], Image]
    side: int
    channels: int
    classes: int
    train: int  # samples of each split
    test: int


RECIPES = {
    "mnist": Recipe(number=1, draw=digit, side=28, channels=1, classes=10, train=10_000, test=2_000),
    "cifar10": Recipe(number=2, draw=thumbnail, side=32, channels=3, classes=10, train=5_000, test=1_000),
    "imagenet": Recipe(number=3, draw=photograph, side=256, channels=3, classes=200, train=200, test=0),
}


class SyntheticDataset(Dataset):
    """A stand-in for one of the known datasets."""

    def __init__(self, spec: DatasetSpec, *, why: str = "") -> None:
        name, split = spec.name, spec.split
        recipe = RECIPES[name]
        whole = recipe.train if split is Split.TRAIN else recipe.test
        if not whole:
            raise DataNotFoundError(f"the synthetic stand-in of {name} has no {split} split")
        count = spec.size or whole
        count = min(count, spec.limit or count)
        self._recipe = recipe
        self._key = (spec.seed, recipe.number, list(Split).index(split))
        self._side = spec.image_size or recipe.side
        if self._side > MOST_SIDE:
            raise UsageError(
                f"the synthetic stand-in of {name} has no images of {self._side} x {self._side}",
                hint=f"Name a side of {MOST_SIDE} or less.",
            )
        self._info = DatasetInfo(
            name=name,
            split=split,
            count=count,
            image_shape=(self._side, self._side, recipe.channels),
            class_names=tuple(f"class{number:03d}" for number in range(recipe.classes)),
            provenance=Provenance(
                origin=Origin.SYNTHETIC, source=f"synthetic stand-in of {name}", derived_frac=1.0, note=why
            ),
            fingerprint=fingerprint("synthetic", VERSION, self._key, count, self._side),
        )

    def sample(self, index: int) -> tuple[Image, int]:
        check_index(index, self._info.count)
        random = np.random.default_rng((*self._key, index))
        label = int(random.integers(self._recipe.classes))
        return self._recipe.draw(label, self._side, random), label
