"""Ranks train as one process with the global batch: the same losses and the same weights, within float32 rounding.

`tests.support.same_training` says what that is.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist

from storebench.formats.base import Indices
from storebench.loading.batch import LoadedBatch
from storebench.ranks.communication import communication
from storebench.ranks.data_parallel import Exchanging, RankStep, make_rank_step
from storebench.ranks.group import Group
from storebench.ranks.membership import dealt
from storebench.settings.words import Compute, Sync
from storebench.training.compute import CpuStep, make_step, warm_up
from storebench.training.models import MODELS
from tests.support.rank_processes import in_ranks
from tests.support.same_training import assert_same_losses, assert_same_weights

SHAPES = {"lenet": (28, 28, 1), "cifar10_quick": (32, 32, 3), "tiny": (28, 28, 1)}
BATCH = 4

Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Losses of all steps, sums over a rank's samples or means, and the weights after the last one."""

    losses: list[float]
    weights: Weights


def batch_of(shape: tuple[int, int, int], indices: Indices) -> LoadedBatch:
    """Return the samples of some indices: each is noise of its own."""
    pixels = [np.random.default_rng(int(index)).integers(0, 256, shape, np.uint8) for index in indices]
    stacked = np.stack(pixels) if pixels else np.empty((0, *shape), np.uint8)
    return LoadedBatch(
        pixels=torch.from_numpy(stacked),
        labels=np.asarray(indices, np.int64) % 10,
        indices=indices,
    )


def trained(step: CpuStep, shape: tuple[int, int, int], batches: Sequence[Indices]) -> Trained:
    for indices in batches:
        step.copy(batch_of(shape, indices))
        step.compute()
    weights = {name: value.detach().numpy().copy() for name, value in step.network.named_parameters()}
    return Trained(losses=step.losses(), weights=weights)


def alone(model: str, count: int, batch_size: int) -> Trained:
    """Train in this process."""
    torch.manual_seed(3)
    step = make_step(Compute("real"), MODELS[model], SHAPES[model], 10, "cpu")
    assert isinstance(step, CpuStep)
    starts = range(0, count, batch_size)
    return trained(
        step, SHAPES[model], [np.arange(start, min(start + batch_size, count)) for start in starts]
    )


def rank_step(model: str, sync: Sync) -> RankStep:
    torch.manual_seed(3)
    step = make_rank_step(Compute("real"), MODELS[model], SHAPES[model], 10, "cpu", sync=sync)
    assert isinstance(step, RankStep)
    warm_up(step, (BATCH, *SHAPES[model]))
    return step


def one_rank(group: Group, *, model: str, count: int, sync: Sync) -> Trained:
    """Train in one rank of a group."""
    me, step = group.membership, rank_step(model, sync)
    steps = list(dealt(np.arange(count), ranks=me.ranks, batch_size=BATCH))
    step.begin([sum(map(len, pieces)) for pieces in steps])
    return trained(step, SHAPES[model], [pieces[me.rank] for pieces in steps])


def together(model: str, ranks: int, count: int, sync: Sync) -> list[Trained]:
    return in_ranks(ranks, functools.partial(one_rank, model=model, count=count, sync=sync))


def assert_equal(parts: list[Trained], whole: Trained, sizes: Sequence[int], model: str) -> None:
    """Hold ranks to one process: the mean over all samples of each step, and all weights on every rank."""
    assert_same_losses(
        np.sum([part.losses for part in parts], axis=0) / np.asarray(sizes), whole.losses, model
    )
    for part in parts:
        assert_same_weights(part.weights, whole.weights, model)


@pytest.mark.parametrize(
    ("model", "ranks", "last", "sync"),
    [
        ("lenet", 2, 5, Sync.OVERLAPPED),
        ("lenet", 3, 2, Sync.AFTER),
        pytest.param("lenet", 3, 7, Sync.OVERLAPPED, marks=pytest.mark.full),
    ],
)
def test_ranks_train_as_one_process_with_the_global_batch(
    model: str, ranks: int, last: int, sync: Sync
) -> None:
    count = (
        5 * ranks * BATCH + last
    )  # the last batch does not divide, and leaves some ranks of 3 and 4 without a sample
    whole = alone(model, count, ranks * BATCH)
    sizes = [ranks * BATCH] * 5 + [last]
    assert_equal(together(model, ranks, count, sync), whole, sizes, model)


def test_without_synchronisation_each_rank_trains_on_its_own_samples() -> None:
    count = 2 * BATCH * 2 + 1
    first, second = together("lenet", 2, count, Sync.NONE)
    mine = [np.arange(0, 4), np.arange(8, 12), np.arange(16, 17)]
    torch.manual_seed(3)
    step = make_step(Compute("real"), MODELS["lenet"], SHAPES["lenet"], 10, "cpu")
    assert isinstance(step, CpuStep)
    own = trained(step, SHAPES["lenet"], mine)
    assert_same_losses(np.array(first.losses) / [4, 4, 1], own.losses, "lenet")
    # The second rank has no sample in the last step, in which it learns nothing.
    assert second.losses[-1] == 0.0
    assert not np.allclose(first.weights["body.2.weight"], second.weights["body.2.weight"], atol=1e-6)


def test_an_emulated_step_sleeps_and_meets_the_other_ranks() -> None:
    def work(group: Group) -> tuple[int, list[float]]:
        step = make_rank_step(
            Compute("emulated:5"), MODELS["lenet"], SHAPES["lenet"], 10, "cpu", sync=Sync.AFTER
        )
        assert isinstance(step, Exchanging)
        step.compute()
        return step.gradient_bytes, step.losses()

    parameters = sum(value.size for value in alone("lenet", 1, 1).weights.values())
    assert in_ranks(2, work) == [(4 * parameters, [])] * 2


@pytest.mark.parametrize("sync", list(Sync))
def test_measuring_communication_changes_nothing_that_is_learned(sync: Sync) -> None:
    def work(group: Group) -> tuple[bool, bool, dict[str, Any]]:
        step = rank_step("tiny", sync)
        step.begin([2 * BATCH] * 2)
        step.copy(batch_of(SHAPES["tiny"], np.arange(BATCH) + BATCH * group.membership.rank))
        step.compute()
        weights = [value.detach().clone() for value in step.network.parameters()]
        state = torch.get_rng_state()
        cost = communication(step, group, BATCH)
        same = all(torch.equal(*pair) for pair in zip(weights, step.network.parameters(), strict=True))
        dist.barrier()
        return same, torch.equal(state, torch.get_rng_state()), cost

    (kept, random_kept, cost), (others_kept, _, nothing) = in_ranks(2, work)
    assert kept
    assert others_kept
    assert random_kept
    assert nothing == {}
    assert cost["barrier_s"] > 0
    assert cost["gradient_bytes"] == 4 * sum(value.size for value in alone("tiny", 1, 1).weights.values())
    exchanges = sync is not Sync.NONE
    assert ("exposed_communication_s" in cost, cost["exposed_pairs"] >= 5) == (exchanges, exchanges)
    assert cost.get("step_without_sync_s", 0) > 0 or not exchanges
