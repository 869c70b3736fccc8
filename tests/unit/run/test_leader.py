"""The first of several nodes: it waits for the others, tells them each job, and names the node that failed."""

from pathlib import Path
from typing import Any, cast

import pytest

from storebench.errors import CellFailedError
from storebench.ranks.nodes import Board, NodeAddress
from storebench.run.leader import OVER, Leader
from storebench.worker.job import CellJob
from tests.support.planted import make_cell
from tests.support.planted_board import PlantedBoard


def leader_of(board: PlantedBoard, nodes: int = 3) -> Leader:
    return Leader(NodeAddress(node=0, nodes=nodes, host="alpha", port=4000), cast("Board", board))


def job_of(folder: Path, ranks: int = 4, **changes: Any) -> CellJob:
    return CellJob(
        cell=make_cell("lmdb", ranks=ranks),
        replicate=0,
        run_id="run",
        run=folder,
        tables=folder,
        store=folder,
        out=folder / "out.json",
        **changes,
    )


def test_a_node_that_is_not_ready_in_time_is_named() -> None:
    with pytest.raises(CellFailedError, match=r"node 2: it is not ready after 5 s"):
        leader_of(PlantedBoard(ready_1={})).wait_for_nodes(5.0)


def test_a_node_that_cannot_take_part_gives_its_reason() -> None:
    with pytest.raises(CellFailedError, match=r"node 1: no space"):
        leader_of(PlantedBoard(ready_1={"failure": "no space"}, ready_2={})).wait_for_nodes(5.0)


def test_jobs_are_numbered_and_meet_at_ports_in_turn(tmp_path: Path) -> None:
    board = PlantedBoard()
    leader = leader_of(board)
    jobs = [leader.announced(job_of(tmp_path)) for _ in range(3)]
    assert [job.rendezvous for job in jobs] == ["alpha:4001", "alpha:4002", "alpha:4001"]
    assert {job.nodes for job in jobs} == {3}
    assert sorted(board.told) == ["job/0", "job/1", "job/2"]


def test_a_job_of_one_rank_needs_no_other_node(tmp_path: Path) -> None:
    board = PlantedBoard()
    job = job_of(tmp_path, ranks=1)
    assert leader_of(board).announced(job) is job
    assert board.told == {}


def blamed(folder: Path, own: dict[str, Any], **endings: dict[str, Any]) -> dict[str, Any]:
    board = PlantedBoard(**endings)
    leader = leader_of(board)
    job = leader.announced(job_of(folder))
    return leader.blamed(job, own)


def test_a_cause_elsewhere_comes_before_its_consequence_here(tmp_path: Path) -> None:
    own = {"failure": "lost a peer", "consequence": True}
    cause = {"failure": "a bug"}
    assert blamed(tmp_path, own, ended_0_1={}, ended_0_2=cause) == cause
    assert blamed(tmp_path, own, ended_0_1={}, ended_0_2={"failure": "lost", "consequence": True}) == own


def test_of_ranks_without_progress_the_one_furthest_behind_is_named(tmp_path: Path) -> None:
    own = {"failure": "here", "position": (1, 7)}  # not from JSON
    behind = {"failure": "there", "position": [1, 3]}
    assert blamed(tmp_path, own, ended_0_1=behind, ended_0_2={"failure": "far", "position": [2, 0]}) == behind


def test_at_the_end_the_others_are_told_and_waited_for(tmp_path: Path) -> None:
    board = PlantedBoard()
    leader = leader_of(board)
    leader.announced(job_of(tmp_path))
    leader.close()
    assert board.told["job/1"] == OVER
    assert board.asked == ["left/1", "left/2"]
