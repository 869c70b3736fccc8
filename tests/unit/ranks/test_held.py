"""Samples that a rank holds for others: kept once, packed in the order asked for."""

import numpy as np

from storebench.arrays import Indices
from storebench.ranks.data_store import HeldSamples, cut

SHAPE = (2, 3, 1)
OWN = np.array([3, 5, 8], np.int64)


def ids(*samples: int) -> Indices:
    return np.array(samples, np.int64)


def images(*samples: int) -> np.ndarray:
    return np.stack([np.full(SHAPE, sample, np.uint8) for sample in samples])


def payload(sample: int) -> bytes:
    return bytes([sample]) * sample + b"\0"


def payloads(*samples: int) -> np.ndarray:
    return np.array([payload(sample) for sample in samples], object)


def test_a_sample_that_comes_twice_is_kept_once() -> None:
    """Padding of an epoch repeats samples within a batch, and a second pass repeats all of them."""
    held = HeldSamples(OWN, SHAPE)
    held.keep(ids(5, 3, 5), images(5, 3, 77))
    held.keep(ids(5), images(99))
    assert (held.missing, held.sizes.tolist()) == (1, [6, 6, 0])
    assert held.pack(ids(5)).tolist() == [5] * 6


def test_pixels_are_packed_in_the_order_asked_for() -> None:
    held = HeldSamples(OWN, SHAPE)
    held.keep(OWN, images(3, 5, 8))
    assert held.pack(ids(8, 3)).tolist() == [8] * 6 + [3] * 6
    assert held.of(ids(5, 8))[:, 0, 0, 0].tolist() == [5, 8]


def test_payloads_of_any_size_come_back() -> None:
    held = HeldSamples(OWN)
    held.keep(ids(8, 2, 3), payloads(8, 2, 3))
    assert held.sizes.tolist() == [4, 0, 9]
    held.keep(ids(3, 5), payloads(9, 5))
    assert held.of(ids(5, 8, 3)).tolist() == [payload(5), payload(8), payload(3)]
    assert cut(held.pack(ids(8, 5)), np.array([9, 6])) == [payload(8), payload(5)]


def test_a_rank_without_samples_holds_nothing() -> None:
    held = HeldSamples(ids(), SHAPE)
    held.keep(ids(1, 2), images(1, 2))
    assert (held.missing, held.sizes.tolist(), held.pack(ids()).tolist()) == (0, [], [])
