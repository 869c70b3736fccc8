"""The owner of each sample of a data store, and the messages of a step: one plan on all ranks."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storebench.formats.base import Indices
from storebench.loading.order import epoch_order
from storebench.ranks.data_store import NOBODY, Owners, block_owners, first_owners, transfer_of
from storebench.ranks.membership import dealt

counts, ranks_drawn, batches_drawn = st.integers(1, 200), st.integers(1, 9), st.integers(1, 20)


def steps_of(
    count: int, ranks: int, batch_size: int, *, epoch: int = 0, pad: bool = False
) -> list[list[Indices]]:
    order = epoch_order(count, seed=3, epoch=epoch)
    return list(dealt(order, ranks=ranks, batch_size=batch_size, pad=pad))


@given(count=counts, ranks=ranks_drawn)
def test_blocks_are_contiguous_and_differ_by_one_sample(count: int, ranks: int) -> None:
    owners = block_owners(count, ranks)
    sizes = np.bincount(owners, minlength=ranks)
    assert len(owners) == count
    assert (np.diff(owners) >= 0).all()
    assert sizes.max() - sizes.min() <= 1


@given(count=counts, ranks=ranks_drawn, batch_size=batches_drawn, pad=st.booleans())
def test_who_serves_a_sample_first_owns_it(count: int, ranks: int, batch_size: int, *, pad: bool) -> None:
    steps = steps_of(count, ranks, batch_size, pad=pad)
    owners = first_owners(count, steps)
    first: dict[int, int] = {}
    for pieces in steps:
        for rank, samples in enumerate(pieces):
            for sample in samples.tolist():
                first.setdefault(sample, rank)
    assert owners.tolist() == [first[sample] for sample in range(count)]


def exchanged(pieces: Sequence[Indices], owners: Owners) -> list[list[int]]:
    """Return the batch of each rank after every message of a step has arrived; -1 where nothing came."""
    transfers = [transfer_of(pieces, owners, rank) for rank in range(len(pieces))]
    batches = [np.full(len(piece), -1) for piece in pieces]
    for rank, transfer in enumerate(transfers):
        assert (owners[transfer.samples[transfer.held]] == rank).all()
        batches[rank][transfer.held] = transfer.samples[transfer.held]
        for source, rows in transfer.receive.items():
            assert (batches[rank][rows] == -1).all(), "a sample comes once"
            batches[rank][rows] = transfers[source].send[rank]
        assert rank not in {*transfer.receive, *transfer.send}
        assert {*transfer.send} == {other for other, theirs in enumerate(transfers) if rank in theirs.receive}
    return [batch.tolist() for batch in batches]


@given(count=counts, ranks=ranks_drawn, batch_size=batches_drawn, pad=st.booleans(), blocks=st.booleans())
def test_the_messages_of_each_step_make_its_batches(
    count: int, ranks: int, batch_size: int, *, pad: bool, blocks: bool
) -> None:
    first = steps_of(count, ranks, batch_size, pad=pad)
    owners = block_owners(count, ranks) if blocks else first_owners(count, first)
    for pieces in steps_of(count, ranks, batch_size, epoch=1, pad=pad):
        assert exchanged(pieces, owners) == [piece.tolist() for piece in pieces]


def test_a_sample_that_no_rank_serves_has_no_owner() -> None:
    assert first_owners(4, [[np.array([2]), np.array([0])]]).tolist() == [1, NOBODY, 0, NOBODY]
