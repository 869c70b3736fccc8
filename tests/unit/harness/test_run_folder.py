"""A run's folder after a kill, a full disk or an interrupt at any write: whole replicates, their tables, one writer."""

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from storebench.errors import DataNotFoundError, OutputError
from storebench.report.checks.findings import Finding, Rule
from storebench.report.checks.records import validate
from storebench.results import Record, Status
from storebench.runs.folder import Run
from storebench.runs.lock import claimed
from storebench.runs.records import RECORDS_NAME, STEPS_DIR, SUPERSEDED_NAME, read_records
from storebench.runs.steps import merge_tables
from storebench.worker.replicate import run as run_replicate
from storebench.worker.setup import Setup
from tests.support import replay_run
from tests.support.harness_tools import SMALL_MATRIX, Bench, cell_job, scenario, write_scenario
from tests.support.step_tables import all_tables, merged_tables

MATRIX = {"dataset": "mnist", "synthetic": True, "limit": 16, "batch_size": 8, "model": "tiny", "epochs": 2}
ALL_EPOCHS = Counter((replicate, epoch) for replicate in (0, 1) for epoch in (0, 1))
ENDS = {"kill": -signal.SIGKILL, "full": 5, "interrupt": 130}

HOLDER = """
import sys, time
from pathlib import Path
from storebench.runs.lock import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(120)
"""

REPLAYED = {**SMALL_MATRIX, "epochs": 2, "backends": ["lmdb"]}


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Runs of two replicates of one cell: measured, without a record, and with failed records only.

    The tables of `measured` and `failed` are files of their own, those of `merged` are in one file.
    """

    measured: Path
    empty: Path
    failed: Path
    merged: Path


def findings(*runs: Path) -> list[Finding]:
    """Validate runs; a busy machine may leave milliseconds of such short epochs unexplained."""
    return [finding for finding in validate(list(runs)) if finding.kind is not Rule.ARITHMETIC]


def measure(run: Run, stores: Path, failure: str | None = None) -> None:
    """Run every cell in this process and record it, as failed where there is a failure."""
    for work in run.left():
        with run.attempt() as tables:
            job = cell_job(work.cell, stores, run.folder)
            job = dataclasses.replace(job, replicate=work.replicate, run_id=run.run_id, tables=tables)
            records = run_replicate(Setup.of(job))
            if failure is not None:
                records = [
                    dataclasses.replace(record, status=Status.FAILED, failure=failure) for record in records
                ]
            run.record(records, tables)


@pytest.fixture(scope="module")
def runs(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("runs")
    made = Runs(**{name: root / name for name in ("measured", "empty", "failed", "merged")})
    of = scenario(**MATRIX, backends=["lmdb"]).model_copy(update={"name": "replayed", "replicates": 2})
    measure(Run.create(of, made.failed, of.cells()), bench.stores, failure="the cache was not cold")
    measure(Run.create(of, made.measured, of.cells()), bench.stores)
    Run.create(of, made.empty, of.cells())
    shutil.copytree(made.failed, made.merged)
    assert merge_tables(made.merged) == 4
    assert findings(made.measured, made.failed) == []
    return made


def lines(path: Path) -> list[bytes]:
    """Return the lines of a file that are whole JSON."""
    found = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else []:
        with contextlib.suppress(ValueError):
            json.loads(line)
            found.append(line)
    return found


def raw_lines(folder: Path) -> list[bytes]:
    path = folder / RECORDS_NAME
    return path.read_bytes().splitlines() if path.is_file() else []


def records_in(folder: Path) -> list[Record]:
    try:
        return read_records(folder)
    except DataNotFoundError:
        return []


def named_in(folder: Path) -> set[str]:
    """Return the step tables that records name, superseded ones included."""
    everything = lines(folder / RECORDS_NAME) + lines(folder / SUPERSEDED_NAME)
    return {json.loads(line)["steps_file"] for line in everything}


def check_consistent(folder: Path, start: Path) -> None:
    """Check a folder as a fault left it: readers see whole replicates, each of one outcome, and no record is lost."""
    if (folder / RECORDS_NAME).exists():
        assert findings(folder) == []
    grouped: dict[int, list[Record]] = {}
    for record in records_in(folder):
        grouped.setdefault(record.replicate, []).append(record)
    for group in grouped.values():
        assert [record.epoch for record in group] == [0, 1]
        assert len({record.status for record in group}) == 1
    assert named_in(folder) <= all_tables(folder).keys()
    everything = lines(folder / RECORDS_NAME) + lines(folder / SUPERSEDED_NAME)
    assert set(lines(start / RECORDS_NAME)) <= set(everything), "a record is lost"


def check_clean(folder: Path) -> None:
    """Check that a folder holds every table that a record names, and nothing that a process left behind."""
    named = named_in(folder)
    assert all_tables(folder).keys() == named
    left = {f"{STEPS_DIR}/{path.name}" for path in (folder / STEPS_DIR).glob("*")}
    assert left <= named, "something else is in steps"
    assert not list(folder.glob(".*")), "a half-written file"


def check_merged(folder: Path) -> None:
    """Check that all tables of a folder are in one file, and nothing else is there."""
    check_clean(folder)
    assert merged_tables(folder).keys() == named_in(folder)
    assert not (folder / STEPS_DIR).exists()


def check_finished(folder: Path, before: Path) -> None:
    """Check a run that was finished after a fault, against its copy from before that: nothing is lost or doubled."""
    check_merged(folder)
    assert findings(folder) == []
    records = read_records(folder)
    assert Counter((record.replicate, record.epoch) for record in records) == ALL_EPOCHS
    assert {record.status for record in records} == {Status.OK}
    everything = Counter(lines(folder / RECORDS_NAME) + lines(folder / SUPERSEDED_NAME))
    assert set(lines(before / RECORDS_NAME)) <= everything.keys(), "a record is lost"
    assert set(everything.values()) == {1}, "a record is doubled"
    tables, earlier = all_tables(folder), all_tables(before)
    for name in {json.loads(line)["steps_file"] for line in lines(before / RECORDS_NAME)}:
        assert tables[name].equals(earlier[name]), "the table of a record was overwritten"


BEGUN = ("empty", "failed", "merged")
FAULTS = tuple(ENDS)


@pytest.fixture
def operations(begun: str, fault: str, request: pytest.FixtureRequest) -> tuple[int, int]:
    """Return the first of the operations that are tried, and how far they are apart.

    A sixth of them each, so that each has a fault in one of the runs at least; all with --full.
    """
    if request.config.getoption("--full"):
        return 1, 1
    run = BEGUN.index(begun)
    return 1 + (run + FAULTS.index(fault)) % 3 + 3 * (run % 2), 6


@pytest.mark.thinned
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("begun", BEGUN)
def test_a_fault_at_any_file_operation_leaves_whole_replicates(
    begun: str, fault: str, operations: tuple[int, int], runs: Runs, in_memory: Path
) -> None:
    start, (first, every) = getattr(runs, begun), operations
    points = list(replay_run.points(runs.measured, start, in_memory, fault, first=first, every=every))
    reached = [(name, code) for name, code in points if code != 0]
    assert {code for _, code in reached} == {ENDS[fault]}
    assert len(reached) >= 14 // every
    for name, _ in [*reached, points[-1]]:
        folder = in_memory / name
        check_consistent(folder, start)
        if fault != "kill":
            check_clean(folder)
            assert len(raw_lines(folder)) == len(records_in(folder)), "a part of a block stayed"
        before = shutil.copytree(folder, in_memory / f"{name}-before")
        replay_run.replay(runs.measured, folder)
        check_finished(folder, before)
    content = (folder / RECORDS_NAME).read_bytes()
    replay_run.replay(runs.measured, folder)
    assert (folder / RECORDS_NAME).read_bytes() == content, "a finished run was changed"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold a run's folder."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_on_a_runs_folder_is_refused_in_one_line(
    runs: Runs, bench: Bench, tmp_path: Path
) -> None:
    folder = shutil.copytree(runs.measured, tmp_path / "run")
    path = tmp_path / "replayed.toml"
    write_scenario(path, REPLAYED, replicates=2)
    content = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    small = ("--dataset", "mnist", "--synthetic", "--limit", "16", "--model", "tiny")
    with held(folder) as holder:
        for words in (
            ("bench", path),
            ("bench", path, "--resume"),
            ("bench", path, "--resume", "--retry-failed", "--replicates", "3"),
            ("run", "lmdb", *small),
        ):
            done = bench.cli(*words, "--out", folder, "--stores", bench.stores)
            assert done.returncode == 2, done.stderr
            [said] = done.stderr.splitlines()
            assert f"{folder}: another process is running it (pid {holder.pid})" in said
        assert bench.cli("validate", folder).returncode in (0, 5)
        assert bench.cli("trace", folder, "--out", tmp_path / "trace.json").returncode == 0
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == content


def test_a_folder_is_free_again_when_its_holder_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with held(folder) as holder:
        with pytest.raises(OutputError, match=rf"another process is running it \(pid {holder.pid}\)"):
            Run.create(scenario(**MATRIX, backends=["lmdb"]), folder, [])
        holder.kill()
        holder.wait()
        with claimed(folder), claimed(folder):
            assert list(folder.iterdir()) == [], "the lock is no file"
    with claimed(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists(), "a folder that was made for nothing stays"


def test_a_killed_runner_leaves_a_run_that_validates_and_resumes(bench: Bench, tmp_path: Path) -> None:
    """Kill it with tables of a replicate in place and no record: at the second of the two replicates."""
    strace = shutil.which("strace")
    if strace is None or subprocess.run([strace, "-o", os.devnull, "true"], check=False).returncode:
        pytest.skip("no strace, or it may not trace; the test of every file operation needs none")
    path, run = tmp_path / "replayed.toml", tmp_path / "run"
    write_scenario(path, REPLAYED, replicates=2)
    arguments = ("bench", path, "--stores", bench.stores, "--out", run)
    small = ("-d", "mnist", "--synthetic", "--limit", "16")
    assert bench.cli("convert", "lmdb", *small, "--out", bench.stores).returncode == 0
    # Synced so far: run.json and its name; two tables, their names, the records and their name; two tables, their names.
    inject = ("-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=10")
    done = subprocess.run(
        [strace, "-o", os.devnull, *inject, *bench.command(*arguments)],
        cwd=bench.root,
        env=dict(bench.env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    assert [(record.replicate, record.epoch) for record in read_records(run)] == [(0, 0), (0, 1)]
    assert len(all_tables(run)) == 4, "the kill was to come after the tables of the second replicate"
    assert findings(run) == []
    others = tmp_path / "others"  # the run knows its own stores
    elsewhere = dataclasses.replace(bench, env={**bench.env, "STOREBENCH_STORES": str(others)})
    resumed = elsewhere.cli("bench", path, "--out", run, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert not others.exists()
    assert findings(run) == []
    assert Counter((record.replicate, record.epoch) for record in read_records(run)) == ALL_EPOCHS
    check_merged(run)


def test_failed_cells_run_again_and_their_records_are_kept_aside(bench: Bench, tmp_path: Path) -> None:
    path, run = tmp_path / "replayed.toml", tmp_path / "run"
    write_scenario(path, {**REPLAYED, "backends": ["planted:moody", "lmdb"]})
    arguments = ("bench", path, "--stores", bench.stores, "--out", run)
    moody = dataclasses.replace(bench, env={**bench.env, "PLANTED_MOOD": "bad"})
    done = moody.cli(*arguments)
    assert done.returncode == 5, done.stderr
    again = f"storebench bench {path} --resume --retry-failed --out {run} --stores {bench.stores}"
    assert f"'{again}' runs the failed ones again" in done.stderr
    before = lines(run / RECORDS_NAME)
    failed = [line for line in before if json.loads(line)["status"] == "failed"]
    assert len(failed) == 2

    unasked = bench.cli(*arguments, "--resume")
    assert unasked.returncode == 5
    assert "replicate done" not in unasked.stderr
    assert lines(run / RECORDS_NAME) == before

    done = bench.cli(*shlex.split(again)[1:])
    assert done.returncode == 0, done.stderr
    assert "1 replicate done" in done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("LMDB  ")]  # of the matrix
    assert lines(run / SUPERSEDED_NAME) == failed
    assert {record.status for record in read_records(run)} == {Status.OK}
    assert len(read_records(run)) == len(before)
    assert [line for line in before if line not in failed] == [
        line for line in lines(run / RECORDS_NAME) if line in before
    ]
    assert findings(run) == []


def test_retrying_failed_cells_needs_a_run_to_resume(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "replayed.toml"
    write_scenario(path, REPLAYED, replicates=2)
    done = bench.cli("bench", path, "--retry-failed", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "--retry-failed needs --resume" in done.stderr
    assert not (tmp_path / "run").exists()
