"""Runs that are interrupted or killed, alone or in part; tests/faults ends commands at any write."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from storebench.errors import EXIT_INTEGRITY, UsageError
from storebench.probes.cgroup import memory_group
from storebench.record.lines import RECORDS_NAME, read_records
from storebench.system.processes import MARK, end_processes
from storebench.system.whole_files import EXIT_NOT_WRITTEN
from storebench.worker.job import job_text
from tests.support.harness_tools import (
    SMALL,
    SMALL_MATRIX,
    Bench,
    alive,
    busy_run,
    cell_job,
    scenario,
    score,
    started,
    survivors,
    wait_for,
)

MIB = 1 << 20


@pytest.fixture
def here(bench: Bench, temporary: Path) -> Bench:
    """Give the command line a folder for temporary files of its own."""
    return dataclasses.replace(bench, env={**bench.env, "TMPDIR": str(temporary)})


@contextlib.contextmanager
def killed(family: list[psutil.Process]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in alive(family):
            process.kill()


def is_the_cell(child: psutil.Process, runner: int) -> bool:
    """Tell a cell, or the interpreter from which it was forked, from its workers."""
    parent = child.parent()
    return parent is not None and runner in (parent.pid, parent.ppid())


@dataclass(frozen=True, kw_only=True)
class End:
    """A signal to the runner of a cell in the middle of a batch, and the processes that are stopped."""

    number: signal.Signals
    workers: int = 2
    words: tuple[str, ...] = ()
    stopped: str = ""


ENDS = {
    "interrupt": End(number=signal.SIGINT, workers=0),
    "interrupt, stopped cell": End(number=signal.SIGINT, stopped="cell"),
    "interrupt, stopped workers": End(number=signal.SIGINT, words=("--loader", "ring"), stopped="workers"),
    "interrupt of two ranks": End(number=signal.SIGINT, workers=1, words=("--ranks", "2", "--threads", "1")),
    "kill": End(number=signal.SIGKILL),
    "kill, all stopped": End(number=signal.SIGKILL, words=("--loader", "ring"), stopped="cell workers"),
}


FEW = ("interrupt, stopped cell", "interrupt of two ranks", "kill, all stopped")
"""Without --full."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.full) for name in ENDS]
)
def test_a_run_that_is_ended_leaves_nothing(name: str, here: Bench, temporary: Path, tmp_path: Path) -> None:
    end = ENDS[name]
    ranks = 2 if "--ranks" in end.words else 1
    with busy_run(here, tmp_path, end.workers, *end.words) as (process, _):
        wait_for(lambda: len(list((tmp_path / "stores").glob("*/begun-*"))) >= ranks)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= (5 if ranks == 2 else 2 + end.workers)
        sooner = min(1000, score(process.pid) + 500)
        assert {score(child.pid) for child in family} == {sooner}, "cells and workers die before the runner"
        with killed(family):
            before = sorted(temporary.iterdir())
            assert here.cli("formats").returncode == 0
            assert sorted(temporary.iterdir()) == before, "a start beside a run leaves it alone"
            for child in family:
                if ("cell" if is_the_cell(child, process.pid) else "workers") in end.stopped:
                    child.suspend()
            process.send_signal(end.number)
            if end.number == signal.SIGKILL:
                process.wait(30)  # stopped processes still hold its pipes
            else:
                output, error = process.communicate(timeout=60)
                assert (process.returncode, output) == (130, "")
                assert "interrupted" in error.splitlines()[-1]
                continuing = f"'storebench run --resume --out {tmp_path / 'run'}' continues this run"
                assert continuing in error.splitlines()[-2]
                assert "Traceback" not in error
            if end.number == signal.SIGKILL and end.stopped:
                time.sleep(0.2)
                assert len(alive(family)) >= 1 + end.workers
                assert here.cli("formats").returncode == 0
            assert survivors(family, 20) == []
            if end.number == signal.SIGKILL:
                here.cli("formats")
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "run" / RECORDS_NAME).exists(), "half a record"


def runs(process: psutil.Process, program: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return program in process.cmdline()
    return False


@pytest.mark.parametrize(
    ("ranks", "program"),
    [(1, "storebench.worker"), pytest.param(2, "storebench.ranks.agent", marks=pytest.mark.full)],
)
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


KILLED = """
import os, signal, sys, tempfile
from pathlib import Path
from storebench.formats.reads.planned import Turns
turns = Turns(Path(sys.argv[1]), 2)
print(*Path(tempfile.gettempdir()).iterdir(), flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_locks_of_a_killed_process_go_at_the_next_start(here: Bench, tmp_path: Path) -> None:
    """tests/faults kills processes that hold shared memory."""
    (tmp_path / "store").touch()
    command = [sys.executable, "-c", KILLED, str(tmp_path / "store")]
    with subprocess.Popen(
        command, env=dict(here.env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        paths = [Path(word) for word in process.stdout.readline().split()]
        assert paths
        here.cli("formats")
        assert all(path.exists() for path in paths), "their process lives"
        process.communicate()
    assert all(path.exists() for path in paths)
    here.cli("formats")
    assert not any(path.exists() for path in paths)


LARGE = "import time; held = b'x' * (400 << 20); print('there', flush=True); time.sleep(600)"
"""To give so much memory back takes the kernel longer than to kill a process."""


def test_processes_are_ended_by_the_folder_that_they_were_started_for(tmp_path: Path) -> None:
    mine, others = tmp_path / "storebench-replicate-11111111", tmp_path / "storebench-replicate-22222222"
    with contextlib.ExitStack() as stack:
        processes = []
        for folder in (mine, others):
            env = {**os.environ, MARK: folder.name}
            process = subprocess.Popen([sys.executable, "-c", LARGE], env=env, stdout=subprocess.PIPE)
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
        processes[0].send_signal(signal.SIGSTOP)
        assert end_processes([mine]) == [processes[0].pid]
        # Its files, locks and sockets are free for whoever ended it.
        assert psutil.Process(processes[0].pid).status() == psutil.STATUS_ZOMBIE
        assert processes[0].wait(60) == -signal.SIGKILL
        assert processes[1].poll() is None


@pytest.mark.parametrize(("stored", "code"), [(True, 0), (False, EXIT_INTEGRITY), (None, EXIT_NOT_WRITTEN)])
def test_a_cells_process_ends_with_the_code_of_its_answer(
    stored: bool | None, code: int, bench: Bench, run_folder: Path, tmp_path: Path
) -> None:
    [cell] = scenario(**SMALL_MATRIX, backends=["lmdb"]).cells()
    job = cell_job(cell, bench.stores, run_folder)
    job = job if stored else dataclasses.replace(job, store=tmp_path / "no-store")
    job = job if stored is not None else dataclasses.replace(job, out=tmp_path / "no-folder" / "out.json")
    (tmp_path / "job.json").write_text(job_text(job), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "storebench.worker", str(tmp_path / "job.json")]
    done = subprocess.run(
        command, env={**os.environ, **bench.env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert job.out.is_file() == (stored is not None)


@pytest.mark.parametrize(
    ("reader", "stopped", "timeout_s"),
    [
        pytest.param("patient", "workers", 8, id="its workers are stopped", marks=pytest.mark.full),
        pytest.param("flat", "storebench.worker", 3, id="the interpreter that forks it is stopped"),
    ],
)
def test_a_cell_that_runs_out_of_time_is_killed_and_recorded(
    reader: str, stopped: str, timeout_s: int, bench: Bench, tmp_path: Path
) -> None:
    seen: set[psutil.Process] = set()
    options = (*SMALL, "--workers", "2", "--timeout", str(timeout_s))
    places = ("--stores", tmp_path / "stores", "--out", tmp_path / "run")
    with started(bench, "run", f"planted:{reader}", *options, *places) as process:
        while process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process(process.pid).children(recursive=stopped == "workers")
                for child in set(children) - seen:
                    if stopped == "workers":
                        seen.add(child)
                    if runs(child, stopped) or (stopped == "workers" and not is_the_cell(child, process.pid)):
                        child.suspend()
            time.sleep(0.01)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 5, error
    assert survivors(seen) == []
    [record] = read_records(tmp_path / "run")
    assert (record.failure or "").startswith(f"the cell was killed: no answer after {timeout_s} s")


@pytest.mark.parametrize(("loader", "reader"), [("processes", "mortal"), ("ring", "killed")])
def test_a_worker_that_dies_is_told_in_the_record_and_leaves_no_file(
    loader: str, reader: str, here: Bench, temporary: Path, tmp_path: Path
) -> None:
    """Whether the loop waits for it at that moment or is busy with a step."""
    options = (*SMALL, "--compute", "emulated:1000", "--workers", "2", "--loader", loader)
    places = ("--out", tmp_path / "run", "--stores", tmp_path / "stores")
    done = here.cli("run", f"planted:{reader}", *options, *places)
    assert done.returncode == 5, done.stderr
    [record] = read_records(tmp_path / "run")
    assert record.failure is not None
    assert "the loader's worker process" in record.failure
    assert "was killed by SIGKILL" in record.failure
    assert list(temporary.iterdir()) == []


def test_cells_that_die_or_serve_wrong_samples_fail_alone(bench: Bench, tmp_path: Path) -> None:
    backends = ("planted:killed", "planted:broken", "planted:wrong", "planted:full", "planted", "lmdb")
    done, records = bench.run(*backends, *SMALL, out=tmp_path / "run")
    assert done.returncode == 5
    failures = {record["cell"]["reader"]: record["failure"] for record in records}
    assert len(records) == len(failures) == 6
    assert failures["flat"] is failures["get"] is None
    assert "signal SIGKILL" in failures["killed"]
    said = "unexpected error: ZeroDivisionError: a bug in somebody's reader; see logs/"
    assert failures["broken"].startswith(said)
    assert "the first sample 7" in failures["wrong"]
    assert "the disk is full" in failures["full"]
    assert "planted+raw" in failures["full"]
    log = failures["broken"].rpartition(" ")[2]
    assert "Traceback (most recent call last)" in (tmp_path / "run" / log).read_text()
    assert "4 of 6 records failed" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """Make a control group with 500 MiB of memory."""
    try:
        with memory_group(500 * MIB) as group:
            yield group.folder
    except UsageError as error:
        pytest.skip(str(error))


@pytest.mark.root
@pytest.mark.parametrize("workers", [0, 2])
def test_too_little_memory_costs_the_cell_and_not_the_run(
    workers: int, small_memory: Path, bench: Bench, tmp_path: Path
) -> None:
    backends = ("planted:hungry", "planted:flat")
    words = ("run", *backends, *SMALL, "--workers", str(workers), "--threads", "1")
    places = ("--out", str(tmp_path / "run"), "--stores", str(tmp_path / "stores"))
    done = bench.commands.run(*words, *places, cwd=tmp_path, env=bench.env, group=str(small_memory))
    assert done.returncode == 5, done.stderr
    by = {record.cell.backend.reader: record for record in read_records(tmp_path / "run")}
    assert by["flat"].status.value == "ok"
    failure = by["hungry"].failure or ""
    assert failure.startswith("out of memory: the kernel killed a process of the cell; use fewer workers")
    assert "SIGKILL" in failure
