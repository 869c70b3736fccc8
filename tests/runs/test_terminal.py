"""The output of a run: one bar on a terminal and lines now and then in a log, then the answer and its matrix."""

import contextlib
import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storebench.cli import output
from storebench.cli.watcher import StderrWatcher
from storebench.ranks.heartbeat import Position
from storebench.run.replicates import PendingReplicate
from tests.support.harness_tools import SMALL, Bench, wait_for
from tests.support.planted import make_record

ROOT = Path(__file__).resolve().parents[2]
LOADING = ("--compute", "none", "--cache", "warm")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@contextlib.contextmanager
def on_terminal(
    bench: Bench, columns: int, *words: str | Path
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """Start the command line on a terminal of its own; give the process, and what it wrote there so far."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    env = {name: value for name, value in bench.env.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        bench.command(*words),
        cwd=bench.root,
        env=env | {"TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    written: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # its last process has gone
            while piece := os.read(ours, 4096):
                written.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield process, lambda: b"".join(written).decode()
    finally:
        process.kill()
        process.wait()
        reader.join(timeout=20)
        os.close(ours)


def test_a_terminal_has_one_bar_one_line_and_the_answer(bench: Bench, tmp_path: Path) -> None:
    places = ("--stores", bench.stores, "--out", tmp_path / "run", "--replicates", "2")
    with on_terminal(bench, 80, "run", "lmdb", *SMALL, *LOADING, *places) as (process, written):
        assert process.wait(timeout=120) == 0
        wait_for(lambda: "draws them" in written())
        shown = written()
    assert re.search(r"mnist from lmdb, warm: the start .* 1/2 about \d+ s left", CONTROL.sub("", shown))
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") > 0  # the cursor is hidden, and is back
    frames = [
        CONTROL.sub("", line)
        for line in re.split(r"[\r\n]", shown)
        if "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in line
    ]
    assert frames
    assert max(map(len, frames)) <= 80
    after = CONTROL.sub("", shown.rpartition("\x1b[?25h")[2]).splitlines()
    assert sum("2 replicates done" in line for line in after) == 1
    assert [line for line in after if line.startswith("LMDB  ")]


def test_an_interrupt_gives_the_terminal_back(plugged: None, bench: Bench, tmp_path: Path) -> None:
    places = ("--stores", tmp_path / "stores", "--out", tmp_path / "run")
    with on_terminal(bench, 80, "run", "planted:patient", *SMALL, *places) as (process, written):
        wait_for(lambda: any((tmp_path / "stores").glob("*/begun-*")))
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 130
        wait_for(lambda: "interrupted" in written())
        shown = written()
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    *_, last = shown.rpartition("\x1b[?25h")[2].split("\x1b[2K")
    assert [line.partition(" ")[0] for line in last.splitlines()][-1] == "storebench:"
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" not in last


def test_a_log_has_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = make_record("lmdb", ranks=2, cache="warm")
    work = PendingReplicate(cell=record.cell, replicate=0)
    behind = Position(rank=1, phase=4, batches=3, total=8, name="epoch 0")
    with StderrWatcher() as watcher:
        watcher.started(work, 0, 2)
        watcher.ranks([Position(rank=0, phase=4, batches=4, total=8, name="epoch 0"), behind])
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(output, "LOG_EVERY_S", 0.0)
        watcher.ranks([Position(rank=0, phase=4, batches=4, total=8, name="epoch 0"), behind])
        watcher.finished(work, [record])
    first, last = capsys.readouterr().err.splitlines()
    assert "lmdb, warm: rank 1, epoch 0: 3 of 8 batches: 0 of 2 replicates" in first
    assert last == "1 replicate done"


def test_a_report_ends_in_100_columns_and_cuts_no_name(bench: Bench, tmp_path: Path) -> None:
    run = shutil.copytree(ROOT / "results" / "reference" / "paper", tmp_path / "paper")
    done = bench.cli("report", run, "--out", tmp_path / "report", "--allow-invalid")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 36
    assert max(map(len, lines[2:])) <= 100, "the answer and its conditions may wrap"
    page, words = (tmp_path / "report" / "report.md").read_text(), set(done.stdout.split())
    for label in ("PNG files", "LevelDB", "LMDB (direct)", "LMDB (direct, readers_at_a_time=1)"):
        assert (f"| {label} |" in page) <= (set(label.split()) <= words), label
