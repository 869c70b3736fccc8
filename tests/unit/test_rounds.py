"""The rule by which a run adds rounds: what is not precise yet, within the largest number of rounds and the time."""

import dataclasses
from pathlib import Path

import pytest

from storebench.rounds import (
    Costs,
    PairPrecision,
    PanelPrecision,
    StoppingRule,
    Why,
    has_time,
    next_round,
    within_budget,
)
from storebench.runs.costs import costs_of
from storebench.runs.records import read_records
from storebench.stats import compare, half_width_frac

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
RULE = StoppingRule(until=0.1, min_replicates=4, max_replicates=8)
COSTS = Costs(
    spent_s=100.0, cell_s=dict.fromkeys(("png", "hdf5", "lmdb", "null", "slow-png", "slow-lmdb"), 5.0)
)


def pair(base: str, cell: str, width: float | None, *, decidable: bool = True) -> PairPrecision:
    return PairPrecision(cell_ids=(base, cell), half_width_frac=width, decidable=decidable)


def panel(*pairs: PairPrecision, cells: tuple[str, ...] = ("png", "hdf5", "lmdb", "null")) -> PanelPrecision:
    return PanelPrecision(cell_ids=cells, pairs=pairs)


SLOW = panel(pair("slow-png", "slow-lmdb", 0.6), cells=("slow-png", "slow-lmdb"))


def test_both_sides_of_an_imprecise_ratio_run_again_steady_cells_do_not() -> None:
    found = next_round(RULE, [panel(pair("png", "hdf5", 0.05), pair("png", "lmdb", 0.2))], 4, COSTS)
    assert found.cell_ids == ("png", "lmdb")
    assert found.stops == ()


@pytest.mark.parametrize(
    ("pairs", "done", "why", "widest"),
    [
        ([pair("png", "lmdb", 0.1), pair("png", "hdf5", 0.02)], 4, Why.PRECISE, 0.1),
        ([pair("png", "lmdb", 0.3)], 8, Why.MAXIMUM, 0.3),
        ([pair("png", "lmdb", 0.3, decidable=False)], 4, Why.UNDECIDABLE, 0.3),
        ([pair("png", "lmdb", 0.3, decidable=False), pair("png", "hdf5", 0.05)], 8, Why.UNDECIDABLE, 0.3),
        ([pair("png", "lmdb", None)], 8, Why.MAXIMUM, None),
    ],
)
def test_a_panel_stops_for_one_of_these_reasons(
    pairs: list[PairPrecision], done: int, why: Why, widest: float | None
) -> None:
    found = next_round(RULE, [panel(*pairs)], done, COSTS)
    assert found.cell_ids == ()
    [stop] = found.stops
    assert (stop.why, stop.widest_frac) == (why, widest)
    assert stop.cell_ids == ("png", "hdf5", "lmdb", "null")


def test_a_ratio_without_an_interval_is_not_precise() -> None:
    assert next_round(RULE, [panel(pair("png", "lmdb", None))], 4, COSTS).cell_ids == ("png", "lmdb")


@pytest.mark.parametrize(
    ("budget_s", "cells", "whys"),
    [
        (120.0, ("png", "lmdb", "slow-png", "slow-lmdb"), []),
        (119.0, ("png", "lmdb"), [Why.BUDGET]),
        (109.0, (), [Why.BUDGET, Why.BUDGET]),
        (1.0, (), [Why.BUDGET, Why.BUDGET]),
    ],
)
def test_a_budget_goes_to_the_panel_that_is_nearest_to_its_goal(
    budget_s: float, cells: tuple[str, ...], whys: list[Why]
) -> None:
    rule = StoppingRule(until=0.1, min_replicates=4, max_replicates=8, budget_s=budget_s)
    found = next_round(rule, [SLOW, panel(pair("png", "lmdb", 0.2))], 4, COSTS)
    assert found.cell_ids == cells
    assert [stop.why for stop in found.stops] == whys


def test_panels_that_need_nothing_take_no_part_of_the_budget() -> None:
    rule = StoppingRule(until=0.1, budget_s=110.0)
    found = next_round(rule, [panel(pair("png", "lmdb", 0.05)), SLOW], 5, COSTS)
    assert found.cell_ids == ("slow-png", "slow-lmdb")
    assert [stop.why for stop in found.stops] == [Why.PRECISE]


def test_the_half_width_is_that_of_the_interval_on_logarithms() -> None:
    assert half_width_frac(1 / 1.1, 1.1) == pytest.approx(0.1)
    assert half_width_frac(20.0, 20.0) == 0.0
    assert half_width_frac(0.0, 5.0) == float("inf")
    told = compare([100.0, 101.0, 99.0, 102.0], [203.0, 198.0, 201.0, 200.0])
    assert told.low is not None
    assert told.high is not None
    assert told.ratio is not None
    assert half_width_frac(told.low, told.high) == pytest.approx(told.high / told.ratio - 1)


def test_both_attempts_cost_time_and_the_median_says_what_is_next() -> None:
    record = read_records(REFERENCE / "answer")[0]
    assert record.conditions is not None
    walls = [(2, 3.0), (1, 2.0), (1, 50.0)]
    took = [
        dataclasses.replace(
            record,
            replicate=number,
            conditions=dataclasses.replace(record.conditions, attempt=attempt, wall_s=wall_s, start_s=1.0),
        )
        for number, (attempt, wall_s) in enumerate(walls)
    ]
    costs = costs_of(took)
    assert costs.spent_s == pytest.approx(7.0 + 3.0 + 51.0)
    assert costs.cell_s == {record.cell.cell_id: pytest.approx(7.0)}


@pytest.mark.parametrize(
    ("done", "spent_s", "next_s", "fits"),
    [
        (4, 900.0, 100.0, True),
        (5, 500.0, 100.0, True),
        (5, 501.0, 100.0, False),
        (5, 501.0, 50.0, True),
    ],
)
def test_fixed_rounds_go_on_while_the_next_one_fits(
    done: int, spent_s: float, next_s: float, *, fits: bool
) -> None:
    assert has_time(done, spent_s, next_s, 600.0) is fits
    assert has_time(done, spent_s, next_s, None)


@pytest.mark.parametrize(
    ("done", "spent_s", "fits"),
    [
        (0, 0.0, True),
        (2, 900.0, True),
        (3, 300.0, True),
        (3, 451.0, False),
        (5, 500.0, True),
        (5, 501.0, False),
    ],
)
def test_a_budget_has_whole_rounds_and_three_in_any_case(done: int, spent_s: float, *, fits: bool) -> None:
    assert within_budget(done, spent_s, 600.0) is fits
    assert within_budget(done, spent_s, None)
