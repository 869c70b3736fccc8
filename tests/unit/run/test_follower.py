"""A node of a run but the first: the cells that it prepares, and what it tells the first node about each job."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from storebench.errors import CellFailedError, UsageError
from storebench.ranks.nodes import Board, NodeAddress
from storebench.record.schema import Cell
from storebench.run import follower as following
from storebench.run.execute import Prepared, Silent
from storebench.run.follower import follow
from storebench.run.leader import OVER
from storebench.run.scenario import Scenario, load_scenario
from storebench.worker.job import CellJob, job_text
from tests.support.planted_board import PlantedBoard

SCENARIO = """
name = "two"
[[matrix]]
dataset = "mnist"
ranks = 2
backends = ["lmdb"]
[[matrix]]
dataset = "mnist"
ranks = 2
backends = ["lmdb"]
cache = "limited"
memory = "64 MiB"
optional = true
"""
NODE = NodeAddress(node=1, nodes=2, host="alpha", port=4000)
NO_LIMIT = "the page cache cannot be limited here"


class Place:
    """This node, on which no memory can be limited and no process is started."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, text: str = SCENARIO) -> None:
        self.folder = folder
        (folder / "two.toml").write_text(text)
        self.scenario: Scenario = load_scenario(folder / "two.toml")
        self.plain, self.limited = self.scenario.cells()
        self.prepared: list[Cell] = []
        patch.setattr(following, "refusals", self.refusals)
        patch.setattr(following, "prepare", self.prepare)
        patch.setattr(following, "answer_of", lambda *_more: {})

    def refusals(self, cells: Iterable[Cell], _stores: Path) -> dict[Cell, UsageError]:
        return {cell: UsageError(NO_LIMIT) for cell in cells if cell.memory_bytes is not None}

    def prepare(self, cells: dict[Cell, None], *_more: object, **_place: int) -> dict[Cell, Prepared]:
        self.prepared += cells
        return {
            cell: Prepared(store=self.folder, manifest=cast("Any", None), test_store=None) for cell in cells
        }

    def job(self, cell: Cell) -> dict[str, Any]:
        """Return the announcement of a job."""
        job = CellJob(
            cell=cell,
            replicate=0,
            run_id="run",
            run=self.folder,
            tables=self.folder,
            store=self.folder,
            out=self.folder / "out.json",
            nodes=2,
            rendezvous="alpha:4001",
        )
        return {"job": job_text(job)}

    def follow(self, board: PlantedBoard) -> list[str]:
        return follow(
            self.scenario,
            self.scenario.cells(),
            self.folder / "run",
            self.folder / "stores",
            NODE,
            cast("Board", board),
            Silent(),
        )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def test_optional_cells_that_may_not_run_here_are_not_prepared(place: Place) -> None:
    board = PlantedBoard(job_0=place.job(place.plain), job_1=OVER)
    assert place.follow(board) == []
    assert place.prepared == [place.plain]
    assert board.told == {"ready/1": {}, "ended/0/1": {}, "left/1": {}}


def test_a_node_that_may_run_no_job_leaves_the_first_node_its_other_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, monkeypatch, SCENARIO.replace("ranks = 2\n", "", 1))
    board = PlantedBoard(job_0=OVER)
    assert place.follow(board) == []
    assert board.told == {"ready/1": {}, "left/1": {}}


def test_a_job_that_may_not_run_here_gives_the_reason(place: Place) -> None:
    board = PlantedBoard(job_0=place.job(place.limited), job_1=place.job(place.plain), job_2=OVER)
    assert place.follow(board) == [f"node 1: {NO_LIMIT}"]
    assert board.told["ended/0/1"] == {"failure": f"node 1: {NO_LIMIT}"}
    assert board.told["ended/1/1"] == {}
    assert board.told["left/1"] == {}


def test_a_job_that_cannot_be_started_does_not_end_the_node(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_more: object) -> None:
        raise CellFailedError("the disk is full")

    monkeypatch.setattr(following, "answer_of", full)
    board = PlantedBoard(job_0=place.job(place.plain), job_1=OVER)
    assert place.follow(board) == ["node 1: the disk is full"]
    assert board.told["left/1"] == {}


def test_a_cell_that_must_run_and_may_not_is_told_before_the_first_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, monkeypatch, SCENARIO.replace("optional = true\n", ""))
    board = PlantedBoard()
    with pytest.raises(UsageError, match=NO_LIMIT):
        place.follow(board)
    assert board.told == {"ready/1": {"failure": NO_LIMIT}}
    assert place.prepared == []
