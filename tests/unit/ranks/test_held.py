"""Samples that a rank holds for others: kept once, packed in the order asked for."""

import numpy as np
import pytest

from storebench.arrays import Indices
from storebench.errors import CellFailedError
from storebench.ranks.data_store import HeldPayloads, HeldPixels

SHAPE = (2, 3, 1)
OWN = np.array([3, 5, 8], np.int64)


def ids(*samples: int) -> Indices:
    return np.array(samples, np.int64)


def image(sample: int) -> np.ndarray:
    return np.full(SHAPE, sample, np.uint8)


def images(*samples: int) -> np.ndarray:
    return np.stack([image(sample) for sample in samples])


def payload(sample: int) -> bytes:
    return bytes([sample]) * (sample + 1)


def test_a_sample_that_comes_twice_is_kept_once() -> None:
    """Padding of an epoch repeats samples within a batch, and a second pass repeats all of them."""
    held = HeldPixels(OWN, SHAPE)
    held.keep(ids(5, 3, 5), np.stack([image(5), image(3), image(77)]))
    held.keep(ids(5), images(99))
    assert held.held_bytes == 2 * 6
    assert held.pack(ids(5)).tolist() == [5] * 6


def test_pixels_are_packed_in_the_order_asked_for() -> None:
    held = HeldPixels(OWN, SHAPE)
    held.keep(OWN, images(3, 5, 8))
    assert held.pack(ids(8, 3)).tolist() == [8] * 6 + [3] * 6
    out = np.zeros((4, *SHAPE), np.uint8)
    held.put(ids(5, 8), np.array([2, 0]), out)
    assert out[:, 0, 0, 0].tolist() == [8, 0, 5, 0]


def test_payloads_of_any_size_come_back() -> None:
    held = HeldPayloads(OWN)
    held.keep(ids(8, 2, 3), [payload(8), payload(2), payload(3)])
    assert held.sizes.tolist() == [4, 0, 9]
    assert held.held_bytes == 4 + 9
    held.keep(ids(3, 5), [b"another", payload(5)])
    assert held.payloads(ids(5, 8, 3)) == [payload(5), payload(8), payload(3)]
    assert held.pack(ids(8, 5)).tobytes() == payload(8) + payload(5)
    assert held.held_bytes == 4 + 6 + 9


@pytest.mark.parametrize("asked", [(4,), (3, 4), (9,), (8,)], ids=str)
def test_a_sample_that_is_not_held_is_refused(asked: tuple[int, ...]) -> None:
    held = HeldPayloads(OWN)
    held.keep(ids(3, 5), [payload(3), payload(5)])
    with pytest.raises(CellFailedError, match="does not hold"):
        held.payloads(ids(*asked))


def test_a_rank_without_samples_holds_nothing() -> None:
    held = HeldPixels(ids(), SHAPE)
    held.keep(ids(1, 2), images(1, 2))
    assert (held.missing, held.held_bytes, held.pack(ids()).tolist()) == (0, 0, [])
    with pytest.raises(CellFailedError, match="does not hold"):
        held.pack(ids(1))
