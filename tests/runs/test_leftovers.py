"""What a killed command leaves goes when the program starts again, and nothing else does."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from storebench.formats.reads.planned import Turns
from storebench.record.lines import RECORDS_NAME
from storebench.system.processes import MARK, end_processes
from storebench.system.scratch import PREFIX, SEGMENTS
from tests.support.harness_tools import SMALL, Bench, alive, busy_run, score, started, survivors, wait_for

SEGMENT = "-".join((f"{PREFIX}pixels", str(os.getuid())))


@pytest.fixture
def here(bench: Bench, temporary: Path) -> Bench:
    """Return the command line with a folder for temporary files of its own."""
    return dataclasses.replace(bench, env={**bench.env, "TMPDIR": str(temporary)})


def segments() -> set[str]:
    return {path.name for path in SEGMENTS.glob(f"{SEGMENT}-*")}


@contextlib.contextmanager
def killed(family: list[psutil.Process]) -> Iterator[None]:
    try:
        yield
    finally:
        for one in alive(family):
            one.kill()


@pytest.mark.parametrize(
    ("workers", "loader"),
    [*(pytest.param(n, "processes", marks=pytest.mark.full) for n in (0, 2)), (2, "ring")],
)
def test_the_next_start_ends_and_removes_what_a_killed_run_left(
    workers: int, loader: str, here: Bench, temporary: Path, tmp_path: Path
) -> None:
    with busy_run(here, tmp_path, workers, "--loader", loader) as (process, family), killed(family):
        for one in family:
            one.suspend()  # so that none of them ends by itself
        process.kill()
        process.wait()
        time.sleep(0.2)
        assert len(alive(family)) >= 1 + workers
        assert [path.name for path in temporary.glob("storebench-replicate-*")] != []
        assert here.cli("formats").returncode == 0
        assert survivors(family) == []
        assert list(temporary.iterdir()) == []


def runs(process: psutil.Process, program: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return program in process.cmdline()
    return False


@pytest.mark.parametrize(("ranks", "program"), [(1, "storebench.worker"), (2, "storebench.ranks.agent")])
def test_a_process_that_is_still_starting_ends_with_a_killed_run(
    ranks: int, program: str, here: Bench, tmp_path: Path
) -> None:
    """It has a session of its own, so a kill of the run's process group does not reach it."""
    stores = tmp_path / "stores"
    options = (*SMALL, "--ranks", str(ranks), "--stores", stores, "--out", tmp_path / "run")
    with started(here, "run", "planted:patient", *options) as process:
        cells = wait_for(
            lambda: [child for child in psutil.Process(process.pid).children() if runs(child, program)]
        )
        with killed(cells):
            cells[0].suspend()  # in the middle of its imports
            process.kill()
            process.wait()
            cells[0].resume()
            assert survivors(cells, 20.0) == []
    assert not any(stores.glob("*/begun-*"))


def test_a_start_beside_a_run_leaves_it_alone_and_an_interrupt_ends_it(
    here: Bench, temporary: Path, tmp_path: Path
) -> None:
    with busy_run(here, tmp_path, 2) as (process, family), killed(family):
        process.send_signal(signal.SIGSTOP)  # it lives, though it does nothing
        before = sorted(temporary.iterdir())
        assert here.cli("formats").returncode == 0
        assert sorted(temporary.iterdir()) == before
        assert len(alive(family)) == len(family)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
        assert (process.returncode, stdout) == (130, "")
        assert "interrupted" in stderr.splitlines()[-1]
        assert "Traceback" not in stderr
        assert survivors(family) == []
        assert list(temporary.iterdir()) == []
        assert not (tmp_path / "run" / RECORDS_NAME).exists(), "half a record"


SHARE_AND_DIE = """
import os, signal, sys
from storebench.formats.registry import open_reader
reader = open_reader(sys.argv[1], "shared")
sys.stdout.write("open\\n")
sys.stdout.flush()
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_shared_memory_of_killed_readers_goes_at_the_next_start(here: Bench, tmp_path: Path) -> None:
    small = ("-d", "mnist", "--synthetic", "--limit", "16", "--out", tmp_path / "stores")
    assert here.cli("convert", "memory", *small).returncode == 0
    [store] = (tmp_path / "stores").glob("*/memory+raw")
    before = segments()
    with subprocess.Popen(
        [sys.executable, "-c", SHARE_AND_DIE, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        [name] = segments() - before
        here.cli("formats")
        assert name in segments(), "its reader lives"
        reader.communicate()
    here.cli("formats")
    assert name not in segments()


TAKE_TURNS_AND_DIE = """
import os, signal, sys
from pathlib import Path
from storebench.formats.reads.planned import Turns
turns = Turns(Path(sys.argv[1]), 2)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_lock_files_of_turns_go_with_their_last_user(
    here: Bench, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    first, second = Turns(tmp_path, 2), Turns(tmp_path, 2)
    first.close()
    assert len(list(temporary.iterdir())) == 1, "there is another user"
    with second.one():
        here.cli("formats")
        assert len(list(temporary.iterdir())) == 1
    second.close()
    second.close()
    assert list(temporary.iterdir()) == []
    subprocess.run([sys.executable, "-c", TAKE_TURNS_AND_DIE, tmp_path], env=dict(here.env), check=False)
    assert len(list(temporary.iterdir())) == 1
    here.cli("formats")
    assert list(temporary.iterdir()) == []


SLEEP = [sys.executable, "-c", "import time; print('there', flush=True); time.sleep(600)"]


def test_processes_are_ended_by_the_folder_that_they_were_started_for(tmp_path: Path) -> None:
    mine, others = tmp_path / "storebench-replicate-11111111", tmp_path / "storebench-replicate-22222222"
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(SLEEP, env={**os.environ, MARK: folder.name}, stdout=subprocess.PIPE)
            )
            for folder in (mine, others)
        ]
        for process in processes:
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
        processes[0].send_signal(signal.SIGSTOP)
        assert end_processes([mine]) == [processes[0].pid]
        assert processes[0].wait(60) == -signal.SIGKILL
        assert processes[1].poll() is None


LARGE = "import time; held = b'x' * (400 << 20); print('there', flush=True); time.sleep(600)"
"""To give so much memory back takes the kernel longer than to kill a process."""


def test_a_process_that_was_ended_holds_nothing_any_more(tmp_path: Path) -> None:
    """Its files, locks and sockets are free for whoever ended it."""
    folder = tmp_path / "storebench-replicate-11111111"
    env = {**os.environ, MARK: folder.name}
    with subprocess.Popen([sys.executable, "-c", LARGE], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert end_processes([folder]) == [process.pid]
        assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE


def encoders_of(pid: int) -> list[psutil.Process]:
    children = psutil.Process(pid).children()
    return [child for child in children if "spawn_main" in str(child.cmdline())]


@pytest.mark.full
def test_stopped_encoders_of_a_killed_conversion_are_gone(here: Bench, tmp_path: Path) -> None:
    words = ("convert", "png", "-d", "mnist", "--synthetic", "--size", "60000", "--processes", "2")
    with subprocess.Popen(
        here.command(*words, "--out", tmp_path / "stores"), env=dict(here.env), stderr=subprocess.DEVNULL
    ) as process:
        encoders = wait_for(lambda: encoders_of(process.pid))
        wait_for(lambda: list(tmp_path.glob("stores/*/.storebench-unfinished-*/*")))
        with killed([*encoders, psutil.Process(process.pid)]):
            wait_for(lambda: all(score(encoder.pid) > score(process.pid) for encoder in encoders))
            family = psutil.Process(process.pid).children()  # the one that tidies up after the others, too
            for one in family:
                one.suspend()
            process.kill()
            process.wait()
            psutil.wait_procs(encoders, timeout=60)
            assert survivors(encoders) == []
            for one in alive(family):
                one.kill()
