"""A second run of suspected cells: through pytest by node id, and through the runner."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storebench.check.confirm import RerunOptions, confirm
from storebench.check.judge import CellState, judge
from storebench.check.policy import Policy
from storebench.check.sides.read import read_side
from storebench.runner import execute
from storebench.runs.folder import Run
from storebench.runs.records import read_records
from storebench.scenario import Scenario
from tests.support.planted_sides import record, write_run
from tests.support.warm_cells import warm_cells

BENCHMARK = """
import os, time
import pytest
from storebench.testing.benchmarks import Measurement, measure

def spin(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
    return 1

def beside():
    started = time.perf_counter()
    spin(0.003)
    return time.perf_counter() - started

@pytest.mark.parametrize("name", ["mine", "other"])
def test_read(benchmark, name):
    factor = float(os.environ.get("FACTOR", "1")) if name == "mine" else 1
    measure(benchmark, Measurement(
        cell_id=f"read/{name}", target=lambda: spin(0.003 * factor), samples=1,
        calibration="spinning", calibrate=beside))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody else's project, with a benchmark of its own format."""
    (tmp_path / "test_speed.py").write_text(BENCHMARK)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def session(project: Path, name: str, factor: float) -> Path:
    out = project / f"{name}.json"
    command = [sys.executable, "-m", "pytest", "-q", "--benchmark-enable", f"--benchmark-json={out}"]
    subprocess.run(
        command, cwd=project, env={**os.environ, "FACTOR": str(factor)}, capture_output=True, check=True
    )
    return out


@pytest.mark.full
@pytest.mark.quiet
def test_a_projects_own_slow_down_is_confirmed_and_a_passing_one_is_not(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline = read_side(session(project, "baseline", 1), baseline=True)
    contender = read_side(session(project, "contender", 10), baseline=False)
    policy = Policy()
    results = judge(baseline, contender, policy)
    assert [result.cell_id for result in results if result.suspected] == ["read/mine"]
    said: list[str] = []
    options = RerunOptions(stores=project, say=said.append)

    monkeypatch.setenv("FACTOR", "10")
    again = {result.cell_id: result for result in confirm(results, baseline, contender, policy, options)}
    assert again["read/mine"].state is CellState.WORSE
    assert again["read/mine"].confirmed
    assert "read/mine" in said[0]
    assert "read/other" not in said[0]

    monkeypatch.setenv("FACTOR", "1")
    again = {result.cell_id: result for result in confirm(results, baseline, contender, policy, options)}
    assert again["read/mine"].state is CellState.INCONCLUSIVE
    assert "a second run does not confirm" in again["read/mine"].reason

    (project / "test_speed.py").write_text("def test_read(benchmark): raise OSError\n")
    again = {result.cell_id: result for result in confirm(results, baseline, contender, policy, options)}
    assert again["read/mine"].state is CellState.FAILED


def test_a_counter_needs_no_second_run(tmp_path: Path) -> None:
    first = read_side(write_run(tmp_path / "a", [record("lmdb", n, 1e-6) for n in range(5)]), baseline=True)
    more = [record("lmdb", n, 1e-6, payload_bytes=3_200_000) for n in range(5)]
    second = read_side(write_run(tmp_path / "b", more), baseline=False)
    results = judge(first, second, Policy())
    said: list[str] = []
    assert (
        confirm(results, first, second, Policy(), RerunOptions(stores=tmp_path, say=said.append)) == results
    )
    assert results[0].state is CellState.WORSE
    assert not said


def test_suspected_cells_of_a_run_go_through_the_runner_again(tmp_path: Path) -> None:
    matrix = {"dataset": "mnist", "limit": 64, "synthetic": True, "threads": 1}
    matrix |= {"model": "none", "compute": "emulated:0.01"}
    scenario = Scenario.model_validate(
        {
            "name": "tiny",
            "replicates": 2,
            "test_limit": 0,
            "matrix": [{**matrix, "backends": ["memory:python"]}],
        }
    )
    run = Run.create(scenario, tmp_path / "run", scenario.cells())
    with warm_cells():
        execute(run, tmp_path / "stores")
    contender = read_side(run.folder, baseline=False)
    # A baseline that nothing could be as fast as: every run of this cell is a confirmed slow-down.
    fast = tmp_path / "fast.json"
    raw = [json.loads(line) for line in (run.folder / "records.jsonl").read_text().splitlines()]
    for number, one in enumerate(raw):
        one["samples_per_s"] *= 1e6 * (1 + 1e-3 * number)
        one["steps_file"], one["steps"] = None, 0  # so that nothing contradicts it
    fast.write_text(json.dumps(raw))
    baseline = read_side(fast, baseline=True)
    policy = Policy(min_replicates=2, alpha=0.5, basis="seconds")
    results = judge(baseline, contender, policy)
    assert results[0].suspected
    with warm_cells():
        again = confirm(results, baseline, contender, policy, RerunOptions(stores=tmp_path / "stores"))
    assert again[0].confirmed
    assert len(read_records(run.folder)) == 2  # the contender's own folder is as it was
