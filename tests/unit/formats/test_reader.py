"""What the base class of readers promises for every format: the index rules of a list, and refusals once closed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from storebench.formats.registry import get_format
from storebench.testing.stores import COUNT, SHAPE, SmallStore, build_small_store, some_windows

ONE: list[Any] = [0, COUNT - 1, -1, -COUNT, np.int64(3)]

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


@pytest.fixture(scope="module", params=["lmdb+raw", "files+jpeg"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    name, codec = request.param.split("+")
    return build_small_store(get_format(name), codec, tmp_path_factory.mktemp("small"))


def test_a_reader_is_indexed_as_a_list_is(small: SmallStore) -> None:
    """Decoded samples with their labels, in arrays that belong to the caller, and the errors of a list."""
    with small.open() as opened:
        for index in ONE:
            pixels, label = opened[index]
            np.testing.assert_array_equal(pixels, small.pixels[index])
            assert type(label) is int
            assert label == small.labels[index]
        for indices in SEVERAL:
            batch, labels = opened[indices]
            assert (batch.dtype, labels.dtype) == (np.uint8, np.int64)
            np.testing.assert_array_equal(batch, small.pixels[indices])
            np.testing.assert_array_equal(labels, small.labels[indices])
            batch[...] = labels[...] = 0
        assert len(opened) == COUNT
        assert [label for _, label in opened] == small.labels.tolist()
        for index in OUTSIDE:
            with pytest.raises(IndexError, match="out of range"):
                opened[index]
        for index in NO_INDEX:
            with pytest.raises(TypeError):
                opened[index]


def test_a_closed_reader_says_so(small: SmallStore) -> None:
    """With the same error for any request."""
    opened = small.open()
    opened.close()
    assert opened.closed
    indices, out = np.arange(6), np.empty((6, *SHAPE), np.uint8)
    calls: list[Callable[[], object]] = [
        lambda: opened.fetch(indices),
        lambda: opened.fetch_into(indices, out),
        lambda: opened.fetch_windows(indices, some_windows(6), out),
        lambda: opened.plan([indices]),
        lambda: opened[0],
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="closed"):
            call()
