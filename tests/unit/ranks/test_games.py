"""The exchange of a game between real ranks: networks arrive complete, and gradients stay within a trainer."""

import functools

import numpy as np
import numpy.typing as npt
import torch

from storebench.loading.batch import LoadedBatch
from storebench.ranks.data_parallel import RankStep, make_rank_step
from storebench.ranks.games import exchanged, packed, summed, trainer_group, unpack
from storebench.ranks.group import Group
from storebench.ranks.trainers import Trainer
from storebench.settings.words import Compute, Sync
from storebench.training.models import MODELS
from tests.support.rank_processes import in_ranks

SHAPE = (28, 28, 1)
BATCH = 4
TIMEOUT_S = 60.0

State = npt.NDArray[np.float32]


def noise(seed: int) -> LoadedBatch:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 10, BATCH)
    pixels = torch.from_numpy(generator.integers(0, 256, (BATCH, *SHAPE), np.uint8))
    return LoadedBatch(pixels=pixels, labels=labels, indices=labels)


def train(step: RankStep, trainer: Trainer, seeds: range) -> None:
    step.begin([BATCH * trainer.ranks] * len(seeds))
    for seed in seeds:
        step.copy(noise(seed))
        step.compute()


def step_of(trainer: Trainer, model: str) -> tuple[RankStep, torch.distributed.ProcessGroup | None]:
    group = trainer_group(trainer, TIMEOUT_S)
    torch.manual_seed(trainer.number)
    sync = Sync.OVERLAPPED if trainer.ranks > 1 else Sync.NONE
    step = make_rank_step(Compute("real"), MODELS[model], SHAPE, 10, "cpu", sync=sync, group=group)
    assert isinstance(step, RankStep)
    return step, group


def traded(group: Group, *, model: str) -> tuple[State, State, State]:
    """Train, exchange networks, train on; return the state before and after the exchange, and at the end."""
    trainer = Trainer.of(group.membership, 2)
    step, _ = step_of(trainer, model)
    train(step, trainer, range(10 * trainer.number, 10 * trainer.number + 3))
    own = packed(step.state())
    unpack(exchanged(own, trainer.peer(1 - trainer.number)), step.state())
    arrived = packed(step.state())
    train(step, trainer, range(90, 92))
    return own.numpy(), arrived.numpy(), packed(step.state()).numpy()


def test_a_network_arrives_bit_for_bit_and_trains_on_as_it_would_have() -> None:
    (own, arrived, end), (other_own, other_arrived, _) = in_ranks(2, functools.partial(traded, model="lenet"))
    assert own.tobytes() != other_own.tobytes()
    assert arrived.tobytes() == other_own.tobytes()
    assert other_arrived.tobytes() == own.tobytes()
    [stayed] = in_ranks(1, functools.partial(untraded, number=1))
    assert end.tobytes() == stayed.tobytes(), "the momentum came along"


def untraded(group: Group, *, number: int) -> State:
    """Train as the trainer `number` of `traded` would without the exchange, and continue with the same batches."""
    trainer = Trainer(number=number, trainers=2)
    torch.manual_seed(number)
    step = make_rank_step(Compute("real"), MODELS["lenet"], SHAPE, 10, "cpu", sync=Sync.NONE)
    assert isinstance(step, RankStep)
    train(step, trainer, range(10 * number, 10 * number + 3))
    train(step, trainer, range(90, 92))
    return packed(step.state()).numpy()


def within(group: Group) -> tuple[State, int]:
    """Train on batches that differ between all ranks; return the state, and a sum over the ranks of the trainer."""
    me = group.membership
    trainer = Trainer.of(me, 2)
    step, own_group = step_of(trainer, "tiny")
    train(step, trainer, range(10 * me.rank, 10 * me.rank + 2))
    return packed(step.state()).numpy(), summed(10**me.rank, trainer, own_group)


def test_gradients_and_sums_stay_within_a_trainer() -> None:
    (first, one), (second, same), (third, other), (fourth, last) = in_ranks(4, within)
    assert (one, same, other, last) == (11, 11, 1100, 1100)
    assert first.tobytes() == second.tobytes() != third.tobytes() == fourth.tobytes()
