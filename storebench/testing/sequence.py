"""An open reader as a sequence, as tests: a part of the contract of a storage format."""

from typing import Any

import numpy as np
import pytest

from storebench.formats.base import Reader
from storebench.testing.stores import COUNT, SmallStore

ONE: list[Any] = [0, 7, COUNT - 1, -1, -COUNT, np.int64(3)]

SEVERAL: list[Any] = [
    [3, 1, 2],
    [-1, 0, -1],
    range(5),
    np.array([60, -2], np.int8),
    slice(2, 9),
    slice(None, None, -20),
    [],
]

OUTSIDE: list[Any] = [COUNT, -COUNT - 1, 10**30, [0, COUNT], [-COUNT - 1]]

NO_INDEX: list[Any] = [1.0, "1", None, [1.0], [True, False], [[1, 2]]]


class SequenceContract:
    """The promises of an open reader to a person who takes samples out of a store; inherited by `FormatContract`."""

    def test_a_reader_gives_a_decoded_sample_by_its_index(self, small: SmallStore, opened: Reader) -> None:
        """Pixels and label; negative indices count from the end, as in a list."""
        for index in ONE:
            pixels, label = opened[index]
            assert pixels.dtype == np.uint8
            np.testing.assert_array_equal(pixels, small.pixels[index])
            assert type(label) is int
            assert label == small.labels[index]

    def test_a_reader_gives_several_samples_by_a_list(self, small: SmallStore, opened: Reader) -> None:
        """In the order of the list, in one array that belongs to the caller."""
        for indices in SEVERAL:
            pixels, labels = opened[indices]
            assert (pixels.dtype, labels.dtype) == (np.uint8, np.int64)
            np.testing.assert_array_equal(pixels, small.pixels[indices])
            np.testing.assert_array_equal(labels, small.labels[indices])
            pixels[...] = labels[...] = 0
        np.testing.assert_array_equal(opened[:][0], small.pixels)
        np.testing.assert_array_equal(opened.labels, small.labels)

    def test_a_reader_is_as_long_as_its_store(self, small: SmallStore, opened: Reader) -> None:
        """And a loop over it ends."""
        assert len(opened) == COUNT
        assert [label for _, label in opened] == small.labels.tolist()

    def test_a_reader_ends_where_a_list_does(self, opened: Reader) -> None:
        """Whether one sample is asked for or several."""
        for index in OUTSIDE:
            with pytest.raises(IndexError, match="out of range"):
                opened[index]

    def test_a_reader_refuses_what_is_no_index(self, opened: Reader) -> None:
        """With the error that a list would raise, and without reading anything."""
        for index in NO_INDEX:
            with pytest.raises(TypeError):
                opened[index]
