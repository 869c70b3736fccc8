"""Synthetic stand-ins with the geometry of the real datasets, used if there are no real files."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from storebench.datasets import scenes
from storebench.datasets.base import Dataset, DatasetInfo, DatasetSpec, Image, Origin, Provenance
from storebench.datasets.sources import check_index, fingerprint
from storebench.errors import DataNotFoundError, UsageError
from storebench.settings.words import Split

VERSION = 1
"""Part of the fingerprint; increased whenever the same seed gives different pixels."""

MOST_SIDE = 512
"""Largest side of a stand-in's images: they are cut from fields of 640 x 640."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The recipe of one stand-in; a count of 0 means that it has no such split."""

    number: int
    draw: Callable[[int, int, np.random.Generator], Image]
    side: int
    channels: int
    class_names: tuple[str, ...]
    counts: dict[Split, int]


def _classes(count: int) -> tuple[str, ...]:
    return tuple(f"class{number:03d}" for number in range(count))


RECIPES = {
    "mnist": Recipe(
        number=1,
        draw=scenes.digit,
        side=28,
        channels=1,
        class_names=_classes(10),
        counts={Split.TRAIN: 10_000, Split.TEST: 2_000},
    ),
    "cifar10": Recipe(
        number=2,
        draw=scenes.thumbnail,
        side=32,
        channels=3,
        class_names=_classes(10),
        counts={Split.TRAIN: 5_000, Split.TEST: 1_000},
    ),
    "imagenet": Recipe(
        number=3,
        draw=scenes.photograph,
        side=256,
        channels=3,
        class_names=_classes(200),
        counts={Split.TRAIN: 200, Split.TEST: 0},
    ),
}


class SyntheticDataset(Dataset):
    """A stand-in for one of the known datasets."""

    def __init__(self, spec: DatasetSpec, *, why: str = "") -> None:
        name, split = spec.name, spec.split
        recipe = RECIPES[name]
        if not recipe.counts[split]:
            raise DataNotFoundError(f"the synthetic stand-in of {name} has no {split} split")
        count = spec.size or recipe.counts[split]
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
            class_names=recipe.class_names,
            provenance=Provenance(
                origin=Origin.SYNTHETIC, source=f"synthetic stand-in of {name}", derived_frac=1.0, note=why
            ),
            fingerprint=fingerprint("synthetic", VERSION, self._key, count, *sized),
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
        return self._recipe.draw(label, self._side, random), label
