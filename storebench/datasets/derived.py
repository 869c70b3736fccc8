"""Cut a dataset, or extend a small real sample to a realistic size."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage

from storebench.datasets.base import Dataset, DatasetInfo, DatasetSpec, Image, Origin, Provenance
from storebench.datasets.sources import check_index, fingerprint

CACHE_BYTES = 96 << 20  # decoded originals that one process caches: 512 of 256 x 256 x 3


# Returns the provenance of chosen samples, given that of the source and how further samples are made.
Note = Callable[[Provenance, str], Provenance]


class ChosenSamples(Dataset):
    """Samples of a source dataset by their places in it; `tag` tells selections of it apart."""

    def __init__(
        self, source: Dataset, places: Sequence[int], tag: tuple[object, ...], note: Note = lambda old, _: old
    ) -> None:
        self.source, self.places = source, places

        def selected(old: DatasetInfo, how: str) -> DatasetInfo:
            return dataclasses.replace(
                old,
                count=len(places),
                provenance=note(old.provenance, how),
                fingerprint=fingerprint(old.fingerprint, *tag),
            )

        self._info = selected(source.info, "grown")
        files = source.original_info
        self.original_info = None if files is None else selected(files, "repeated")
        self.resize_note, self.layout_note = source.resize_note, source.layout_note
        self.skip_note, self.thread_safe = source.skip_note, source.thread_safe
        self.in_memory = source.in_memory

    def sample(self, index: int) -> tuple[Image, int]:
        check_index(index, len(self))
        return self.source.sample(self.place(index))

    def original(self, index: int) -> tuple[bytes, int]:
        check_index(index, len(self))
        return self.source.original(self.place(index))

    def name(self, index: int) -> str:
        return self.source.name(self.place(index))

    def locate(self, index: int) -> str:
        return self.source.locate(self.place(index))

    def file_sizes(self) -> npt.NDArray[np.int64] | None:
        sizes = self.source.file_sizes()
        return None if sizes is None else sizes[[self.place(index) for index in range(len(self))]]

    def place(self, index: int) -> int:
        """Return the index in the source of the image that sample `index` is, or is made of."""
        return self.places[index]


class Grown(ChosenSamples):
    """More samples than the source has."""

    def __init__(self, source: Dataset, count: int, seed: int) -> None:
        self.seed = seed
        self._cache: dict[int, tuple[Image, int]] = {}

        def note(old: Provenance, how: str) -> Provenance:
            noted = old.noted(f"{len(source)} originals {how} to {count}")
            return dataclasses.replace(noted, origin=Origin.DERIVED, derived_frac=1 - len(source) / count)

        super().__init__(source, range(count), (count, "grown", seed), note)

    def sample(self, index: int) -> tuple[Image, int]:
        check_index(index, len(self))
        place = self.place(index)
        kept = self._cache.get(place) or self.source.sample(place)
        if not self.source.in_memory and len(self._cache) * self.info.image_bytes < CACHE_BYTES:
            self._cache[place] = kept
        pixels, label = kept
        if index < len(self.source):
            return pixels.copy(), label
        return derive(pixels, np.random.default_rng((self.seed, index))), label

    def place(self, index: int) -> int:
        return index % len(self.source)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}}


def derive(pixels: Image, random: np.random.Generator) -> Image:
    """Return a crop of an image, resized back, perhaps mirrored, lighter or darker: uint8, same shape."""
    height, width, channels = pixels.shape
    side = float(np.sqrt(random.uniform(0.7, 1.0)))
    left, top = (random.uniform(0, (1 - side) * extent) for extent in (width, height))
    mirrored, brightness = random.random() < 0.5, random.uniform(0.8, 1.2)
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
    """Apply ``spec.size`` and then ``spec.limit``."""
    size = spec.size or len(source)
    count = min(size, spec.limit or size)
    if count > len(source):
        return Grown(source, count, spec.seed)
    if size < len(source):
        source = _subset(source, size, strided=True)
    return source if count == len(source) else _subset(source, count, strided=by_class)


def _subset(source: Dataset, count: int, *, strided: bool) -> Dataset:
    """Return the first `count` samples, or one at random from each of `count` equal parts."""
    ends, random = [at * len(source) // count for at in range(count + 1)], Random(count)
    spread = [random.randrange(*part) for part in itertools.pairwise(ends)] if strided else range(count)
    return ChosenSamples(source, spread, (count, "one of each part" if strided else "first"))


def places_in(dataset: Dataset, source: Dataset) -> Sequence[int]:
    """Return the indices in `source` of the images that the samples of a selection of it are, or are made of."""
    places: Sequence[int] = range(len(dataset))
    while dataset is not source and isinstance(dataset, ChosenSamples):
        places = [dataset.place(place) for place in places]
        dataset = dataset.source
    return places
