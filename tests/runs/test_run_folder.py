"""A run's folder has one writer at a time, and failed cells run again; tests/faults ends its commands at any write."""

import contextlib
import dataclasses
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storebench.analysis.checks.findings import Finding, Rule
from storebench.errors import OutputError
from storebench.record.lines import RECORDS_NAME, SUPERSEDED_NAME, read_records
from storebench.record.schema import Status
from storebench.run.folder import Run
from storebench.system.lock import claimed
from storebench.worker.replicate import run as run_replicate
from storebench.worker.setup import Setup
from tests.support.findings import validate
from tests.support.harness_tools import SMALL_MATRIX, Bench, cell_job, scenario, write_scenario

MATRIX = {"dataset": "mnist", "synthetic": True, "limit": 16, "batch_size": 8, "model": "tiny", "epochs": 2}
HOLDER = """
import sys, time
from pathlib import Path
from storebench.system.lock import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(120)
"""

REPLAYED = {**SMALL_MATRIX, "epochs": 2, "backends": ["lmdb"]}


def findings(*runs: Path) -> list[Finding]:
    """Validate runs; a busy machine may leave milliseconds of such short epochs unexplained."""
    return [finding for finding in validate(list(runs)) if finding.kind is not Rule.ARITHMETIC]


@pytest.fixture(scope="module")
def measured(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run of two replicates of one cell."""
    folder = tmp_path_factory.mktemp("runs") / "measured"
    of = scenario(**MATRIX, backends=["lmdb"]).model_copy(update={"name": "replayed", "replicates": 2})
    run = Run.create(of, folder, of.cells())
    for work in run.left():
        with run.attempt() as tables:
            job = cell_job(work.cell, bench.stores, run.folder)
            job = dataclasses.replace(job, replicate=work.replicate, run_id=run.run_id, tables=tables)
            run.record(run_replicate(Setup.of(job)), tables)
    assert findings(folder) == []
    return folder


def lines(path: Path) -> list[bytes]:
    """Return the lines of a file that are whole JSON."""
    found = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else []:
        with contextlib.suppress(ValueError):
            json.loads(line)
            found.append(line)
    return found


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
    measured: Path, bench: Bench, tmp_path: Path
) -> None:
    folder = shutil.copytree(measured, tmp_path / "run")
    path = tmp_path / "replayed.toml"
    write_scenario(path, REPLAYED, replicates=2)
    content = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    small = ("--dataset", "mnist", "--synthetic", "--limit", "16", "--model", "tiny")
    with held(folder):
        for words in (
            ("bench", path),
            ("bench", path, "--resume"),
            ("bench", path, "--resume", "--retry-failed", "--replicates", "3"),
            ("run", "lmdb", *small),
        ):
            done = bench.cli(*words, "--out", folder, "--stores", bench.stores)
            assert done.returncode == 2, done.stderr
            [said] = done.stderr.splitlines()
            assert f"{folder}: another process is running it" in said
        assert bench.cli("validate", folder).returncode in (0, 5)
        assert bench.cli("trace", folder, "--out", tmp_path / "trace.json").returncode == 0
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == content


def test_a_folder_is_free_again_when_its_holder_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with held(folder) as holder:
        with pytest.raises(OutputError, match="another process is running it"):
            Run.create(scenario(**MATRIX, backends=["lmdb"]), folder, [])
        holder.kill()
        holder.wait()
        with claimed(folder), claimed(folder):
            assert list(folder.iterdir()) == [], "the lock is no file"
    with claimed(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists(), "a folder that was made for nothing stays"


def test_a_resumed_run_keeps_its_stores(bench: Bench, tmp_path: Path) -> None:
    begun = scenario(**MATRIX, backends=["memory"])
    run = Run.create(begun, tmp_path / "run", begun.cells(), stores=tmp_path / "mine")
    done = bench.cli("run", "--resume", "--out", run.folder)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "mine").glob("*/memory*"))


def test_failed_cells_run_again_and_their_records_are_kept_aside(bench: Bench, tmp_path: Path) -> None:
    path, run = tmp_path / "replayed.toml", tmp_path / "run"
    write_scenario(path, {**REPLAYED, "backends": ["planted:moody", "lmdb"]})
    arguments = ("bench", path, "--stores", bench.stores, "--out", run)
    moody = dataclasses.replace(bench, env={**bench.env, "PLANTED_MOOD": "bad"})
    done = moody.cli(*arguments)
    assert done.returncode == 5, done.stderr
    again = f"storebench bench {path} --resume --retry-failed --out {run}"
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
