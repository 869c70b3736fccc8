"""Windows that are drawn for many batches at once are those that each batch gets by itself."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from storebench.formats.base import Indices
from storebench.loading.augment import Augment
from storebench.loading.drawing import PlannedWindows

SHAPE = (32, 32, 3)
AUGMENT = Augment(crop=28, mirror=True)


def batches_of(*sizes: int) -> list[Indices]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, 10_000, size) for size in sizes]


def served(windows: PlannedWindows, batches: Iterable[Indices], epoch: int) -> list[list[list[int]]]:
    return [windows.take(batch, epoch=epoch).places.tolist() for batch in batches]


def by_itself(batches: Sequence[Indices], epoch: int) -> list[list[list[int]]]:
    return [AUGMENT.windows(batch, SHAPE, seed=3, epoch=epoch).places.tolist() for batch in batches]


@pytest.mark.parametrize("sizes", [(), (5,), (7, 7, 7, 2), (4,) * 16, (4,) * 33, (3, 0, 9, 1) * 10])
def test_planned_batches_of_any_size_get_their_windows(sizes: tuple[int, ...]) -> None:
    """Fewer batches than are drawn at once, as many, and more."""
    windows, batches = PlannedWindows(AUGMENT, SHAPE, seed=3), batches_of(*sizes)
    windows.plan(batches, epoch=1)
    assert served(windows, batches, 1) == by_itself(batches, 1)


def test_a_new_plan_replaces_one_that_was_not_finished() -> None:
    """The same batches of the next epoch have other windows."""
    windows, batches = PlannedWindows(AUGMENT, SHAPE, seed=3), batches_of(*[6] * 20)
    for epoch, upto in ((0, 5), (1, 20), (1, 20)):
        windows.plan(batches, epoch=epoch)
        assert served(windows, batches[:upto], epoch) == by_itself(batches[:upto], epoch)


def test_batches_that_depart_from_the_plan_get_their_windows() -> None:
    """Others in between, in another order, equal ones that are not the plan's, of another epoch, and after its end."""
    windows, batches = PlannedWindows(AUGMENT, SHAPE, seed=3), batches_of(*[6] * 20)
    others = batches_of(2, 6)
    windows.plan(batches, epoch=0)
    mixed = [batches[0], others[0], batches[1], batches[4], batches[2].copy(), *batches[2:], *others]
    assert served(windows, mixed, 0) == by_itself(mixed, 0)
    windows.plan(batches, epoch=0)
    assert served(windows, batches[:3], 2) == by_itself(batches[:3], 2)


def test_one_call_draws_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is for: 33 batches are drawn in three calls, the first one by itself."""
    drawn: list[int] = []
    draw = Augment.windows

    def counting(self: Augment, indices: Indices, *given: object, **named: int) -> object:
        drawn.append(len(indices))
        return draw(self, indices, *given, **named)  # type: ignore[arg-type]

    windows, batches = PlannedWindows(AUGMENT, SHAPE, seed=3), batches_of(*[4] * 33)
    windows.plan(batches, epoch=0)
    monkeypatch.setattr(Augment, "windows", counting)
    served(windows, batches, 0)
    assert drawn == [4, 64, 64]


def test_a_worker_that_gets_copies_draws_nothing_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The DataLoader pickles each request by itself, so only the first batch is the plan's own array there."""
    drawn: list[int] = []
    draw = Augment.windows

    def counting(self: Augment, indices: Indices, *given: object, **named: int) -> object:
        drawn.append(len(indices))
        return draw(self, indices, *given, **named)  # type: ignore[arg-type]

    windows, batches = PlannedWindows(AUGMENT, SHAPE, seed=3), batches_of(*[4] * 33)
    windows.plan(batches, epoch=0)
    monkeypatch.setattr(Augment, "windows", counting)
    served(windows, [batches[0], *(batch.copy() for batch in batches[1:])], 0)
    assert drawn == [4] * 33
