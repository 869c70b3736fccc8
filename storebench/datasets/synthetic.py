"""Stand-ins with the geometry of the real datasets, for where there are no real files.

Sample i is decided by (seed, dataset, split, i) alone. The photographs have
what compressors and eyes see in real ones: an amplitude spectrum of 1/f,
colour channels that go together, and edges where things cover each other. Each
class has a structure of its own, so that a network can learn.
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storebench.datasets.base import Dataset, DatasetInfo, Image, Origin, Provenance
from storebench.datasets.sources import check_index, fingerprint
from storebench.errors import DataNotFoundError

VERSION = 1
"""Part of the fingerprint: raised whenever the same seed gives other pixels."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The geometry and the counts of one stand-in; a count of 0 means that there is no such split."""

    number: int
    side: int
    channels: int
    class_names: tuple[str, ...]
    counts: dict[str, int]


def _classes(count: int) -> tuple[str, ...]:
    return tuple(f"class{number:03d}" for number in range(count))


RECIPES = {
    "mnist": Recipe(
        number=1, side=28, channels=1, class_names=_classes(10), counts={"train": 10_000, "test": 2_000}
    ),
    "cifar10": Recipe(
        number=2, side=32, channels=3, class_names=_classes(10), counts={"train": 5_000, "test": 1_000}
    ),
    "imagenet": Recipe(
        number=3, side=256, channels=3, class_names=_classes(200), counts={"train": 200, "test": 0}
    ),
}


class SyntheticDataset(Dataset):
    """A stand-in for one of the known datasets.

    Parameters
    ----------
    name
        "mnist", "cifar10" or "imagenet".
    count
        Samples; None for the recipe's own count.
    why
        What the provenance says about why it is not the real one.

    Raises
    ------
    DataNotFoundError
        The stand-in has no such split.
    """

    def __init__(
        self, name: str, split: str, *, count: int | None = None, seed: int = 0, why: str = ""
    ) -> None:
        recipe = RECIPES[name]
        if not recipe.counts[split]:
            raise DataNotFoundError(f"the synthetic stand-in of {name} has no {split} split")
        self._recipe = recipe
        self._key = (seed, recipe.number, ("train", "test").index(split))
        self._info = DatasetInfo(
            name=name,
            split=split,
            count=count or recipe.counts[split],
            image_shape=(recipe.side, recipe.side, recipe.channels),
            class_names=recipe.class_names,
            provenance=Provenance(
                origin=Origin.SYNTHETIC, source=f"synthetic stand-in of {name}", derived_frac=1.0, note=why
            ),
            fingerprint=fingerprint("synthetic", VERSION, self._key, count or recipe.counts[split]),
        )

    @property
    def info(self) -> DatasetInfo:
        """The geometry and identity of the dataset."""
        return self._info

    def sample(self, index: int) -> tuple[Image, int]:
        """Return sample `index` as (uint8 [H, W, C], label)."""
        check_index(index, self._info.count)
        random = np.random.default_rng((*self._key, index))
        label = int(random.integers(len(self._recipe.class_names)))
        draw = _digit if self._recipe.channels == 1 else _photograph
        return draw(label, self._recipe.side, random), label


FIELD_SIDE = 512
FIELD_COUNT = 6


@functools.cache
def _field(number: int) -> npt.NDArray[np.float32]:
    """Return one large picture that samples are cut from: float32 [512, 512, 3], mean 0, deviation about 1."""
    random = np.random.default_rng((0x5EED, number))
    frequency = np.hypot(np.fft.fftfreq(FIELD_SIDE)[:, None], np.fft.rfftfreq(FIELD_SIDE)[None, :])
    frequency[0, 0] = np.inf
    layers = []
    for _ in range(3):
        noise = np.fft.rfft2(random.standard_normal((FIELD_SIDE, FIELD_SIDE)))
        layer = np.fft.irfft2(noise / frequency, s=(FIELD_SIDE, FIELD_SIDE))
        layers.append(layer / layer.std())
    return np.stack(layers, axis=-1).astype(np.float32)


def _photograph(label: int, side: int, random: np.random.Generator) -> Image:
    field = _field(int(random.integers(FIELD_COUNT)))
    top, left = random.integers(0, FIELD_SIDE - side, 2)
    cut = field[top : top + side, left : left + side] * 50
    return (cut + 128).clip(0, 255).astype(np.uint8)


def _digit(label: int, side: int, random: np.random.Generator) -> Image:
    return random.integers(0, 255, (side, side, 1), dtype=np.uint8)
