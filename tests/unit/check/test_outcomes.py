"""From cells to one exit code, one line and one table."""

from typing import Any

import pytest

from storebench.check.judge import CellResult, CellState
from storebench.check.outcome import Outcome, outcome, verdict_table


def result(state: CellState = CellState.WITHIN_NOISE, label: str = "read/lmdb", **changes: Any) -> CellResult:
    return CellResult(cell_id=label, label=label, state=state, **changes)


def told(*results: CellResult) -> Outcome:
    return outcome(results)


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([CellState.WITHIN_NOISE, CellState.BETTER], 0),
        ([CellState.WITHIN_NOISE, CellState.NEW], 0),
        ([CellState.WITHIN_NOISE, CellState.INCONCLUSIVE], 0),
        ([CellState.INCONCLUSIVE, CellState.INCONCLUSIVE, CellState.WITHIN_NOISE], 4),
        ([CellState.NOT_COMPARABLE, CellState.INCONCLUSIVE, CellState.INCONCLUSIVE], 3),
        ([CellState.NEW], 3),
        ([CellState.NOT_GATED, CellState.NEW], 0),
        ([CellState.WORSE, CellState.NOT_COMPARABLE], 1),
        ([CellState.MISSING, CellState.WORSE], 5),
        ([CellState.FAILED, CellState.MISSING, CellState.WORSE], 5),
    ],
)
def test_the_gravest_state_of_any_cell_gives_the_exit_code(states: list[CellState], code: int) -> None:
    assert told(*(result(state, f"cell-{n}") for n, state in enumerate(states))).exit_code == code


def test_an_undecided_cell_that_looks_slower_does_not_pass() -> None:
    calm = result(CellState.INCONCLUSIVE, ratio=1.05)
    slow = result(CellState.INCONCLUSIVE, ratio=1.11, reason="wide")
    assert told(result(), result(), calm).exit_code == 0
    assert told(result(), result(), slow).line == "perhaps slower, 1 of 3 cells: read/lmdb (wide)"
    assert not result(CellState.WORSE, ratio=1.5).perhaps_slower


def test_the_line_says_what_the_run_can_see() -> None:
    wide = [result(CellState.INCONCLUSIVE, f"cell-{n}", visible_frac=n / 100) for n in (5, 20, 35)]
    assert "; the smallest slow-down that this run can see is 35%" in told(*wide).line
    assert "smallest" not in told(result(CellState.WORSE), *wide).line


CELLS = (
    result(label="read/quiet", ratio=1.01, low=0.98, high=1.04, level=0.95, replicates=(5, 5)),
    result(
        CellState.WORSE, "read/slow", ratio=1.5, low=1.4, high=1.6, level=0.99, reason="50% slower",
    ),
    result(CellState.MISSING, "read/lost", reason="it is gone"),
    result(CellState.INCONCLUSIVE, "read/wide", ratio=1.2, reason="100% wide"),
)  # fmt: skip


def test_the_worst_cell_is_the_first_row_of_the_table() -> None:
    table = verdict_table(CELLS)
    assert [row[0] for row in table.rows] == ["read/slow", "read/lost", "read/wide", "read/quiet"]
    assert table.rows[0] == ("read/slow", "worse", "1.500", "1.400 to 1.600 (99%)", "", "50% slower")
    assert told(*CELLS).summary.endswith("[1 worse, 1 missing, 1 inconclusive, 1 within noise; exit code 5]")
    assert verdict_table([]).rows == ()
