"""The lines about the ranks of a job: their progress while it runs, and a summary of each epoch."""

import io
import sys
import time

import pytest

from storebench.cli.progress import ProgressLines, StderrWatcher, job_line, progress_line
from storebench.ranks.progress import Position
from storebench.runs.schedule import PendingReplicate
from tests.support.planted import make_record, with_job


def at(rank: int, batches: int = 0, phase: int = 4, name: str = "epoch 0", total: int = 0) -> Position:
    return Position(rank=rank, phase=phase, batches=batches, name=name, total=total)


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        ([at(0, 7), at(1, 7)], "ranks 0 to 1: epoch 0, 7 batches"),
        (
            [at(0, 121), at(1, 119), at(2, 1200)],
            "ranks 0 to 2: epoch 0, 119 to 1,200 batches (fewest: rank 1)",
        ),
        ([at(0, 1), at(1, 1)], "ranks 0 to 1: epoch 0, 1 batch"),
        (
            [at(0, 3), at(1, phase=0, name="the start"), at(2, 3), at(3, phase=0, name="the start")],
            "ranks 1, 3: the start; ranks 0, 2: epoch 0, 3 batches",
        ),
        ([at(5, 2)], "epoch 0"),
        ([at(0, 2, total=1_000)], "epoch 0: 2 of 1,000 batches"),
    ],
)
def test_a_line_shows_all_ranks_those_behind_first(positions: list[Position], said: str) -> None:
    assert progress_line(positions) == said


class Terminal(io.StringIO):
    """A terminal that keeps what was written to it."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("storebench.cli.progress._REWRITE_EVERY_S", 0.0)
    watcher = StderrWatcher()
    record = make_record("lmdb", ranks=2, cache="warm")
    work = PendingReplicate(cell=record.cell, replicate=0)
    watcher.started(work, 0, 1)
    begun = len(terminal.getvalue())
    for batches in (3, 3, 4):
        watcher.ranks([at(0, batches), at(1, batches)])
    watcher.finished(work, [record])
    shown = terminal.getvalue()[begun:]
    lines = shown.split("\r\x1b[2K")
    assert lines[:3] == ["", "    ranks 0 to 1: epoch 0, 3 batches", "    ranks 0 to 1: epoch 0, 4 batches"]
    assert lines[3].startswith("    epoch 0: ")
    assert len(lines) == 4


def test_a_log_gets_a_line_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ProgressLines()
    lines.began()
    lines.show("epoch 0: 3 of 5 batches")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("storebench.cli.progress.PLAIN_LINE_EVERY_S", 0.02)
    time.sleep(0.03)
    lines.show("epoch 0: 4 of 5 batches")
    lines.clear()
    assert capsys.readouterr().err == "    epoch 0: 4 of 5 batches\n"


def test_the_outcome_of_a_job_has_its_ranks_skew_waits_and_exchange() -> None:
    record = with_job(make_record("lmdb", ranks=2, cache="warm"), exposed_ms=3.0, slowest_ms=0.5)
    assert job_line(record) == (
        "2 ranks: 1,143 to 1,143 samples/s each, skew 0.0%, wait for the slowest 0.50 ms per step,"
        " exposed communication 3.00 ms per step (ideal ring 8.20 ms)"
    )
