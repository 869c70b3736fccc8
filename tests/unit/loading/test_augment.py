"""Augmentation: the same pixels for a sample in an epoch, whoever prepares it and in whatever company."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storebench.loading.augment import Augment, center_crop, random_bits

SHAPE = (9, 11, 3)
IMAGES = np.random.default_rng(0).integers(0, 256, (40, *SHAPE), dtype=np.uint8)
MASK = 2**64 - 1

GOLDEN = {
    ((256, 256, 3), 227, True): "e1b7abd1584086486f33b4c345fceec6",
    ((256, 256, 3), 224, False): "5547ea128ba2868ccdb15a2fda66a471",
    ((32, 32, 3), 28, True): "f48d8bebeb0774d8a4bf976ded6eb9e6",
    ((40, 37, 3), None, True): "d4a477320f89834cc93593facaba64bd",
    ((28, 28, 1), 21, True): "ff452275b13ffb4c54e94fe33f86ca00",
    ((19, 23, 4), 19, True): "081420b47ee162a693bd1bf6898b8861",
}
"""(image shape, crop, mirror) -> digest of 16 images as release 0.1.0 augmented them, by numpy and torch alone."""


def applied(augment: Augment, numbers: list[int], seed: int, epoch: int) -> np.ndarray:
    indices = np.array(numbers, dtype=np.int64)
    out = np.zeros((len(numbers), *augment.output_shape(SHAPE)), dtype=np.uint8)
    augment.apply(IMAGES[indices % len(IMAGES)], indices, out, seed=seed, epoch=epoch)
    return out


def splitmix(state: int) -> int:
    """Return the first output of SplitMix64 from `state`, as in Steele, Lea and Flood (2014)."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_the_pixels_are_those_of_earlier_releases(
    case: tuple[tuple[int, int, int], int | None, bool],
) -> None:
    shape, crop, mirror = case
    images = np.random.default_rng(1).integers(0, 256, (16, *shape), dtype=np.uint8)
    augment = Augment(crop=crop, mirror=mirror)
    out = np.zeros((16, *augment.output_shape(shape)), np.uint8)
    indices = np.arange(100, 1700, 100)
    augment.apply(images, indices, out, seed=7, epoch=2)
    assert hashlib.blake2b(out.data, digest_size=16).hexdigest() == GOLDEN[case]


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=20),
    st.integers(0, 2**32),
    st.integers(0, 1000),
    st.integers(1, 9),
    st.booleans(),
)
def test_a_sample_is_augmented_alike_alone_and_in_any_batch(
    numbers: list[int], seed: int, epoch: int, crop: int, mirror: bool
) -> None:
    augment = Augment(crop=crop, mirror=mirror)
    together = applied(augment, numbers, seed, epoch)
    alone = [applied(augment, [number], seed, epoch)[0] for number in numbers]
    np.testing.assert_array_equal(together, alone)


@given(st.integers(0, 2**32), st.integers(0, 2**20), st.integers(0, 2**62))
def test_the_bits_are_splitmix64s(seed: int, epoch: int, index: int) -> None:
    """By plain integers: the stream of (seed, epoch), then the stream's output for the index."""
    golden = 0x9E3779B97F4A7C15
    stream = splitmix((seed + golden * epoch) & MASK)
    expected = splitmix((stream + golden * index) & MASK)
    assert random_bits(np.array([index]), seed=seed, epoch=epoch).tolist() == [expected]


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=20), st.integers(0, MASK >> 1), st.integers(0, 1000)
)
def test_the_same_is_cut_with_and_without_the_kernel(numbers: list[int], seed: int, epoch: int) -> None:
    indices, augment = np.array(numbers), Augment(crop=7, mirror=True)
    fast, slow = (np.zeros((len(numbers), 7, 7, 3), np.uint8) for _ in range(2))
    images = IMAGES[indices % len(IMAGES)]
    augment.apply(images, indices, fast, seed=seed, epoch=epoch)
    augment.apply_without_kernel(images, indices, slow, seed=seed, epoch=epoch)
    np.testing.assert_array_equal(fast, slow)


def test_a_crop_that_is_larger_than_the_images_is_refused() -> None:
    for crop in (10, 12):
        with pytest.raises(ValueError, match=f"a crop of {crop}x{crop} does not fit"):
            applied(Augment(crop=crop), [1], seed=0, epoch=0)


@pytest.mark.parametrize("change", [{"seed": 1}, {"epoch": 1}])
def test_seed_and_epoch_change_what_is_cut(change: dict[str, int]) -> None:
    numbers = list(range(40))
    augment = Augment(crop=4, mirror=True)
    first = applied(augment, numbers, seed=0, epoch=0)
    other = applied(augment, numbers, **{"seed": 0, "epoch": 0, **change})
    assert (first != other).any(axis=(1, 2, 3)).mean() > 0.8


def test_the_middle_is_cut_for_evaluation() -> None:
    np.testing.assert_array_equal(center_crop(IMAGES, 3), IMAGES[:, 3:6, 4:7])
    assert center_crop(IMAGES, None) is IMAGES
