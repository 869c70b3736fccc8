"""The stand-ins: the real geometry and statistics, seeded, learnable, and always labelled."""

import pickle
from typing import Any

import numpy as np
import pytest

from storebench.datasets import DATASETS, Dataset, DatasetSpec, Origin, open_dataset
from storebench.errors import DataNotFoundError
from tests.support.dataset_files import digests


def stand_in(name: str, **options: Any) -> Dataset:
    return open_dataset(DatasetSpec(name=name, synthetic=True, **options))


@pytest.mark.parametrize("name", DATASETS)
def test_a_stand_in_has_the_real_geometry_and_says_what_it_is(name: str) -> None:
    shapes = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3), "imagenet": (256, 256, 3)}
    dataset = stand_in(name)
    image, label = dataset.sample(3)
    assert image.shape == dataset.info.image_shape == shapes[name]
    assert image.dtype == np.uint8
    assert 0 <= label < dataset.info.num_classes
    assert dataset.info.provenance.origin is Origin.SYNTHETIC
    assert "synthetic" in dataset.info.provenance.source


@pytest.mark.parametrize("name", DATASETS)
def test_samples_are_decided_by_seed_and_index(name: str) -> None:
    one = digests(stand_in(name, size=12, limit=12))
    assert len(set(one)) == 12
    assert digests(pickle.loads(pickle.dumps(stand_in(name, size=12)))) == one
    assert digests(stand_in(name, size=20, limit=12)) == one
    assert not set(one) & set(digests(stand_in(name, size=12, seed=1)))


def test_the_test_split_is_another_and_imagenet_has_none() -> None:
    train, test = stand_in("cifar10", limit=30), stand_in("cifar10", split="test", limit=30)
    assert not set(digests(train)) & set(digests(test))
    with pytest.raises(DataNotFoundError, match="has no test split"):
        stand_in("imagenet", split="test")
