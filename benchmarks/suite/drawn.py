"""Seeded images in memory for the benchmarks."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from storebench.datasets import DatasetSpec, open_dataset
from storebench.datasets.base import Dataset, DatasetInfo, Image
from storebench.errors import MissingDependencyError

BATCH = 64
SAMPLES = 1024
LARGE_SAMPLES = 64


class DrawnDataset(Dataset):
    """A dataset whose samples are in memory, so that conversions are timed without drawing or decoding them."""

    def __init__(self, info: DatasetInfo, samples: list[tuple[Image, int]]) -> None:
        self._info = info
        self._samples = samples

    @property
    def info(self) -> DatasetInfo:
        return self._info

    def sample(self, index: int) -> tuple[Image, int]:
        return self._samples[index]

    def first(self, count: int) -> "DrawnDataset":
        fingerprint = f"{self._info.fingerprint}-first{count}"
        info = dataclasses.replace(self._info, count=count, fingerprint=fingerprint)
        return DrawnDataset(info, self._samples[:count])

    def pixels(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.stack([image for image, _ in self._samples])


def draw(name: str, count: int) -> DrawnDataset:
    """Draw the seeded stand-in: equal on every machine."""
    dataset = open_dataset(DatasetSpec(name=name, limit=count, synthetic=True))
    return DrawnDataset(dataset.info, [dataset.sample(index) for index in range(len(dataset))])


@contextlib.contextmanager
def skip_without_library() -> Iterator[None]:
    try:
        yield
    except MissingDependencyError as error:
        pytest.skip(str(error))
