"""Exposed communication: pairs of steps with known durations, and ranks that really wait for each other."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn

from storebench.arrays import ImageShape
from storebench.ranks.communication import BARRIERS, FEWEST_PAIRS, Communication, communication
from storebench.ranks.data_parallel import Exchanging, RankStep, make_rank_step
from storebench.ranks.group import Alone, Group
from storebench.settings.words import Compute, Sync
from storebench.training.models import MODELS, Network
from storebench.training.steps import Step, warm_up
from tests.support.rank_processes import in_ranks

Pair = tuple[float, float]
"""Seconds of a step with and without an exchange."""

OWN: tuple[Pair, ...] = ((1.5, 1.0), (2.1, 2.0), (1.5, 3.0), (4.1, 4.0), (5.1, 5.0))
"""Pairs whose median difference is 0.1 s. Their medians differ by -0.9 s, and every pair differs from its neighbours."""


@dataclass
class PlannedStep(Exchanging):
    """A step whose durations are chosen, in turn; the first pair is only used to choose the number of pairs."""

    pairs: Sequence[Pair]
    calls: list[str | bool] = field(default_factory=list)
    sync = Sync.AFTER

    @property
    def gradient_bytes(self) -> int:
        return 8

    def rehearsal_s(self, *, synchronised: bool) -> float:
        number = sum(isinstance(call, bool) for call in self.calls) // 2
        self.calls.append(synchronised)
        synced, without = (100.0, 100.0) if number == 0 else self.pairs[number - 1]
        return synced if synchronised else without


class PlannedGroup(Alone):
    """Rank 0 of a group in which the other ranks have measured `others`."""

    def __init__(self, step: PlannedStep, *others: Sequence[Pair]) -> None:
        self._step, self._others = step, others

    def barrier(self) -> None:
        self._step.calls.append("barrier")

    def gather(self, value: Any) -> list[Any]:
        return [value, *map(list, self._others)]


def measured(step: PlannedStep, *others: Sequence[Pair]) -> Communication:
    cost = communication(cast("Step", step), PlannedGroup(step, *others), 4)
    assert cost is not None
    assert cost.pairs == FEWEST_PAIRS == len(step.pairs)
    return cost


def test_exposed_communication_is_the_median_difference_of_a_pair() -> None:
    cost = measured(PlannedStep(OWN))
    assert cost.exposed_s == pytest.approx(0.1)
    assert cost.step_s == pytest.approx(3.0)


def test_the_slowest_rank_counts_in_each_step_of_a_pair() -> None:
    other = ((1.9, 1.2), (2.0, 1.9), (3.4, 2.0), (4.5, 3.0), (5.0, 4.9))
    # The slowest steps are (1.9, 1.2), (2.1, 2.0), (3.4, 3.0), (4.5, 4.0) and (5.1, 5.0).
    cost = measured(PlannedStep(OWN), other)
    assert cost.exposed_s == pytest.approx(0.4)
    assert cost.step_s == pytest.approx(3.0)


def test_every_step_begins_at_a_barrier_and_pairs_change_their_order() -> None:
    step = PlannedStep(OWN)
    measured(step)
    steps = step.calls[step.calls.index(True) - 1 :]
    assert steps[::2] == ["barrier"] * 2 * (1 + FEWEST_PAIRS)
    pairs = list(zip(steps[1::4], steps[3::4], strict=True))
    assert pairs[1:] == [(True, False), (False, True)] * 2 + [(True, False)]
    assert step.calls.count("barrier") > BARRIERS + len(steps) // 2


LATE_S = 0.4
SHAPE = (28, 28, 1)


def durations(group: Group) -> dict[str, Pair]:
    """Return how long a step of this rank takes with and without an exchange, if rank 1 comes late to it."""
    late_s = LATE_S if group.membership.rank == 1 else 0.0
    found = {}
    for compute in ("real", "emulated:1"):
        for sync in (Sync.OVERLAPPED, Sync.AFTER):
            step = make_rank_step(Compute(compute), MODELS["tiny"], SHAPE, 10, "cpu", sync=sync)
            assert isinstance(step, Exchanging)
            warm_up(step, (4, *SHAPE))
            step.rehearsal_s(synchronised=True)
            seconds = []
            for synchronised in (True, False):
                dist.barrier()
                time.sleep(late_s)
                seconds.append(step.rehearsal_s(synchronised=synchronised))
            found[f"{compute} {sync.value}"] = (seconds[0], seconds[1])
    return found


def test_a_step_waits_for_other_ranks_only_with_an_exchange() -> None:
    prompt, _ = in_ranks(2, durations)
    assert len(prompt) == 4
    for name, (synced_s, without_s) in prompt.items():
        assert synced_s > 0.75 * LATE_S, name
        assert without_s < 0.5 * LATE_S, name


class Arrived:
    """An exchange that has ended."""

    def wait(self) -> None:
        """Return at once."""


@pytest.mark.parametrize(
    ("sync", "order"),
    [
        (Sync.OVERLAPPED, ["exchange", "sleep"]),
        (Sync.AFTER, ["sleep", "exchange"]),
        (Sync.NONE, ["sleep"]),
    ],
)
def test_an_emulated_step_exchanges_all_gradients_when_its_cell_says(
    sync: Sync, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[str] = []
    sizes: list[int] = []

    def all_reduce(tensor: torch.Tensor, **_: Any) -> Arrived:
        parts.append("exchange")
        sizes.append(tensor.numel() * tensor.element_size())
        return Arrived()

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(time, "sleep", lambda _: parts.append("sleep"))
    step = make_rank_step(Compute("emulated:20"), MODELS["tiny"], SHAPE, 10, "cpu", sync=sync)
    assert isinstance(step, Exchanging)
    step.compute()
    assert parts == order
    assert sizes == [step.gradient_bytes] * order.count("exchange")
    assert step.gradient_bytes == 4 * sum(
        parameter.numel() for parameter in Network(MODELS["tiny"], SHAPE, 10).parameters()
    )


def with_statistics(shape: ImageShape, classes: int) -> nn.Module:
    """Return a network with statistics that every forward pass changes, and with random numbers."""
    parts = (nn.BatchNorm2d(shape[2]), nn.Flatten(), nn.Dropout())
    return nn.Sequential(*parts, nn.Linear(shape[0] * shape[1] * shape[2], classes))


def state_of(step: RankStep) -> list[bytes]:
    """Return weights, statistics and torch's random state."""
    tensors = [*step.network.parameters(), *step.network.buffers(), torch.get_rng_state()]
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


def unchanged(group: Group) -> tuple[bool, bool]:
    """Return whether the measurement leaves everything as it was, and whether a rehearsal alone does."""
    spec = dataclasses.replace(MODELS["tiny"], build=with_statistics)
    step = make_rank_step(Compute("real"), spec, SHAPE, 10, "cpu", sync=Sync.AFTER)
    assert isinstance(step, RankStep)
    warm_up(step, (4, *SHAPE))
    before = state_of(step)
    communication(step, group, 4)
    after = state_of(step)
    step.rehearsal_s(synchronised=True)
    return before == after, before == state_of(step)


def test_measuring_communication_changes_no_weight_and_no_random_state() -> None:
    assert in_ranks(2, unchanged) == [(True, False)] * 2
