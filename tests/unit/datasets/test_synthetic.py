"""The stand-ins: the real geometry and statistics, seeded, learnable, and always labelled."""

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench.codecs import get_codec
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


@pytest.mark.parametrize("name", DATASETS)
def test_fingerprints_are_equal_where_the_samples_are(name: str) -> None:
    prints = [
        stand_in(name, **options).info.fingerprint
        for options in ({"size": 9}, {"size": 20, "limit": 9}, {"size": 9, "seed": 1}, {"size": 10})
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_the_test_split_is_another_and_imagenet_has_none() -> None:
    train, test = stand_in("cifar10", limit=30), stand_in("cifar10", split="test", limit=30)
    assert not set(digests(train)) & set(digests(test))
    with pytest.raises(DataNotFoundError, match="has no test split"):
        stand_in("imagenet", split="test")


def features(dataset: Dataset, count: int) -> tuple[np.ndarray, np.ndarray]:
    samples = [dataset.sample(index) for index in range(count)]
    flat = np.stack([image.astype(np.float64).ravel() / 255 for image, _ in samples])
    flat -= flat.mean(axis=1, keepdims=True)
    return flat, np.array([label for _, label in samples])


@pytest.mark.parametrize(("name", "floor"), [("mnist", 0.8), ("cifar10", 0.6)])
def test_even_the_nearest_class_mean_tells_the_classes_apart(name: str, floor: float) -> None:
    images, classes = features(stand_in(name), 1500)
    means = np.stack([images[classes == label].mean(axis=0) for label in range(10)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    unseen, truth = features(stand_in(name, split="test"), 500)
    assert np.mean((unseen @ means.T).argmax(axis=1) == truth) > floor


def spectrum_slope(images: list[np.ndarray]) -> float:
    """Return the exponent with which the amplitude of the luminance falls with frequency."""
    side = images[0].shape[0]
    window = np.hanning(side)[:, None] * np.hanning(side)[None, :]
    grey = [image.mean(axis=2) - image.mean() for image in images]
    power = np.mean([np.abs(np.fft.fft2(image * window)) ** 2 for image in grey], axis=0)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side)[None, :])
    edges = np.geomspace(4 / side, 0.4, 10)
    rings = [(frequency >= low) & (frequency < high) for low, high in itertools.pairwise(edges)]
    amplitude = [np.sqrt(power[ring].mean()) for ring in rings]
    return float(np.polyfit(np.log(np.sqrt(edges[1:] * edges[:-1])), np.log(amplitude), 1)[0])


def statistics(dataset: Dataset, count: int) -> dict[str, float]:
    images = [dataset.sample(index)[0] for index in range(0, len(dataset), max(1, len(dataset) // count))]
    raw = sum(image.size for image in images)
    channels = [np.corrcoef(image.reshape(-1, 3).T + np.random.default_rng(0).normal(0, 0.01, (3, 1)))
                for image in images if image.shape[2] == 3 and image.std() > 1]  # fmt: skip
    return {
        "png": sum(len(get_codec("png").encode(image)) for image in images) / raw,
        "jpeg": sum(len(get_codec("jpeg").encode(image)) for image in images) / raw,
        "contrast": float(np.mean([image.std() for image in images])),
        "slope": spectrum_slope(images) if images[0].shape[0] > 100 else 0.0,
        "correlation": float(
            np.nanmean([np.asarray(channel)[np.triu_indices(3, 1)].mean() for channel in channels] or [0])
        ),
    }


@pytest.mark.parametrize(
    ("name", "count"),
    [("imagenet", 60), *(pytest.param(name, 500, marks=pytest.mark.full) for name in ("cifar10", "mnist"))],
)
def test_a_stand_in_compresses_and_looks_like_the_real_images(data_root: Path, name: str, count: int) -> None:
    real = statistics(open_dataset(DatasetSpec(name=name, synthetic=False), data_root), count)
    made = statistics(stand_in(name), count)
    assert made["png"] == pytest.approx(real["png"], rel=0.15)
    assert made["jpeg"] == pytest.approx(real["jpeg"], rel=0.15)
    assert made["contrast"] == pytest.approx(real["contrast"], rel=0.15)
    assert made["correlation"] == pytest.approx(real["correlation"], abs=0.1)
    assert made["slope"] == pytest.approx(real["slope"], abs=0.3)
