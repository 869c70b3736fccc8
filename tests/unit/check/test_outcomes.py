"""From cells to one exit code, one line and one table."""

from typing import Any

import pytest

from storebench.analysis.comparison import Ratio
from storebench.check.judge import CellResult, CellState
from storebench.check.outcome import Outcome, outcome, verdict_table


def result(state: CellState = CellState.WITHIN_NOISE, name: str = "LMDB", **changes: Any) -> CellResult:
    return CellResult(cell_id=name, label=name, name=name, state=state, **changes)


def timed(state: CellState, name: str, ratio: float) -> CellResult:
    time = Ratio(mid=ratio, low=ratio / 1.2, high=ratio * 1.2, rounds=5)
    return result(state, name, ratio=time, time=time, replicates=(5, 5), reason="why")


def told(*results: CellResult) -> Outcome:
    return outcome(results)


SLOW = timed(CellState.WORSE, "LMDB", 1.5)
FAST = timed(CellState.BETTER, "HDF5", 0.5)
PERHAPS = timed(CellState.INCONCLUSIVE, "LevelDB", 1.3)
WIDE = timed(CellState.INCONCLUSIVE, "PNG files", 1.05)
FAILED = result(CellState.FAILED, "RocksDB", reason="wrong samples")
LOST = result(CellState.MISSING, "Zarr", reason="it is gone")
OTHER = result(CellState.NOT_COMPARABLE, "SQLite", reason="other samples")
COUNTED = result(CellState.WORSE, "Lance", reason="read_calls 1 -> 2")
NEW, QUIET = result(CellState.NEW, "Arrow"), result(name="memory")
APART = result(CellState.INCONCLUSIVE, "Parquet", ratio=Ratio(mid=1.0, rounds=0), reason="not interleaved")
IN_TURN = "times as long: 'storebench bench --against' runs both sides in turn"
LEFT_OUT = result(CellState.NOT_GATED, "npy")


@pytest.mark.parametrize(
    ("cells", "code", "line"),
    [
        ([QUIET, QUIET, WIDE], 0, "3 cells without a sign of change"),
        ([QUIET, FAST], 0, "HDF5 2.00 times faster [1.67, 2.40]; 1 cell without a sign of change"),
        ([QUIET, NEW], 0, "Arrow: new; 1 cell without a sign of change"),
        ([NEW], 3, "Arrow: new"),
        (
            [LEFT_OUT, NEW],
            0,
            "Arrow: new; 1 cell without a sign of change; 1 of them by their counters alone",
        ),
        ([QUIET, PERHAPS], 4, "LevelDB probably slower: 1.30 [1.08, 1.56]; 1 cell without a sign of change"),
        (
            [APART, SLOW, APART],
            1,
            f"LMDB 1.50 times slower [1.25, 1.80]; 2 cells not interleaved, 1.00 {IN_TURN}",
        ),
        ([OTHER, PERHAPS], 3, "SQLite: other samples; LevelDB probably slower: 1.30 [1.08, 1.56]"),
        (
            [PERHAPS, SLOW],
            1,
            "LMDB 1.50 times slower [1.25, 1.80]; LevelDB probably slower: 1.30 [1.08, 1.56]",
        ),
        ([COUNTED], 1, "Lance: read_calls 1 -> 2"),
        ([LOST, SLOW], 5, "LMDB 1.50 times slower [1.25, 1.80]; Zarr: it is gone"),
        (
            [FAILED, LOST, SLOW, OTHER, FAST],
            5,
            "RocksDB: wrong samples; LMDB 1.50 times slower [1.25, 1.80]; Zarr: it is gone; 2 more",
        ),
    ],
)
def test_the_gravest_state_of_any_cell_gives_the_exit_code(
    cells: list[CellResult], code: int, line: str
) -> None:
    found = told(*cells)
    assert (found.exit_code, found.line) == (code, line)


def test_the_worst_cell_is_the_first_row_of_the_table() -> None:
    table = verdict_table([QUIET, WIDE, LOST, SLOW])
    assert [row[0] for row in table.rows] == ["LMDB", "Zarr", "PNG files", "memory"]
    assert table.rows[0] == ("LMDB", "worse", "1.50 [1.25, 1.80]", "", "5/5", "why")
    assert verdict_table([]).rows == ()
