"""What the tests of the harness share: the real command line, and cells run in this process."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from storebench.record.lines import PROBES_DIR, STEPS_DIR
from storebench.record.schema import Cell, Record
from storebench.record.steps import step_columns
from storebench.run.execute import Silent, prepare
from storebench.run.scenario import Scenario, make_scenario
from storebench.worker.job import CellJob
from storebench.worker.replicate import run as run_replicate
from storebench.worker.setup import Setup
from tests.support.quick_cli import CommandServer

SIX = ("png", "hdf5", "memory:python", "memory:native", "leveldb", "lmdb")
SAMPLES = 200
"""Samples of MNIST that the six backends are run on."""
SMALL = ("--dataset", "mnist", "--synthetic", "--limit", "16", "--batch-size", "8", "--model", "tiny")
"""Options of a run that is over in seconds."""
SMALL_MATRIX: Mapping[str, Any] = {
    "dataset": "mnist",
    "synthetic": True,
    "limit": 16,
    "batch_size": 8,
    "model": "tiny",
}
"""The same as keys of a matrix."""

CompletedText = subprocess.CompletedProcess[str]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The folder that tests share, its stores, and the environment of their command lines."""

    root: Path
    stores: Path
    env: Mapping[str, str]
    commands: CommandServer

    def command(self, *arguments: str | Path) -> list[str]:
        """Return the command line of `storebench` in an interpreter of its own, to be killed or interrupted."""
        return [sys.executable, "-m", "storebench", *map(str, arguments)]

    def cli(self, *arguments: str | Path, timeout: float = 240) -> CompletedText:
        """Run the real command line in a process that is warm, and so are its cells (`tests.support.copies`)."""
        return self.commands.run(*map(str, arguments), cwd=self.root, env=self.env, timeout=timeout)

    def run(self, *arguments: str | Path, out: Path) -> tuple[CompletedText, list[dict[str, Any]]]:
        """Run ``storebench run``; return how it ended and its records."""
        done = self.cli("run", *arguments, "--stores", self.stores, "--out", out, "--json")
        return done, json.loads(done.stdout) if done.stdout else []


def scenario(**matrix: Any) -> Scenario:
    """Return a scenario of one matrix, on one torch thread, without test accuracy."""
    return make_scenario({"name": "test", "test_limit": 0, "matrix": [{"threads": 1} | matrix]})


def write_scenario(path: Path, matrix: Mapping[str, Any], **keys: Any) -> Path:
    """Write the file of such a scenario, with further keys of its own, and return its path."""
    lines = [
        f"{key} = {json.dumps(value)}" for key, value in ({"name": path.stem, "test_limit": 0} | keys).items()
    ]
    cells = [f"{key} = {json.dumps(value)}" for key, value in ({"threads": 1} | matrix).items()]
    path.write_text("\n".join([*lines, "[[matrix]]", *cells, ""]), encoding="utf-8")
    return path


def cell_job(
    cell: Cell, stores: Path, run: Path, test_limit: int = 0, *, drop_caches: bool = False
) -> CellJob:
    """Return the job of a cell, its store built if there is none."""
    of = scenario(dataset=cell.data.name).model_copy(update={"test_limit": test_limit})
    prepared = prepare({cell: None}, of, stores, Silent())[cell]
    return CellJob(
        cell=cell,
        replicate=0,
        run_id="test",
        run=run,
        tables=run / STEPS_DIR,
        store=prepared.store,
        test_store=prepared.test_store,
        out=run / "out.json",
        drop_caches=drop_caches,
    )


def cell_records(cell: Cell, stores: Path, run: Path, test_limit: int = 0) -> list[Record]:
    """Run a cell in this very process, with the code that a fresh process runs."""
    return run_replicate(Setup.of(cell_job(cell, stores, run, test_limit)))


def only_record(cell: Cell, stores: Path, run: Path) -> Record:
    """Run a cell of one epoch in this process."""
    [record] = cell_records(cell, stores, run)
    return record


def steps_of(record: Record | Mapping[str, Any], run: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the columns of a record's table of steps."""
    return step_columns(run, str(record.steps_file if isinstance(record, Record) else record["steps_file"]))


def run_folder_in(folder: Path, bench: Bench) -> Path:
    """Make the folder of a run. What cells measure of the device, which takes seconds, they keep for all runs."""
    run, kept = folder / "run", bench.root / PROBES_DIR
    run.mkdir()
    kept.mkdir(exist_ok=True)
    (run / PROBES_DIR).symlink_to(kept)
    return run


def environment(plugin: Path) -> dict[str, str]:
    """Return the environment of a test's command line: the plugin can be imported, torch has one thread."""
    path = os.pathsep.join(filter(None, [str(plugin), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def survivors(family: Collection[psutil.Process], within_s: float = 2.0) -> list[psutil.Process]:
    """Return the processes that still run after a moment: the kernel kills children of a killed one later."""
    until = time.monotonic() + within_s
    while (left := [process for process in family if _runs(process)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def _runs(process: psutil.Process) -> bool:
    """Return whether a process runs, or could if it were let."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextlib.contextmanager
def started(bench: Bench, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Start the real command line; kill it at the end if it still runs."""
    process = subprocess.Popen(
        bench.command(*arguments),
        cwd=bench.root,
        env=dict(bench.env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(condition: Callable[[], Any], seconds: float = 180) -> Any:
    """Return the first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come about")
