"""Stand-ins with the geometry of the real datasets, for where there are no real files.

Sample i is decided by (seed, dataset, split, i) alone; `scenes` draws it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from storebench.datasets import scenes
from storebench.datasets.base import Dataset, DatasetInfo, Image, Origin, Provenance
from storebench.datasets.sources import check_index, fingerprint
from storebench.errors import DataNotFoundError

VERSION = 1
"""Part of the fingerprint: raised whenever the same seed gives other pixels."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one stand-in is made; a count of 0 means that there is no such split."""

    number: int
    draw: Callable[[int, int, np.random.Generator], Image]
    side: int
    channels: int
    class_names: tuple[str, ...]
    counts: dict[str, int]


def _classes(count: int) -> tuple[str, ...]:
    return tuple(f"class{number:03d}" for number in range(count))


RECIPES = {
    "mnist": Recipe(
        number=1,
        draw=scenes.digit,
        side=28,
        channels=1,
        class_names=_classes(10),
        counts={"train": 10_000, "test": 2_000},
    ),
    "cifar10": Recipe(
        number=2,
        draw=scenes.thumbnail,
        side=32,
        channels=3,
        class_names=_classes(10),
        counts={"train": 5_000, "test": 1_000},
    ),
    "imagenet": Recipe(
        number=3,
        draw=scenes.photograph,
        side=256,
        channels=3,
        class_names=_classes(200),
        counts={"train": 200, "test": 0},
    ),
}


class SyntheticDataset(Dataset):
    """A stand-in for one of the known datasets.

    Parameters
    ----------
    name
        "mnist", "cifar10" or "imagenet".
    size, limit
        Samples; None for the recipe's own count, and for all of them.
    why
        What the provenance says about why it is not the real one.

    Raises
    ------
    DataNotFoundError
        The stand-in has no such split.
    """

    def __init__(
        self,
        name: str,
        split: str,
        *,
        size: int | None = None,
        limit: int | None = None,
        seed: int = 0,
        why: str = "",
    ) -> None:
        recipe = RECIPES[name]
        if not recipe.counts[split]:
            raise DataNotFoundError(f"the synthetic stand-in of {name} has no {split} split")
        count = size or recipe.counts[split]
        count = min(count, limit or count)
        self._recipe = recipe
        self._key = (seed, recipe.number, ("train", "test").index(split))
        self._info = DatasetInfo(
            name=name,
            split=split,
            count=count,
            image_shape=(recipe.side, recipe.side, recipe.channels),
            class_names=recipe.class_names,
            provenance=Provenance(
                origin=Origin.SYNTHETIC, source=f"synthetic stand-in of {name}", derived_frac=1.0, note=why
            ),
            fingerprint=fingerprint("synthetic", VERSION, self._key, count),
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
        return self._recipe.draw(label, self._recipe.side, random), label
