"""Cells that hang, are stopped, run out of memory or of disk: one line in the record, and no process stays."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from storebench.errors import EXIT_INTEGRITY, UsageError
from storebench.probes.cgroup import memory_group
from storebench.record.lines import read_records
from storebench.system.whole_files import EXIT_NOT_WRITTEN
from storebench.worker.job import job_text
from tests.support.harness_tools import (
    SMALL,
    SMALL_MATRIX,
    Bench,
    busy_run,
    cell_job,
    scenario,
    score,
    survivors,
)

MIB = 1 << 20


def family_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def above_workers(child: psutil.Process, runner: int) -> bool:
    """Return whether a process of a run is the cell's, or the one from which it was forked."""
    parent = child.parent()
    return parent is not None and runner in (parent.pid, parent.ppid())


def only(records: list[dict[str, Any]]) -> dict[str, Any]:
    [record] = records
    return record


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


class TestACellThatRunsOutOfTime:
    def test_is_killed_with_its_workers_and_recorded(self, bench: Bench, tmp_path: Path) -> None:
        timeout_s, seen = 2, set[psutil.Process]()
        while len(seen) < 4:  # on a busy machine the workers are not there yet
            timeout_s *= 2
            out = tmp_path / f"run-{timeout_s}"
            seen = self.run_stopping_workers(bench, tmp_path / "stores", out, timeout_s)
            assert survivors(seen) == []
            [record] = read_records(out)
            assert record.failure == (
                f"the cell was killed: no answer after {timeout_s} s; give it more time with --timeout, "
                "or timeout_s in the scenario"
            )

    def run_stopping_workers(
        self, bench: Bench, stores: Path, out: Path, timeout_s: int
    ) -> set[psutil.Process]:
        """Run a cell that takes minutes, and stop its workers, which then do not hear when they are asked to end."""
        seen: set[psutil.Process] = set()
        options = (*SMALL, "--workers", "2", "--timeout", str(timeout_s), "--out", out, "--stores", stores)
        with subprocess.Popen(
            bench.command("run", "planted:patient", *options),
            cwd=bench.root,
            env=dict(bench.env),
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            while process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    for child in set(family_of(process.pid)) - seen:
                        seen.add(child)
                        if not above_workers(child, process.pid):
                            child.suspend()
                time.sleep(0.2)
            _, error = process.communicate(timeout=60)
        assert process.returncode == 5, error
        return seen

    def test_is_given_up_if_the_interpreter_that_forks_it_is_stopped(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        options = (*SMALL, "--timeout", "3", "--out", tmp_path / "run", "--stores", tmp_path / "stores")
        with subprocess.Popen(
            bench.command("run", "lmdb", *options),
            cwd=bench.root,
            env=dict(bench.env),
            stderr=subprocess.DEVNULL,
        ) as process:
            while process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    for child in psutil.Process(process.pid).children():
                        if "storebench.worker" in child.cmdline():
                            child.suspend()
                time.sleep(0.01)
        assert process.returncode == 5
        [record] = read_records(tmp_path / "run")
        assert record.failure is not None
        assert record.failure.startswith("the cell was killed: no answer after 3 s")

    @pytest.mark.full
    def test_is_given_more_by_the_scenario_once_the_option_is_left_out(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        path, run = tmp_path / "slow.toml", tmp_path / "run"
        text = (
            'name = "slow"\ntimeout_s = {}\ntest_limit = 0\n[[matrix]]\ndataset = "mnist"\nsynthetic = true\n'
            'limit = 16\nmodel = "tiny"\nbackends = ["planted:patient"]\n'
        )
        path.write_text(text.format(500))
        words = ("bench", path, "--out", run, "--stores", tmp_path / "stores")
        done = bench.cli(*words, "--timeout", "1")
        assert done.returncode == 5
        assert "no answer after 1 s" in done.stderr
        again = f"--retry-failed --out {run}'"
        assert f"{again} runs the failed ones again; --timeout SECONDS gives them" in done.stderr
        assert json.loads((run / "run.json").read_text())["scenario"]["timeout_s"] == 500

        path.write_text(text.format(2))
        done = bench.cli(*words, "--resume", "--retry-failed")
        assert done.returncode == 5
        assert "no answer after 2 s" in done.stderr

    @pytest.mark.parametrize("words", [("--timeout", "0"), ("--timeout", "soon")])
    def test_needs_a_time(self, words: tuple[str, str], bench: Bench) -> None:
        done = bench.cli("run", "lmdb", "-d", "mnist", *words)
        assert done.returncode == 2
        assert "--timeout" in done.stderr

    def test_is_not_for_a_comparison_of_revisions(self, bench: Bench) -> None:
        smoke = Path(__file__).parents[2] / "scenarios" / "smoke.toml"
        done = bench.cli("bench", smoke, "--against", "HEAD", "--timeout", "9")
        assert done.returncode == 2
        assert "Set timeout_s in the scenario" in done.stderr


@pytest.mark.parametrize(
    ("stopped", "loader"),
    [
        ("cell", "processes"),
        pytest.param(
            "workers", "processes", marks=pytest.mark.full
        ),  # so are those of a cell that takes too long
        pytest.param("workers", "ring", marks=pytest.mark.full),
    ],
)
def test_an_interrupt_ends_what_is_stopped(stopped: str, loader: str, bench: Bench, tmp_path: Path) -> None:
    with busy_run(bench, tmp_path, 2, "--loader", loader) as (process, family):
        assert len(family) >= 4
        sooner = min(1000, score(process.pid) + 500)
        assert {score(child.pid) for child in family} == {sooner}, "cells and workers die before the runner"
        for child in family:
            if above_workers(child, process.pid) == (stopped == "cell"):
                child.suspend()
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
        assert process.returncode == 130
        assert time.monotonic() - started < 20, "the batch takes a minute"
        assert "Traceback" not in error
        assert survivors(family) == []


class TestAWorkerThatDies:
    @pytest.mark.thinned
    @pytest.mark.parametrize("reader", ["killed", "mortal"])
    @pytest.mark.parametrize("loader", ["processes", "ring"])
    def test_is_told_in_the_record_and_leaves_no_file(
        self, loader: str, reader: str, bench: Bench, temporary: Path, tmp_path: Path
    ) -> None:
        """Whether the loop waits for it at that moment or is busy with a step."""
        options = (*SMALL, "--compute", "emulated:1000", "--workers", "2", "--loader", loader)
        here = dataclasses.replace(bench, env={**bench.env, "TMPDIR": str(temporary)})
        out, stores = tmp_path / "run", tmp_path / "stores"
        done = here.cli("run", f"planted:{reader}", *options, "--out", out, "--stores", stores)
        assert done.returncode == 5, done.stderr
        [record] = read_records(tmp_path / "run")
        assert record.failure is not None
        assert "the loader's worker process" in record.failure
        assert "was killed by SIGKILL" in record.failure
        assert list(temporary.iterdir()) == []


def test_a_full_disk_in_the_cell_is_told_in_one_line(bench: Bench, tmp_path: Path) -> None:
    done, records = bench.run("planted:full", *SMALL, out=tmp_path / "run")
    assert done.returncode == 5
    failure = only(records)["failure"]
    assert "the disk is full" in failure
    assert "planted+raw" in failure
    assert "exit code" not in failure


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """Return a control group with 500 MiB of memory."""
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


NO_TORCH = """
import json, sys
from storebench.cli.main import app
for words in json.loads(sys.argv[1]):
    try:
        app(words)
    except SystemExit as end:
        print("ended:", words[0], end.code, "torch" in sys.modules, file=sys.stderr)
"""


@pytest.mark.full
def test_no_verb_but_doctor_imports_torch_into_its_own_process(bench: Bench, tmp_path: Path) -> None:
    run, stores = str(tmp_path / "run"), str(tmp_path / "stores")
    words = ["lmdb", *SMALL, "--stores", stores]
    verbs = (
        ["convert", "png", "hdf5", "-d", "mnist", "--synthetic", "--limit", "16", "--out", stores],
        ["run", *words, "--out", run, "--cache", "warm"],
        ["validate", run],
        ["report", run, "--out", str(tmp_path / "report")],
        ["check", run, run],
    )
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH, json.dumps(verbs)],
        env={**os.environ, **bench.env},
        capture_output=True,
        text=True,
        check=False,
    )
    ended = [line.split()[1:] for line in done.stderr.splitlines() if line.startswith("ended: ")]
    assert [(verb, loaded) for verb, _, loaded in ended] == [(verb[0], "False") for verb in verbs], (
        done.stderr
    )
    assert all(code in ("0", "4") for _, code, _ in ended), "one round decides nothing"
