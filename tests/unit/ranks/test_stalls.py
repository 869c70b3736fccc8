"""Which rank hangs, from what the ranks of a job have counted."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from storebench.errors import CellFailedError
from storebench.ranks.heartbeat import NO_PROGRESS, Position, RankProgress
from storebench.ranks.launch import START_PHASES, START_S, StallWatch, Team
from tests.support.harness_tools import wait_for


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_ranks(folder: Path, ranks: int = 2) -> list[RankProgress]:
    """Make the accounts of ranks that have started."""
    made = [RankProgress.create(folder, rank) for rank in range(ranks)]
    for one in made:
        start(one)
    return made


def start(progress: RankProgress) -> None:
    for number in range(START_PHASES):
        progress.begin(f"phase {number} of the start")


def test_a_position_is_what_the_rank_has_counted(tmp_path: Path) -> None:
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


def test_a_process_that_nobody_watches_needs_no_file() -> None:
    assert [*NO_PROGRESS.over(iter("ab"))] == ["a", "b"]
    NO_PROGRESS.begin("epoch 0")
    with NO_PROGRESS.waiting():
        pass


def test_a_rank_that_is_started_twice_is_refused(tmp_path: Path) -> None:
    make_ranks(tmp_path)
    with pytest.raises(CellFailedError, match="was restarted"):
        make_ranks(tmp_path)


def test_the_rank_that_has_come_least_far_is_named(tmp_path: Path, clock: Clock) -> None:
    watch = StallWatch(tmp_path, Team(ranks=2), 5, clock)
    first, second = make_ranks(tmp_path)
    for one, batches in ((first, 8), (second, 7)):
        one.begin("epoch 0")
        for _ in range(batches):
            one.batch()
    assert watch.failure() is None
    clock.now_s = 4.9
    assert watch.failure() is None
    clock.now_s = 5.0
    assert watch.failure() == (
        "rank 1 on node 0 made no progress for 5 s after 7 batches of epoch 0; if its work takes longer, raise "
        "stall_s in the scenario"
    )


def test_a_rank_that_waits_in_its_step_is_not_named_before_the_one_behind(
    tmp_path: Path, clock: Clock
) -> None:
    """Its time is over first where the one that hangs had begun the step later."""
    watch = StallWatch(tmp_path, Team(ranks=2), 5, clock)
    ahead, behind = make_ranks(tmp_path)
    for one in (ahead, behind):
        one.begin("epoch 0")
    ahead.batch()
    ahead.batch()
    assert watch.failure() is None
    clock.now_s = 1.0
    behind.batch()
    assert watch.failure() is None
    clock.now_s = 5.5
    assert watch.failure() is None, "only the one that is ahead has had its time"
    clock.now_s = 6.0
    assert (watch.failure() or "").startswith("rank 1 on node 0 made no progress for 5 s after 1 batches")


def test_progress_of_each_rank_counts(tmp_path: Path, clock: Clock) -> None:
    watch = StallWatch(tmp_path, Team(ranks=2), 5, clock)
    ranks = make_ranks(tmp_path)
    for rank in ranks:
        rank.begin("epoch 0")
    for now_s in range(20):
        clock.now_s = now_s
        for rank in ranks:
            rank.batch()
        assert watch.failure() is None
    clock.now_s = 25
    ranks[0].batch()
    assert "rank 1 on node 0 made no progress for 5 s after 20 batches of epoch 0" in (watch.failure() or "")


def test_a_rank_that_waits_for_another_is_not_to_blame(tmp_path: Path, clock: Clock) -> None:
    watch = StallWatch(tmp_path, Team(ranks=2), 5, clock)
    first, second = make_ranks(tmp_path)
    first.begin("the preparation of the page cache")
    second.begin("the preparation of the page cache")
    second.begin("the opening of the store")
    with first.waiting():
        watch.failure()
        clock.now_s = 6
        assert "rank 1 on node 0 made no progress for 5 s during the opening of the store" in (
            watch.failure() or ""
        )


@contextlib.contextmanager
def all_waiting(folder: Path) -> Iterator[None]:
    """Have two ranks wait in their first epoch."""
    with contextlib.ExitStack() as stack:
        for one in make_ranks(folder):
            one.begin("epoch 0")
            stack.enter_context(one.waiting())
        yield


def test_ranks_that_all_wait_are_named_together(tmp_path: Path, clock: Clock) -> None:
    watch = StallWatch(tmp_path, Team(ranks=2), 5, clock)
    with all_waiting(tmp_path):
        watch.failure()
        clock.now_s = 6
        assert (watch.failure() or "").startswith("rank 0 on node 0 and rank 1 on node 0 made no progress")


def test_the_start_may_take_longer(tmp_path: Path, clock: Clock) -> None:
    watch = StallWatch(tmp_path, Team(ranks=2), 5, clock)
    clock.now_s = START_S - 1
    assert watch.failure() is None
    RankProgress.create(tmp_path, 0).begin("the rendezvous")
    watch.failure()
    clock.now_s = START_S + 1
    assert "rank 1 on node 0 made no progress for 60 s during the start" in (watch.failure() or "")


def test_ranks_that_wait_for_another_node_are_not_to_blame(tmp_path: Path, clock: Clock) -> None:
    watch = StallWatch(tmp_path, Team(ranks=4, nodes=2, rendezvous="alpha:4001"), 5, clock)
    with all_waiting(tmp_path):
        watch.failure()
        clock.now_s = 600
        assert watch.failure() is None


@pytest.fixture
def stopped() -> Iterator[int]:
    """Return the id of a process that is stopped."""
    with subprocess.Popen(["sleep", "600"]) as process:
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        yield process.pid
        process.kill()


def test_a_stopped_process_is_named_first(
    stopped: int, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = StallWatch(tmp_path, Team(ranks=3), 5, clock)
    for rank in range(3):
        if rank == 1:
            monkeypatch.setattr("os.getpid", lambda: stopped)
        one = RankProgress.create(tmp_path, rank)
        start(one)
        monkeypatch.undo()
        one.begin("epoch 0")
    watch.failure()
    clock.now_s = 6
    line = watch.failure() or ""
    assert line.startswith("rank 1 on node 0 made no progress for 5 s")
    assert "its process is stopped" in line
