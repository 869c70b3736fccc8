"""Cut a dataset, or extend a small real sample to a realistic size.

Sample i of an extended dataset depends on the source, the seed and i alone, so
every process can make it by itself.
"""

from collections import OrderedDict
from typing import Any

import numpy as np
from PIL import Image as PilImage

from storebench.datasets.base import Dataset, DatasetInfo, DatasetSpec, Image, Origin, Provenance
from storebench.datasets.sources import check_index, fingerprint

CACHE_BYTES = 96 << 20
"""Decoded originals that one process caches: 512 of 256 x 256 x 3."""

CROP_AREA_FRAC = (0.7, 1.0)
BRIGHTNESS = (0.8, 1.2)


class _Selection(Dataset):
    """Base of `Subset` and `Grown`: a source dataset and another count."""

    def __init__(self, source: Dataset, count: int, provenance: Provenance, tag: tuple[object, ...]) -> None:
        self._source = source
        old = source.info
        self._info = DatasetInfo(
            name=old.name,
            split=old.split,
            count=count,
            image_shape=old.image_shape,
            class_names=old.class_names,
            provenance=provenance,
            fingerprint=fingerprint(old.fingerprint, count, *tag),
        )

    @property
    def info(self) -> DatasetInfo:
        """The geometry and identity of the dataset."""
        return self._info


class Subset(_Selection):
    """Fewer samples than the source has: the first ones, or evenly spread ones."""

    def __init__(self, source: Dataset, count: int, *, strided: bool) -> None:
        super().__init__(source, count, source.info.provenance, ("subset", strided))
        self._strided = strided

    def sample(self, index: int) -> tuple[Image, int]:
        """Return sample `index` as (uint8 [H, W, C], label)."""
        check_index(index, self._info.count)
        return self._source.sample(index * len(self._source) // self._info.count if self._strided else index)


class Grown(_Selection):
    """More samples than the source has.

    The first ``len(source)`` are the source's own, unchanged. Each further sample
    i is made from original ``i % len(source)``: a crop of 70 to 100% of its area,
    resized back, mirrored half of the time (colour images only, because a
    mirrored digit is another sign), its brightness changed by up to 20%.
    """

    def __init__(self, source: Dataset, count: int, seed: int) -> None:
        old = source.info.provenance
        provenance = Provenance(
            origin=Origin.DERIVED,
            source=old.source,
            derived_frac=1 - len(source) / count,
            note="; ".join(filter(None, (old.note, f"{len(source)} originals grown to {count}"))),
        )
        super().__init__(source, count, provenance, ("grown", seed))
        self._seed = seed
        self._cache: OrderedDict[int, tuple[Image, int]] = OrderedDict()

    @property
    def source(self) -> Dataset:
        """The originals."""
        return self._source

    @property
    def seed(self) -> int:
        """Seed of the derived samples."""
        return self._seed

    def sample(self, index: int) -> tuple[Image, int]:
        """Return sample `index` as (uint8 [H, W, C], label)."""
        check_index(index, self._info.count)
        pixels, label = self._original(index % len(self._source))
        if index < len(self._source):
            return pixels.copy(), label
        return derive(pixels, np.random.default_rng((self._seed, index))), label

    def _original(self, index: int) -> tuple[Image, int]:
        if index in self._cache:
            self._cache.move_to_end(index)
            return self._cache[index]
        kept = self._cache[index] = self._source.sample(index)
        if len(self._cache) * self._info.image_bytes > CACHE_BYTES:
            self._cache.popitem(last=False)
        return kept

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": OrderedDict()}


def derive(pixels: Image, random: np.random.Generator) -> Image:
    """Return a crop of an image, resized back, perhaps mirrored, lighter or darker: uint8, same shape."""
    height, width, channels = pixels.shape
    side = float(np.sqrt(random.uniform(*CROP_AREA_FRAC)))
    left, top = (random.uniform(0, (1 - side) * extent) for extent in (width, height))
    mirrored, brightness = random.random() < 0.5, random.uniform(*BRIGHTNESS)
    picture = PilImage.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    picture = picture.resize(
        (width, height),
        PilImage.Resampling.LANCZOS,
        box=(left, top, left + side * width, top + side * height),
    )
    if mirrored and channels > 1:
        picture = picture.transpose(PilImage.Transpose.FLIP_LEFT_RIGHT)
    levels = (np.arange(256) * brightness).clip(0, 255).astype(np.uint8)
    return np.array(picture.point(levels.tolist() * channels)).reshape(pixels.shape)


def select(source: Dataset, spec: DatasetSpec, *, by_class: bool) -> Dataset:
    """Apply ``spec.size`` and then ``spec.limit``.

    Parameters
    ----------
    by_class
        Whether the samples are sorted by class. A limit then takes evenly
        spread samples, because the first ones would all be of the first classes.
    """
    if spec.size is not None and spec.size > len(source):
        dataset: Dataset = Grown(source, spec.size, spec.seed)
    elif spec.size is not None and spec.size < len(source):
        dataset = Subset(source, spec.size, strided=True)
    else:
        dataset = source
    if spec.limit is None or spec.limit >= len(dataset):
        return dataset
    return _limited(dataset, spec.limit, by_class=by_class)


def _limited(dataset: Dataset, limit: int, *, by_class: bool) -> Dataset:
    if not isinstance(dataset, Grown):
        return Subset(dataset, limit, strided=by_class)
    if limit > len(dataset.source):
        return Grown(dataset.source, limit, dataset.seed)
    if limit == len(dataset.source):
        return dataset.source
    return Subset(dataset.source, limit, strided=by_class)
