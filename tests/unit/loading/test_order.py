"""The order of an epoch: every sample once, decided by seed and epoch, dealt to producers without loss."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storebench.loading.batch import EpochPlan
from storebench.loading.loader import requests_of
from storebench.loading.order import epoch_order, split_batches

COUNTS = st.integers(0, 500)
SEEDS = st.integers(0, 2**32)


@given(COUNTS, SEEDS, st.integers(0, 100))
def test_an_epoch_serves_every_sample_once(count: int, seed: int, epoch: int) -> None:
    order = epoch_order(count, seed=seed, epoch=epoch)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(count))
    np.testing.assert_array_equal(order, epoch_order(count, seed=seed, epoch=epoch))


def test_seed_epoch_and_replicate_each_change_the_order() -> None:
    orders = {
        epoch_order(50, seed=s, epoch=e, replicate=r).tobytes()
        for s in range(5)
        for e in range(5)
        for r in range(5)
    }
    assert len(orders) == 125


def test_the_order_is_the_one_of_the_published_results() -> None:
    """Changing it would make old and new records incomparable without anybody noticing."""
    assert epoch_order(8, seed=0, epoch=0).tolist() == [2, 4, 3, 6, 5, 0, 1, 7]
    assert epoch_order(8, seed=7, epoch=3).tolist() == [3, 5, 0, 4, 2, 7, 1, 6]


def test_without_shuffling_samples_come_as_they_lie() -> None:
    assert epoch_order(5, seed=1, epoch=2, shuffle=False).tolist() == [0, 1, 2, 3, 4]


@given(COUNTS, st.integers(1, 100))
def test_batches_leave_no_sample_out(count: int, size: int) -> None:
    order = epoch_order(count, seed=0, epoch=0)
    batches = split_batches(order, size)
    assert all(len(batch) == size for batch in batches[:-1])
    assert all(0 < len(batch) <= size for batch in batches)
    np.testing.assert_array_equal(np.concatenate([*batches, order[:0]]), order)


@given(COUNTS, st.integers(1, 100), st.integers(0, 20))
def test_max_steps_keeps_the_first_ones(count: int, size: int, steps: int) -> None:
    order = epoch_order(count, seed=0, epoch=0)
    kept = split_batches(order, size, steps)
    assert [b.tolist() for b in kept] == [b.tolist() for b in split_batches(order, size)[:steps]]


@given(COUNTS, st.integers(1, 50), st.integers(1, 8))
def test_shares_are_dealt_in_turn_and_come_with_the_first_request(
    count: int, size: int, producers: int
) -> None:
    batches = split_batches(epoch_order(count, seed=0, epoch=0), size)
    requests = requests_of(EpochPlan(epoch=4, batches=batches), producers)
    assert [request.step for request in requests] == list(range(len(batches)))
    assert all(request.epoch == 4 for request in requests)
    for producer in range(producers):
        own = requests[producer::producers]
        share = batches[producer::producers]
        assert [request.indices.tolist() for request in own] == [one.tolist() for one in share]
        if own:
            assert own[0].plan is not None
            assert [one.tolist() for one in own[0].plan] == [one.tolist() for one in share]
            assert all(request.plan is None for request in own[1:])
