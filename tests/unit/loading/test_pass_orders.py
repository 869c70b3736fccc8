"""The orders of passes: no pass of any epoch repeats that of another."""

import itertools

import pytest

from storebench.loading.order import epoch_order, pass_orders


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_no_two_passes_of_any_epochs_have_the_same_order(passes: int) -> None:
    orders = [
        tuple(order.tolist())
        for epoch in range(4)
        for order in pass_orders(50, seed=1, epoch=epoch, passes=passes)
    ]
    assert len(set(orders)) == 4 * passes
    assert all(sorted(order) == list(range(50)) for order in orders)


def test_passes_are_numbered_as_shorter_epochs_would_be() -> None:
    orders = itertools.chain.from_iterable(pass_orders(9, seed=3, epoch=e, passes=2) for e in range(3))
    expected = [epoch_order(9, seed=3, epoch=number) for number in range(6)]
    assert [order.tolist() for order in orders] == [order.tolist() for order in expected]
