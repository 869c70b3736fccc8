"""Which rank ended a job, and which one hangs."""

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from storebench.errors import CellFailedError
from storebench.ranks.heartbeat import NO_PROGRESS, Position, RankProgress
from storebench.ranks.launch import (
    START_PHASES,
    START_S,
    RankWatch,
    Team,
    blame,
    read_failure,
    write_failure,
)
from tests.support.harness_tools import wait_for

ALONE = Team(ranks=4)
SECOND_NODE = Team(ranks=4, nodes=2, node=1, rendezvous="alpha:4001")
LOST = "connection closed by peer"
# What ranks have said, whether these lost others, their exit codes in the order of their ends, and who is blamed.
ENDINGS: dict[str, tuple[Team, dict[int, str], dict[int, int], str]] = {
    "asked to end": (ALONE, {}, {2: 3, 1: -15}, "rank 2 on node 0: it ended with exit code 3"),
    "a reason": (ALONE, {0: LOST, 1: "a bug"}, {0: 5, 1: 5}, "rank 1 on node 0: a bug"),
    "killed": (ALONE, {0: LOST}, {0: 5, 1: -9, 2: -15}, "rank 1 on node 0: it was killed by SIGKILL"),
    "the first of those asked": (
        ALONE,
        {},
        {1: -15, 0: -15, 2: -9},
        "rank 1 on node 0: it was killed by SIGTERM",
    ),
    "others only lost it": (ALONE, {0: LOST}, {0: 5, 1: -15}, "rank 1 on node 0: it was killed by SIGTERM"),
    "lost on another node": (SECOND_NODE, {2: LOST}, {2: 5, 3: -15}, f"rank 2 on node 1: {LOST}"),
    "nothing else is known": (ALONE, {0: LOST}, {0: 5}, f"rank 0 on node 0: {LOST}"),
    "a signal without a name": (
        ALONE,
        {},
        {1: -(signal.SIGRTMIN + 2)},
        "rank 1 on node 0: it was killed by SIGRTMIN+2",
    ),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_the_rank_that_failed_by_itself_is_blamed(name: str, tmp_path: Path) -> None:
    team, told, exits, failure = ENDINGS[name]
    for rank, text in told.items():
        write_failure(tmp_path, rank, text, consequence=text == LOST)
    blame(tmp_path, team, exits)
    ending = read_failure(tmp_path, None)
    assert ending["failure"] == failure
    assert ending["consequence"] == (LOST in failure)
    assert ending["see_log"] == ("it " in failure)


def test_a_rank_that_could_not_write_its_answer_names_the_full_disk(tmp_path: Path) -> None:
    folder = tmp_path / "replicate" / "ranks"
    folder.mkdir(parents=True)
    blame(folder, ALONE, {0: 74, 1: -15})
    ending = read_failure(folder, None)
    assert ending["failure"].startswith(f"rank 0 on node 0: {tmp_path}: the disk is full; free some space")
    assert not ending["see_log"]
    assert json.dumps(ending)


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_ranks(folder: Path, ranks: int = 2, pids: Mapping[int, int] | None = None) -> list[RankProgress]:
    """Make the accounts of ranks that have started, and are in their first epoch."""
    made = []
    for rank in range(ranks):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.getpid", lambda rank=rank: (pids or {}).get(rank, 1))
            made.append(RankProgress.create(folder, rank))
        for number in range(START_PHASES):
            made[-1].begin(f"phase {number} of the start")
        made[-1].begin("epoch 0")
    return made


def test_a_position_is_what_the_rank_has_counted(tmp_path: Path) -> None:
    assert Position.of(tmp_path, 3) == Position(3)
    progress = RankProgress.create(tmp_path, 3)
    assert Position.of(tmp_path, 3).order == (0, 0)
    progress.begin("the opening of the store")
    progress.begin("epoch 0")
    assert list(progress.over(iter("ab"))) == ["a", "b"]
    position = Position.of(tmp_path, 3)
    assert (position.phase, position.batches, position.waiting) == (2, 2, False)
    assert str(position) == "after 2 batches of epoch 0"
    progress.begin("a phase with a name that is much longer than the file has room for, so it is cut")
    assert str(Position.of(tmp_path, 3)).startswith("during a phase with a name that is much longer")
    with progress.waiting():
        assert Position.of(tmp_path, 3).waiting
    assert not Position.of(tmp_path, 3).waiting
    assert [*NO_PROGRESS.over(iter("ab"))] == ["a", "b"]


def test_a_rank_that_is_started_twice_is_refused(tmp_path: Path) -> None:
    make_ranks(tmp_path)
    with pytest.raises(CellFailedError, match="was restarted"):
        make_ranks(tmp_path)


def test_the_rank_that_has_come_least_far_is_named(tmp_path: Path, clock: Clock) -> None:
    watch = RankWatch(tmp_path, Team(ranks=2), 5, clock)
    first, second = make_ranks(tmp_path)
    assert watch.failure() is None
    clock.now_s = 2.0
    for rank, batches in ((first, 8), (second, 7)):
        for _ in range(batches):
            rank.batch()
    assert watch.failure() is None
    clock.now_s = 6.9
    assert watch.failure() is None
    clock.now_s = 7.0
    assert watch.failure() == (
        "rank 1 on node 0 made no progress for 5 s after 7 batches of epoch 0; if its work takes longer, raise "
        "stall_s in the scenario"
    )


@contextlib.contextmanager
def waiting(*ranks: RankProgress) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for rank in ranks:
            stack.enter_context(rank.waiting())
        yield


@pytest.mark.parametrize(
    ("team", "waits", "blamed"),
    [
        (Team(ranks=2), (0,), "rank 1 on node 0 made no progress"),
        (Team(ranks=2), (0, 1), "rank 0 on node 0 and rank 1 on node 0 made no progress"),
        (Team(ranks=4, nodes=2, rendezvous="alpha:4001"), (0, 1), ""),  # maybe for another node
    ],
)
def test_a_rank_that_waits_for_another_is_not_to_blame(
    team: Team, waits: tuple[int, ...], blamed: str, tmp_path: Path, clock: Clock
) -> None:
    watch = RankWatch(tmp_path, team, 5, clock)
    ranks = make_ranks(tmp_path)
    ranks[1].batch()  # further than the other
    ranks[0].batch()
    with waiting(*(ranks[rank] for rank in waits)):
        assert watch.failure() is None
        clock.now_s = 6
        failure = watch.failure()
    assert (failure or "").startswith(blamed)
    assert (failure is None) == (not blamed)


def test_the_start_may_take_longer(tmp_path: Path, clock: Clock) -> None:
    watch = RankWatch(tmp_path, Team(ranks=2), 5, clock)
    clock.now_s = START_S - 1
    assert watch.failure() is None
    RankProgress.create(tmp_path, 0).begin("the rendezvous")
    assert watch.failure() is None
    clock.now_s = 2 * START_S
    assert "rank 1 on node 0 made no progress for 60 s during the start" in (watch.failure() or "")


def test_a_stopped_process_is_named_first(tmp_path: Path, clock: Clock) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            process.send_signal(signal.SIGSTOP)
            wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
            watch = RankWatch(tmp_path, Team(ranks=3), 5, clock)
            make_ranks(tmp_path, 3, pids={1: process.pid})[1].batch()
            watch.failure()
            clock.now_s = 6
            line = watch.failure() or ""
        finally:
            process.kill()
    assert line.startswith("rank 1 on node 0 made no progress for 5 s")
    assert "its process is stopped" in line
