"""Readers that misbehave on purpose, in the place of the readers of every format."""

import errno
from pathlib import Path

import numpy as np
import pytest

from storebench.formats.base import Reader
from storebench.formats.registry import get_format
from storebench.testing.doubles import Double, doubled, failing, slow, wrong_pixels
from storebench.testing.stores import SHAPE, SmallStore, build_small_store, read_pixels

MIDDLE = (SHAPE[0] // 2, SHAPE[1] // 2, 0)


@pytest.fixture(params=["lmdb+raw", "files+png", "parquet+jpeg", "memory+raw"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> SmallStore:
    name, codec = request.param.split("+")
    return build_small_store(get_format(name), codec, tmp_path, count=12)


def opened(small: SmallStore, double: Double) -> Reader:
    """Open a store with the double of its format's default reader."""
    reader = small.format.readers()[small.format.info.default_reader].reader
    return double(reader)(small.path, small.manifest, reader.options_type())


def test_a_wrong_pixel_is_wrong_by_one_bit_in_its_own_sample(small: SmallStore) -> None:
    with opened(small, wrong_pixels(7, 3)) as reader:
        served = read_pixels(reader, range(12))
    wrong = [index for index in range(12) if not np.array_equal(served[index], small.pixels[index])]
    assert wrong == [3, 7]
    if small.manifest.codec != "jpeg":
        differs = np.argwhere(served != small.pixels)
        assert [tuple(place) for place in differs] == [(3, *MIDDLE), (7, *MIDDLE)]
    assert served[(7, *MIDDLE)] != small.pixels[(7, *MIDDLE)]


def test_a_failing_sample_is_an_error_of_the_device_and_others_are_served(small: SmallStore) -> None:
    with opened(small, failing(at=7)) as reader:
        for _ in range(2):
            np.testing.assert_array_equal(read_pixels(reader, [6, 8]), small.pixels[[6, 8]])
            with pytest.raises(OSError, match="Input/output error") as caught:
                read_pixels(reader, [6, 7])
            assert caught.value.errno == errno.EIO
            assert caught.value.filename == str(small.path)


def test_a_doubled_format_has_its_originals_readers_and_the_doubles(tmp_path: Path) -> None:
    original = get_format("lmdb")
    faulty = doubled(type(original), "faulty", wrong=wrong_pixels(0), broken=failing(at=1))()
    assert faulty.info.name == "faulty"
    assert faulty.info.default_reader == original.info.default_reader
    assert set(faulty.readers()) == {*original.readers(), "wrong", "broken"}
    assert faulty.traits("wrong") == original.traits()
    with pytest.raises(ValueError, match="has a reader called 'get' already"):
        doubled(type(original), "faulty", get=slow(seconds=1))
    small = build_small_store(faulty, "raw", tmp_path, count=3)
    with small.open() as reader:
        np.testing.assert_array_equal(read_pixels(reader, [0, 1, 2]), small.pixels)
    with small.open("wrong") as reader:
        assert (read_pixels(reader, [0, 1, 2]) != small.pixels).sum() == 1
    with small.open("broken") as reader, pytest.raises(OSError, match="Input/output error"):
        read_pixels(reader, [0, 1, 2])
