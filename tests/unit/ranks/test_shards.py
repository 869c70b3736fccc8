"""The shards of an epoch: every sample on one rank, in the order of one process, for any number of ranks."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from storebench.formats.base import Indices
from storebench.loading.order import epoch_order, split_batches
from storebench.ranks.membership import dealt

RANKS = (1, 2, 3, 4)
COUNTS = (1, 2, 3, 5, 7, 12, 24, 25, 31, 47)
BATCH = 3
counts, ranks_drawn, batches_drawn = st.integers(1, 200), st.integers(1, 9), st.integers(1, 20)


def shards(order: Indices, ranks: int, batch_size: int = BATCH, *, pad: bool = False) -> list[list[Indices]]:
    steps = list(dealt(order, ranks=ranks, batch_size=batch_size, pad=pad))
    return [[pieces[rank] for pieces in steps] for rank in range(ranks)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("ranks", RANKS)
def test_together_ranks_serve_the_batches_of_one_process(ranks: int, count: int) -> None:
    order = epoch_order(count, seed=5, epoch=0)
    together = [np.concatenate(step) for step in zip(*shards(order, ranks), strict=True)]
    alone = split_batches(order, ranks * BATCH)
    assert [batch.tolist() for batch in together] == [batch.tolist() for batch in alone]


@given(count=counts, ranks=ranks_drawn, batch_size=batches_drawn)
def test_every_sample_is_on_one_rank_once(count: int, ranks: int, batch_size: int) -> None:
    order = epoch_order(count, seed=1, epoch=2)
    by_rank = shards(order, ranks, batch_size)
    assert sorted(np.concatenate([batch for rank in by_rank for batch in rank]).tolist()) == list(
        range(count)
    )
    sizes = np.array([[len(batch) for batch in rank] for rank in by_rank])
    assert sizes.max() <= batch_size
    assert (sizes.max(axis=0) - sizes.min(axis=0)).max() <= 1
    assert (sizes[:, :-1] == batch_size).all()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("ranks", RANKS)
def test_padding_repeats_what_distributed_sampler_repeats(ranks: int, count: int) -> None:
    order = epoch_order(count, seed=5, epoch=0)
    data = torch.utils.data.TensorDataset(torch.from_numpy(order))
    theirs: list[list[int]] = [
        list(DistributedSampler(data, num_replicas=ranks, rank=rank, shuffle=False)) for rank in range(ranks)
    ]
    by_rank = shards(order, ranks, pad=True)
    assert {sum(map(len, rank)) for rank in by_rank} == {len(theirs[0])}
    for number, step in enumerate(zip(*by_rank, strict=True)):
        cut = slice(number * BATCH, (number + 1) * BATCH)
        assert len({len(batch) for batch in step}) == 1
        expected = Counter(int(order[place]) for rank in theirs for place in rank[cut])
        assert Counter(np.concatenate(step).tolist()) == expected
