"""The rounds of a gate with a budget decide as many cells as they can."""

import pytest

from storebench.check.rounds import RoundPlan
from storebench.run.scenario import Scenario

MATRIX = {"dataset": "mnist", "limit": 128, "synthetic": True, "model": "none", "compute": "none"}
CELLS = {
    "name": "two",
    "replicates": 7,
    "test_limit": 0,
    "matrix": [
        {**MATRIX, "backends": ["lmdb"], "priority": 2},
        {**MATRIX, "backends": ["memory:python"]},
    ],
}


@pytest.mark.parametrize(
    ("budget_s", "first_s", "expected"),
    [
        (None, 1.0, [7, 7]),
        (30.0, 1.0, [7, 7]),
        (13.5, 1.0, [6, 6]),
        (16.5, 3.0, [5, 5]),  # the first round promises long ones
        (9.0, 1.0, [1, 6]),
        (0.1, 1.0, [1, 5]),
    ],
)
def test_rounds_within_a_budget(budget_s: float | None, first_s: float, expected: list[int]) -> None:
    scenario = Scenario.model_validate(CELLS)
    plan, now_s = RoundPlan(scenario.cells(), scenario), 0.0
    while going := plan.next(None if budget_s is None else budget_s - now_s):
        assert len({plan.rounds[cell] for cell in going}) == 1
        took_s = {cell: 1.0 if plan.rounds[cell] else first_s for cell in going}
        plan.add(0.2, took_s)
        now_s += 0.2 + sum(took_s.values())
    assert [*plan.rounds.values()] == expected
    assert len(plan.ended()) == [*plan.rounds.values()].count(1)
    assert budget_s is None or now_s <= max(budget_s, first_s * 2 + 5.1)
