"""Synthetic stand-ins of the datasets: photographs and digits that resemble real ones to compressors and networks."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storebench.datasets.base import Dataset, DatasetInfo, DatasetSpec, Image, Origin, Provenance
from storebench.datasets.sources import check_index, fingerprint
from storebench.errors import DataNotFoundError, UsageError
from storebench.settings.words import Split

FIELD_SIDE = 640
FIELD_COUNT = 4
LEAVES = 1600

Float32s = npt.NDArray[np.float32]


def _picture(
    label: int,
    side: int,
    random: np.random.Generator,
    *,
    contrast: tuple[float, float],  # mean and deviation of the images' standard deviation, of 255 levels
    grain: float,  # mean of the grain's standard deviation; PNG cannot compress grain
    pattern_frac: float,  # share of the contrast that comes from the class's pattern
) -> Image:
    """Return a synthetic photograph of class `label`, uint8 [side, side, 3]."""
    scene = _cut(_field(int(random.integers(FIELD_COUNT))), side, random)
    scene -= scene.mean()
    scene *= np.sqrt(1 - pattern_frac) / (scene.std() + 1e-3)
    scene += np.sqrt(pattern_frac) * _pattern(label, side)
    scene *= max(15.0, random.normal(*contrast))
    scene += _cut(_grain(), side, random) * (grain * random.gamma(2.0, 0.5))
    scene += random.normal(118.0, 20.0)
    return scene.clip(0, 255, out=scene).astype(np.uint8)


photograph = functools.partial(_picture, contrast=(60.0, 14.0), grain=2.2, pattern_frac=0.3)
thumbnail = functools.partial(_picture, contrast=(54.0, 14.0), grain=2.5, pattern_frac=0.5)


def _cut(field: Float32s, side: int, random: np.random.Generator) -> Float32s:
    """Return a copy of a random square of `field`, perhaps mirrored."""
    top, left = random.integers(0, FIELD_SIDE - side, 2)
    step = 1 if random.random() < 0.5 else -1
    return field[top : top + side, left : left + side][:, ::step].copy()


@functools.cache
def _grain() -> Float32s:
    random = np.random.default_rng(0x6A41)
    return random.standard_normal((FIELD_SIDE, FIELD_SIDE, 3), dtype=np.float32)


@functools.cache
def _field(number: int) -> Float32s:
    """Return one large scene from which photographs are cut: float32 [640, 640, 3]."""
    random = np.random.default_rng((0x5CE9E, number))
    texture = np.stack([_spectral_noise(random) for _ in range(4)], axis=-1)
    things = _dead_leaves(random)
    # Some objects are smooth and some are rough, like sky and grass.
    mixed = things[:, :, :4] + 0.25 * things[:, :, 4:] ** 2 * texture
    # One luminance shared by the three channels, and a little colour in each.
    return (mixed[:, :, :1] + 0.28 * mixed[:, :, 1:]).astype(np.float32)


def _spectral_noise(random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return noise with an amplitude that falls as 1/f, deviation 1."""
    rows, columns = np.fft.fftfreq(FIELD_SIDE)[:, None], np.fft.rfftfreq(FIELD_SIDE)[None, :]
    frequency = np.hypot(rows, columns)
    frequency[0, 0] = np.inf
    noise = np.fft.rfft2(random.standard_normal((FIELD_SIDE, FIELD_SIDE))) / frequency
    field = np.fft.irfft2(noise, s=(FIELD_SIDE, FIELD_SIDE))
    return np.asarray(field / field.std())


def _dead_leaves(random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return overlapping discs with radii that fall as r^-3; their edges resemble those of photographs."""
    canvas = np.zeros((FIELD_SIDE, FIELD_SIDE, 5))
    low, high = (radius**-2 for radius in (3.0, 160.0))
    radii = (low + random.random(LEAVES) * (high - low)) ** -0.5
    centres = random.uniform(0, FIELD_SIDE, (LEAVES, 2))
    values = random.standard_normal((LEAVES, 5))
    for radius, (y, x), value in zip(radii, centres, values, strict=True):
        rows = slice(max(0, int(y - radius)), int(y + radius) + 1)
        columns = slice(max(0, int(x - radius)), int(x + radius) + 1)
        box = canvas[rows, columns]
        dy = np.arange(rows.start, rows.start + box.shape[0])[:, None] - y
        dx = np.arange(columns.start, columns.start + box.shape[1])[None, :] - x
        box[dy * dy + dx * dx < radius * radius] = value
    return canvas


def _pattern(label: int, side: int) -> Float32s:
    """Return the coarse colour pattern of a class: float32 [side, side, 3], mean 0, deviation 1."""
    basis = _cosines(side)
    # Plain sums, not a matrix product: for so little data a threaded BLAS costs more than it saves.
    across = np.einsum("cij,xj->ixc", _pattern_weights(label), basis)
    pattern: Float32s = basis[:, 0, None, None] * across[0]
    for wave in range(1, _WAVES):
        pattern += basis[:, wave, None, None] * across[wave]
    return pattern


_WAVES = 4


@functools.cache
def _pattern_weights(label: int) -> Float32s:
    """Return the weights of a class's waves, float32 [3, 4, 4], scaled so that the pattern has deviation 1."""
    random = np.random.default_rng((0xC1A55, label))
    weights = random.standard_normal((1, _WAVES, _WAVES)) + 0.35 * random.standard_normal((3, _WAVES, _WAVES))
    weights[:, 0, 0] = 0
    # The cosines are orthonormal, so the pattern's power is the sum of the squares.
    return np.asarray(weights / np.sqrt((weights**2).sum() / 3), dtype=np.float32)


@functools.cache
def _cosines(side: int) -> Float32s:
    """Return the first cosines over `side` pixels, each with mean square 1: float32 [side, 4]."""
    phase = np.pi * (np.arange(side)[:, None] + 0.5) / side * np.arange(_WAVES)[None, :]
    return np.asarray(np.cos(phase) * np.where(np.arange(_WAVES) == 0, 1, np.sqrt(2)), dtype=np.float32)


def digit(label: int, side: int, random: np.random.Generator) -> Image:
    """Return a synthetic hand-written sign of class `label`, white on black: uint8 [side, side, 1]."""
    points = _stroke(label) + random.normal(0, 0.03, (1, 2))
    angle, scale = random.normal(0, 0.12), random.normal(1, 0.08)
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    # A smooth bend, the same along the stroke, gives every instance of a sign its own shape.
    bend = random.normal(0, 0.05, (2, 2)) @ np.sin(np.pi * np.vstack((points[:, 0], points[:, 1])))
    placed = side * (0.5 + (points @ turn.T + bend.T) * 0.33)
    grid = np.arange(side) + 0.5
    rows = (grid[:, None] - placed[None, :, 1]) ** 2
    columns = (grid[:, None] - placed[None, :, 0]) ** 2
    distance = np.sqrt((rows[:, None, :] + columns[None, :, :]).min(axis=2))
    width = random.uniform(0.6, 1.5)
    ink = (255 * (width + 0.5 - distance)).clip(0, 255)
    return np.asarray(ink, dtype=np.uint8)[:, :, np.newaxis]


_STROKE_POINTS = 48


@functools.cache
def _stroke(label: int) -> npt.NDArray[np.float64]:
    """Return the stroke of a class: points [48, 2] between -1 and 1 on a smooth curve."""
    random = np.random.default_rng((0xD1617, label))
    time = np.linspace(0, 1, 8 * _STROKE_POINTS)[:, None]
    curve = np.zeros((len(time), 2))
    for wave in (1, 2, 3):
        phase = random.uniform(0, 2 * np.pi, 2)
        curve += random.normal(0, 1 / wave, 2) * np.cos(np.pi * wave * time + phase)
    curve -= (curve.max(axis=0) + curve.min(axis=0)) / 2
    curve /= np.abs(curve).max(axis=0)
    # Points at equal distances along the curve, so that the stroke has no gaps.
    length = np.concatenate(([0], np.hypot(*np.diff(curve, axis=0).T).cumsum()))
    places = np.linspace(0, length[-1], _STROKE_POINTS)
    return np.stack([np.interp(places, length, axis) for axis in curve.T], axis=-1)


VERSION = 1  # part of the fingerprint; increased whenever the same seed gives different pixels
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
        # Fingerprints of stores that were built before sizes could be asked for stay as they are.
        sized = () if self._side == recipe.side else (self._side,)
        self._info = DatasetInfo(
            name=name,
            split=split,
            count=count,
            image_shape=(self._side, self._side, recipe.channels),
            class_names=tuple(f"class{number:03d}" for number in range(recipe.classes)),
            provenance=Provenance(
                origin=Origin.SYNTHETIC, source=f"synthetic stand-in of {name}", derived_frac=1.0, note=why
            ),
            fingerprint=fingerprint("synthetic", VERSION, self._key, count, *sized),
        )

    def sample(self, index: int) -> tuple[Image, int]:
        check_index(index, self._info.count)
        random = np.random.default_rng((*self._key, index))
        label = int(random.integers(self._recipe.classes))
        return self._recipe.draw(label, self._side, random), label
