"""Runs that are interrupted or killed at a stage, alone or in part, and whose cells die, fail or do not answer."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from storebench.errors import EXIT_INTEGRITY, UsageError
from storebench.probes.cgroup import memory_group
from storebench.record.lines import RECORDS_NAME, read_records
from storebench.system.whole_files import EXIT_NOT_WRITTEN
from storebench.worker.job import job_text
from tests.faults.engine import Fault, Place, Running, run, started
from tests.faults.invariants import ending_problems, leftovers
from tests.support.copies import Copy
from tests.support.harness_tools import SMALL, SMALL_MATRIX, cell_job, scenario, wait_for
from tests.support.quick_cli import SERVER

MEMORY_BYTES = 500 << 20
KINDS = {"int": signal.SIGINT, "kill": signal.SIGKILL}
DIED = r"the loader's worker process.*was killed by SIGKILL"
LATE = "^the cell was killed: no answer after {} s"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run, what happens to it while its cell is in the middle of a batch, and how its cells fail."""

    failures: Mapping[str, str] = field(default_factory=dict)
    """Backends, and what the reason of each one's failure has; "" if it succeeds."""
    workers: int = 0
    words: tuple[str, ...] = ()
    ranks: int = 1
    kind: str = ""
    """What the run is sent."""
    stopped: str = ""
    """The processes that are stopped before: of the cell, of its workers, or the program with this name, at once."""
    full: bool = False

    @property
    def command(self) -> list[str]:
        sizes = ("--workers", str(self.workers), "--ranks", str(self.ranks), "--threads", "1")
        backends = self.failures or {"planted:patient": ""}
        return ["run", *backends, *SMALL, *sizes, *self.words, "--stores", "stores", "--out", "run"]

    @property
    def is_program(self) -> bool:
        return self.stopped.startswith("storebench")

    @property
    def is_copy(self) -> bool:
        """Whether it may run in a copy, whose cells have no program of their own, and hold the locks of the run."""
        return not self.is_program and not (self.stopped and self.kind == "kill")


CASES = {
    "interrupt": Case(kind="int", full=True),
    "interrupt, stopped cell": Case(kind="int", workers=2, stopped="cell"),
    "interrupt, stopped workers": Case(
        kind="int", workers=2, words=("--loader", "ring"), stopped="workers", full=True
    ),
    "interrupt of two ranks": Case(kind="int", workers=1, ranks=2),
    "kill": Case(kind="kill", workers=2, full=True),
    "kill, all stopped": Case(
        kind="kill", workers=2, words=("--loader", "ring"), stopped="cell workers", full=True
    ),
    # It has a session of its own, so a kill of the run's process group does not reach it.
    "kill at the start of a cell": Case(kind="kill", stopped="storebench.worker"),
    "kill at the start of ranks": Case(kind="kill", ranks=2, stopped="storebench.ranks.agent", full=True),
    "late, stopped workers": Case(
        failures={"planted:patient": LATE.format(8)},
        words=("--timeout", "8"),
        workers=2,
        stopped="workers",
        full=True,
    ),
    "late, stopped before it forks": Case(
        failures={"planted:flat": LATE.format(3)},
        words=("--timeout", "3"),
        stopped="storebench.worker",
        full=True,
    ),
    "a worker dies in a step": Case(
        failures={"planted:mortal": DIED}, workers=2, words=("--compute", "emulated:1000")
    ),
    "a worker dies while the loop waits": Case(
        failures={"planted:killed": DIED}, workers=2, words=("--loader", "ring")
    ),
    "cells fail alone": Case(
        failures={
            "planted:killed": "signal SIGKILL",
            "planted:broken": "^unexpected error: ZeroDivisionError: a bug in somebody's reader; see logs/",
            "planted:wrong": "the first sample 7",
            "planted:full": r"planted\+raw.*the disk is full|the disk is full.*planted\+raw",
            "planted:flat": "",
            "lmdb:get": "",
        }
    ),
}


@pytest.fixture
def place(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Make a place whose path leaves room for the names of sockets; otherwise they would be elsewhere."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")]))
    place = Place.new(Path(tempfile.gettempdir()))
    yield place
    place.remove()


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=[pytest.mark.full] * case.full) for name, case in CASES.items()],
)
def test_a_run_that_ends_early_leaves_nothing(case: Case, place: Place) -> None:
    assert problems_of(case, place) == []


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """Make a control group with 500 MiB of memory."""
    try:
        with memory_group(MEMORY_BYTES) as group:
            yield group.folder
    except UsageError as error:
        pytest.skip(str(error))


@pytest.mark.root
@pytest.mark.parametrize("workers", [0, 2])
def test_too_little_memory_costs_the_cell_and_not_the_run(
    workers: int, small_memory: Path, place: Place
) -> None:
    died = "^out of memory: the kernel killed a process of the cell; use fewer workers.*SIGKILL"
    case = Case(failures={"planted:hungry": died, "planted:flat": ""}, workers=workers)
    assert problems_of(case, place, group=small_memory) == []


def problems_of(case: Case, place: Place, group: Path | None = None) -> list[str]:
    """Run it, let happen what happens, and return what does not hold afterwards."""
    fault = Fault(kind=case.kind)
    problems: list[str] = []
    with started(case.command, place, server=SERVER if case.is_copy else None, group=group) as running:
        if case.kind or case.stopped:
            stopped = wait_for(lambda: stop(case, running))
        if case.kind:
            before = sorted(place.temporary.iterdir())
            problems += next_start(place)
            if sorted(place.temporary.iterdir()) != before:
                problems.append("a start beside a run changes its temporary files")
            running.main.send_signal(KINDS[case.kind])
        if case.kind == "kill" and case.stopped:
            running.wait()
            if case.is_program:
                stopped[0].resume()
            else:
                problems += [] if running.family() else ["there is nothing to end"]
                problems += next_start(place)
        ending = running.end(fault)
    failed = [pattern for pattern in case.failures.values() if pattern]
    normal = EXIT_INTEGRITY if failed else 0
    problems += ending_problems(ending, fault, normal=normal, complete=["it was stopped"] * bool(case.kind))
    problems += next_start(place) if case.kind == "kill" else []
    problems += leftovers(place.work, ending.segments)
    if case.kind == "int" and "'storebench run --resume --out run' continues this run" not in ending.stderr:
        problems.append("it does not say how to go on")
    if failed and len(case.failures) > 1:
        summary = f"{len(failed)} of {len(case.failures)} records failed"
        problems += [] if summary in ending.stderr else [f"not said: {summary}"]
    return problems + failure_problems(case, place.work / "run")


def stop(case: Case, running: Running) -> list[psutil.Process]:
    """Stop those processes of a run that a case stops, once it is so far; return all that it has started."""
    main = running.main
    if case.is_program:  # in the middle of its imports
        programs = [child for child in main.children() if case.stopped in child.cmdline()]
        for program in programs:
            program.suspend()
        return programs
    begun = list((Path(main.cwd()) / "stores").glob("*/begun-*"))
    family = running.family()
    if len(begun) < case.ranks or len(family) < 1 + case.ranks * (1 + case.workers):
        return []
    sooner = min(1000, score(main) + 500)
    assert {score(process) for process in family} == {sooner}, "cells and workers die before the runner"
    for process in family:
        # The interpreter from which a cell was forked is stopped with it.
        is_cell = main.pid in (process.ppid(), psutil.Process(process.ppid()).ppid())
        if ("cell" if is_cell else "workers") in case.stopped:
            process.suspend()
    return family


def score(process: psutil.Process) -> int:
    """Return how much sooner than by its size the kernel kills a process when memory runs out."""
    return int(Path(f"/proc/{process.pid}/oom_score_adj").read_text(encoding="utf-8"))


def next_start(place: Place) -> list[str]:
    """Start another command with the same folder for temporary files; return what is wrong with that."""
    other = Place(place.folder / "other")
    other.work.mkdir(parents=True, exist_ok=True)
    if not other.temporary.exists():
        other.temporary.symlink_to(place.temporary)
    code = run(["formats"], other, server=SERVER).code
    return [f"the next start ends with {code}"] if code else []


def failure_problems(case: Case, folder: Path) -> list[str]:
    """Return the cells that are not recorded, and those whose reason is not the expected one."""
    if case.kind:
        return ["half a record"] if (folder / RECORDS_NAME).exists() else []
    failures = {
        f"{record.cell.backend.format}:{record.cell.backend.reader}": record.failure or ""
        for record in read_records(folder)
    }
    problems = [] if failures.keys() == case.failures.keys() else [f"records of {list(failures)}"]
    for backend, failure in failures.items():
        pattern = case.failures.get(backend, "")
        if bool(failure) != bool(pattern) or not re.search(pattern, failure, re.DOTALL):
            problems.append(f"{backend} failed: {failure!r}")
        if failure.startswith("unexpected error"):
            log = (folder / failure.rpartition("; see ")[2]).read_text()
            problems += [] if "Traceback (most recent call last)" in log else [f"{backend}: no traceback"]
    return problems


@pytest.mark.parametrize(("stored", "code"), [(True, 0), (False, EXIT_INTEGRITY), (None, EXIT_NOT_WRITTEN)])
def test_a_cells_process_ends_with_the_code_of_its_answer(
    stored: bool | None, code: int, tmp_path: Path
) -> None:
    [cell] = scenario(**SMALL_MATRIX, backends=["lmdb"]).cells()
    (tmp_path / "run").mkdir()
    job = cell_job(cell, tmp_path / "stores", tmp_path / "run")
    job = job if stored else dataclasses.replace(job, store=tmp_path / "no-store")
    job = job if stored is not None else dataclasses.replace(job, out=tmp_path / "no-folder" / "out.json")
    (tmp_path / "job.json").write_text(job_text(job), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "storebench.worker", str(tmp_path / "job.json")]
    with Copy(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert process.wait() == code
    assert job.out.is_file() == (stored is not None)
