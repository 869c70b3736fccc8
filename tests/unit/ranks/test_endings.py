"""Which rank ended a job: the first that failed by itself."""

import signal
from pathlib import Path

from storebench.ranks.launch import RankFailure, Team, failure_of, read_failures, write_exits
from storebench.ranks.membership import Membership

TEAM = Team(ranks=3)


def fail(folder: Path, rank: int, why: str, *, consequence: bool = False) -> None:
    me = Membership(rank=rank, ranks=3)
    RankFailure.now(me, why, consequence=consequence, see_log=False).write(folder)


def test_a_job_whose_ranks_say_nothing_has_no_failure(tmp_path: Path) -> None:
    assert failure_of(tmp_path, TEAM) is None
    write_exits(tmp_path, {})
    assert failure_of(tmp_path, TEAM) is None


def test_a_rank_that_was_asked_to_end_is_not_to_blame(tmp_path: Path) -> None:
    write_exits(tmp_path, {2: 3, 1: -15})
    assert str(failure_of(tmp_path, TEAM)) == "rank 2 on node 0: it ended with exit code 3"


def test_the_first_reason_counts(tmp_path: Path) -> None:
    fail(tmp_path, 2, "no store")
    fail(tmp_path, 0, "no store, either")
    assert [failure.rank for failure in read_failures(tmp_path, TEAM.here)] == [2, 0]
    assert str(failure_of(tmp_path, TEAM)) == "rank 2 on node 0: no store"


def test_a_reason_comes_before_the_loss_of_another_rank(tmp_path: Path) -> None:
    fail(tmp_path, 0, "connection closed by peer", consequence=True)
    fail(tmp_path, 1, "a bug")
    assert str(failure_of(tmp_path, TEAM)) == "rank 1 on node 0: a bug"


def test_a_killed_rank_comes_before_those_that_lost_it(tmp_path: Path) -> None:
    fail(tmp_path, 0, "connection closed by peer", consequence=True)
    write_exits(tmp_path, {0: 5, 1: -9, 2: -15})
    failure = failure_of(tmp_path, TEAM)
    assert str(failure) == "rank 1 on node 0: it was killed by SIGKILL"
    assert failure is not None
    assert failure.see_log


def test_the_first_rank_to_end_was_not_asked_to_by_its_agent(tmp_path: Path) -> None:
    write_exits(tmp_path, {1: -15, 0: -15, 2: -9})
    assert str(failure_of(tmp_path, TEAM)) == "rank 1 on node 0: it was killed by SIGTERM"


def test_a_rank_that_was_asked_to_end_is_named_if_others_only_lost_it(tmp_path: Path) -> None:
    fail(tmp_path, 0, "connection closed by peer", consequence=True)
    write_exits(tmp_path, {0: 5, 1: -15, 2: -15})
    assert str(failure_of(tmp_path, TEAM)) == "rank 1 on node 0: it was killed by SIGTERM"


def test_a_rank_that_was_asked_to_end_is_not_to_blame_for_another_node(tmp_path: Path) -> None:
    fail(tmp_path, 2, "connection closed by peer", consequence=True)
    write_exits(tmp_path, {2: 5, 3: -15})
    team = Team(ranks=4, nodes=2, node=1, rendezvous="alpha:4001")
    assert str(failure_of(tmp_path, team)) == "rank 2 on node 0: connection closed by peer"


def test_the_loss_of_a_rank_is_told_where_nothing_else_is(tmp_path: Path) -> None:
    fail(tmp_path, 0, "connection closed by peer", consequence=True)
    assert str(failure_of(tmp_path, TEAM)) == "rank 0 on node 0: connection closed by peer"


def test_a_rank_that_wrote_nothing_is_on_the_node_that_started_it(tmp_path: Path) -> None:
    write_exits(tmp_path, {2: 1})
    failure = failure_of(tmp_path, Team(ranks=4, nodes=2, node=1, rendezvous="alpha:4001"))
    assert str(failure) == "rank 2 on node 1: it ended with exit code 1"


def test_a_rank_that_could_not_write_its_answer_names_the_full_disk(tmp_path: Path) -> None:
    folder = tmp_path / "replicate" / "ranks"
    folder.mkdir(parents=True)
    write_exits(folder, {0: 74, 1: -15})
    failure = failure_of(folder, TEAM)
    assert failure is not None
    assert failure.failure.startswith(f"{tmp_path}: the disk is full; free some space")
    assert not failure.see_log


def test_a_rank_that_a_signal_without_a_name_ended_is_named(tmp_path: Path) -> None:
    write_exits(tmp_path, {1: -(signal.SIGRTMIN + 2)})
    assert str(failure_of(tmp_path, TEAM)) == "rank 1 on node 0: it was killed by SIGRTMIN+2"
