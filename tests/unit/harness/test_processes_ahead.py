"""The processes of the next replicates start together and wait: what they do meanwhile, and what ends them."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from storebench.probes.code import package_folder
from storebench.runs.records import LOGS_DIR
from storebench.runs.schedule import schedule
from storebench.scenario import make_scenario
from storebench.system.scratch import scratch_folder
from storebench.worker import ahead
from storebench.worker.ahead import Start, Together, groups
from storebench.worker.waiting import Place, forked
from tests.support.harness_tools import (
    SMALL_MATRIX,
    Bench,
    busy_run,
    started,
    survivors,
    write_scenario,
)

LEAST_MAPPED_KIB = 32 << 10
"""Less than the pages of libraries that the import of torch touches; a fork alone has 6 MiB of them."""

WITNESS = '''
"""Note what the processes of replicates do, and have those that wait for a job meet what a test plants."""
import atexit, os, signal, sys, time

NOTES = os.environ["WITNESS_NOTES"]
PLANT = os.environ.get("WITNESS_PLANTS")
forks, forker = 0, 0

def note(what):
    with open(NOTES, "a") as notes:
        notes.write(f"{time.monotonic()} {os.getpid()} {what}\\n")

def noted():
    with open(NOTES) as notes:
        return [(int(line.split()[1]), line.split()[2]) for line in notes]

def heard(event, arguments):
    if event != "open" or not isinstance(arguments[0], (str, bytes, os.PathLike)):
        return
    path = os.fsdecode(arguments[0])
    if path.endswith("/job.json"):
        import random
        import numpy as np
        note("job")
        note(f"namespace {os.readlink('/proc/self/ns/mnt')}")
        note(f"hash {hash('storebench')}")
        note(f"draws {random.random()},{np.random.random()}")
        if PLANT == "kill" and waits:
            for pid in {pid for pid, what in noted() if what == "waits"} - {os.getpid()}:
                os.kill(pid, signal.SIGKILL)
    elif "/stores/mnist-" in path:
        note("store")

def forking():
    global forks, forker
    forks, forker = forks + 1, os.getpid()  # the interpreter may have ended before its last child looks for its parent

def forked():
    if forks > 2 or forker != interpreter:
        return  # a process that the cell forks
    note("waits")
    if PLANT == "second is slow" and forks == 2 and "job" not in {what for _, what in noted()}:
        time.sleep(0.5)  # a job that did not wait for this process would begin now
        note("slept")
    if PLANT == "fail":
        os._exit(3)
    if PLANT == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)

def forked_one():
    if PLANT == "first only":
        while "waits" not in {what for _, what in noted()}:
            time.sleep(0.01)
        print("no more processes", file=sys.stderr)
        os._exit(3)

if "storebench.worker" in sys.orig_argv:
    interpreter, waits = os.getpid(), "--wait" in sys.orig_argv
    note("imports" if waits else "begins")
    sys.addaudithook(heard)
    atexit.register(note, "ends")
    if waits:
        os.register_at_fork(before=forking, after_in_child=forked, after_in_parent=forked_one)
    if PLANT == "refuse" and waits:
        os._exit(3)
'''


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a process did, and when."""

    at_s: float
    pid: int
    what: str


def read_notes(path: Path) -> list[Note]:
    """Return what processes noted."""
    lines = [line.split(maxsplit=2) for line in path.read_text().splitlines()]
    return [Note(at_s=float(at), pid=int(pid), what=what) for at, pid, what in lines]


@dataclass(frozen=True, kw_only=True)
class Witnessed:
    """A command line whose processes of replicates are watched."""

    bench: Bench
    notes: Path

    def run(self, scenario: Path, out: Path, plants: str = "") -> tuple[list[dict[str, Any]], list[Note]]:
        """Run a scenario; return its records and what the processes did, in order."""
        env = {**self.bench.env, "WITNESS_PLANTS": plants}
        here = dataclasses.replace(self.bench, env=env)
        words = ("bench", scenario, "--stores", scenario.parent / "stores", "--out", out, "--json")
        with started(here, *words) as process:
            stdout, _ = process.communicate(timeout=240)
        return json.loads(stdout), sorted(read_notes(self.notes), key=lambda one: one.at_s)


@pytest.fixture
def two_cores() -> Iterator[None]:
    """Let this process, and so the processes that it starts, use two cores."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("processes start together only on several cores")
    os.sched_setaffinity(0, sorted(cores)[:2])
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture
def here(bench: Bench, temporary: Path, two_cores: None) -> Bench:
    """Return the command line with its own folder for temporary files, on two cores."""
    return dataclasses.replace(bench, env={**bench.env, "TMPDIR": str(temporary)})


def witness_in(folder: Path) -> Path:
    """Write the module of witnesses, and return the file for their notes."""
    (folder / "witness").mkdir()
    (folder / "witness" / "sitecustomize.py").write_text(WITNESS)
    notes = folder / "notes"
    notes.touch()
    return notes


@pytest.fixture
def witnessed(here: Bench, tmp_path: Path) -> Witnessed:
    notes = witness_in(tmp_path)
    path = os.pathsep.join([str(tmp_path / "witness"), here.env["PYTHONPATH"]])
    env = {**here.env, "PYTHONPATH": path, "WITNESS_NOTES": str(notes)}
    return Witnessed(bench=dataclasses.replace(here, env=env), notes=notes)


def of_kind(notes: list[Note], what: str) -> list[Note]:
    return [note for note in notes if note.what == what]


def own_namespace() -> str:
    return str(Path("/proc/self/ns/mnt").readlink())


def namespaces(notes: list[Note]) -> list[str]:
    """Return the mount namespace of each process."""
    return values(notes, "namespace")


def values(notes: list[Note], name: str) -> list[str]:
    """Return what the processes noted under a name when they got their jobs, in the order of the jobs."""
    return [note.what.split()[1] for note in notes if note.what.startswith(f"{name} ")]


def scenario_of(folder: Path, *backends: str, **keys: Any) -> Path:
    matrix: Mapping[str, Any] = {**SMALL_MATRIX, "backends": list(backends)}
    return write_scenario(folder / "scenario.toml", matrix, ceilings=False, **keys)


def test_a_group_is_ready_before_its_first_job_and_takes_turns(
    witnessed: Witnessed, temporary: Path, tmp_path: Path
) -> None:
    path = scenario_of(tmp_path, "lmdb", "planted:broken", replicates=2)
    records, notes = witnessed.run(path, tmp_path / "run", "second is slow")
    assert sorted(record["status"] for record in records) == ["failed", "failed", "ok", "ok"]
    assert len({one.pid for one in of_kind(notes, "waits")}) == 4, "each replicate has its own process"
    assert of_kind(notes, "begins") == []
    assert set(namespaces(notes)) == {own_namespace()}
    assert len(of_kind(notes, "imports")) == 2, "each round has its own interpreter"
    [slept] = of_kind(notes, "slept")
    jobs, ends = of_kind(notes, "job"), of_kind(notes, "ends")
    assert slept.at_s < jobs[0].at_s, "the second process was not ready"
    assert [job.pid for job in jobs] == [end.pid for end in ends]
    assert all(end.at_s < job.at_s for end, job in zip(ends, jobs[1:], strict=False)), "two ran at once"
    first_at = {one.pid: one.at_s for one in reversed(of_kind(notes, "store"))}
    assert all(first_at[job.pid] > job.at_s for job in jobs), "a waiting process opened a store"
    order = [(note.at_s, note.what) for note in notes if note.what in {"waits", "job"}]
    assert [what for _, what in order] == ["waits", "waits", "job", "job"] * 2
    first, second, third, fourth = values(notes, "hash")
    assert first == second != third == fourth, "interpreters differ between rounds, and only there"
    assert [
        len(set(of)) for of in zip(*(pair.split(",") for pair in values(notes, "draws")), strict=True)
    ] == [4, 4]
    logs = {record["failure"].rpartition("/")[2] for record in records if record["status"] == "failed"}
    assert {path.name for path in (tmp_path / "run" / LOGS_DIR).iterdir()} == logs
    assert list(temporary.iterdir()) == []


@pytest.mark.root
def test_processes_that_mount_a_device_wait_in_namespaces_of_their_own(
    witnessed: Witnessed, temporary: Path, tmp_path: Path
) -> None:
    enough = {
        "limit": 8000,
        "max_steps": 2,
    }  # of a smaller store, the pages that an open reader maps are too many
    matrix = {**SMALL_MATRIX, **enough, "backends": ["lmdb"], "cache": "cold", "readahead": [128, 256]}
    path = write_scenario(tmp_path / "scenario.toml", matrix, ceilings=False)
    records, notes = witnessed.run(path, tmp_path / "run")
    assert [record["status"] for record in records] == ["ok", "ok"]
    assert of_kind(notes, "begins") == [], "one of them did not start with the other"
    assert len({*namespaces(notes), own_namespace()}) == 3
    assert list(temporary.iterdir()) == []


@pytest.mark.full
@pytest.mark.parametrize(("plant", "replaced"), [("kill", 1), ("fail", 2), ("refuse", 2)])
def test_a_process_that_dies_before_its_job_is_replaced(
    plant: str, replaced: int, witnessed: Witnessed, temporary: Path, tmp_path: Path
) -> None:
    records, notes = witnessed.run(scenario_of(tmp_path, "lmdb", "png"), tmp_path / "run", plant)
    assert [record["status"] for record in records] == ["ok", "ok"]
    assert len(of_kind(notes, "waits")) == (0 if plant == "refuse" else 2)
    assert len(of_kind(notes, "begins")) == replaced
    assert list((tmp_path / "run" / LOGS_DIR).iterdir()) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_waiting_process_is_idle_and_ends_with_the_run(
    number: signal.Signals, here: Bench, temporary: Path, tmp_path: Path
) -> None:
    with busy_run(here, tmp_path, 0, "--cache", "warm,any") as (process, family):
        [begun] = (tmp_path / "stores").glob("*/begun-*")
        [waiting] = [one for one in family if str(one.pid) != begun.name.partition("-")[2]]
        assert len(family) == 2
        assert "libtorch" in Path(f"/proc/{waiting.pid}/maps").read_text()
        assert waiting.open_files() == [] or {file.fd for file in waiting.open_files()} <= {1, 2}
        before = waiting.cpu_times()
        time.sleep(0.3)
        assert waiting.cpu_times() == before
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == (-number if number == signal.SIGKILL else 130)
        assert survivors(family, 20.0) == []
    if number == signal.SIGKILL:
        assert here.cli("formats").returncode == 0
    else:
        logs = tmp_path / "run" / LOGS_DIR
        assert not logs.is_dir() or len(list(logs.iterdir())) <= 1, "the log of a replicate that did not run"
    assert list(temporary.iterdir()) == []


@pytest.mark.full
def test_a_waiting_process_ends_when_nobody_can_tell_it_to(
    here: Bench, temporary: Path, tmp_path: Path
) -> None:
    with busy_run(here, tmp_path, 0, "--cache", "warm,any") as (process, family):
        for one in family:
            one.suspend()
        process.kill()
        process.wait()
        assert here.cli("formats").returncode == 0
        assert survivors(family) == []
    assert list(temporary.iterdir()) == []


def test_the_process_of_a_cell_has_a_session_of_its_own(temporary: Path, tmp_path: Path) -> None:
    """As a rank has: Linux divides the cores between sessions, and other work in the runner's would slow it more."""
    with contextlib.ExitStack() as stack:
        scratch, own = (stack.enter_context(scratch_folder("replicate")) for _ in range(2))
        log = tmp_path / "log"
        [waiting] = forked([Place(scratch=own, log=log)], scratch, log, 60.0)
        assert waiting is not None
        stack.enter_context(waiting)
        assert os.getsid(waiting.pid) == waiting.pid != os.getsid(0)
        # Its peak memory is recorded, and that of an interpreter counts the pages of libraries that the import touched.
        mapped = Path(f"/proc/{waiting.pid}/status").read_text().partition("RssFile:")[2].split()[0]
        assert int(mapped) > LEAST_MAPPED_KIB


@pytest.fixture
def offered(
    two_cores: None, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[bool]]:
    """Return a function that begins a group of two, and tells of each process whether it waits for its job."""
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    starts = {(name, 0): Start(log=tmp_path / f"{name}.log") for name in ("first", "second")}

    def begun() -> list[bool]:
        before, waits = set(psutil.Process().children(recursive=True)), []
        with Together(starts) as together:
            for key in starts:
                with together.process(key) as waiting:
                    waits.append(waiting is not None)
        assert set(psutil.Process().children(recursive=True)) <= before, "a process or a zombie stayed behind"
        assert list(temporary.iterdir()) == []
        return waits

    return begun


def test_processes_that_never_get_ready_are_ended(
    offered: Callable[[], list[bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "READY_S", 0.05)
    assert offered() == [False, False]
    assert list(tmp_path.glob("*.log")) == []


@pytest.mark.parametrize("plant", ["fail", "stop", "first only"])
def test_processes_that_end_before_they_are_ready_leave_nothing(
    plant: str, offered: Callable[[], list[bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WITNESS_NOTES", str(witness_in(tmp_path)))
    monkeypatch.setenv("WITNESS_PLANTS", plant)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "witness"))
    if plant == "stop":
        monkeypatch.setattr(ahead, "READY_S", 5.0)
    assert offered() == [False, False]
    assert of_kind(read_notes(tmp_path / "notes"), "waits") != []
    assert list(tmp_path.glob("*.log")) == [], "a replicate's log tells of the start of others"


@pytest.mark.parametrize("changed", [pytest.param(False, marks=pytest.mark.full), True])
def test_processes_that_imported_other_code_are_ended(
    changed: bool, offered: Callable[[], list[bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is changed on disk while the processes of a group import it."""
    package = tmp_path / "storebench"
    shutil.copytree(package_folder(), package, ignore=shutil.ignore_patterns("__pycache__"))
    if changed:
        (package / "units.py").write_text((package / "units.py").read_text() + "\nCHANGED = True\n")
    monkeypatch.setattr(ahead, "package_folder", lambda: package)
    assert offered() == [not changed] * 2


def test_as_many_processes_wait_as_memory_has_room_for(
    two_cores: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = make_scenario(
        {"name": "four", "replicates": 2, "matrix": [{**SMALL_MATRIX, "backends": ["png", "lmdb"]}]}
    )
    work = schedule(scenario.cells(), 2, 0)
    assert [len(group) for group in groups(work, alone=False)] == [2, 2]
    assert [len(group) for group in groups(work, alone=True)] == [1, 1, 1, 1]
    monkeypatch.setattr(ahead, "can_own_pages", lambda: False)
    assert [len(group) for group in groups(work, alone=False)] == [1, 1, 1, 1]
    monkeypatch.undo()
    monkeypatch.setattr(ahead, "ROOM_BYTES", psutil.virtual_memory().total + 1)
    assert [len(group) for group in groups(work, alone=False)] == [1, 1, 1, 1]
