"""Every script of benchmarks/ runs, in its smallest form; plans, nodes and sizing have tests of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = ("--rounds", "2", "--seconds", "0.01")
CIFAR = ("--dataset", "cifar10", "--size", "640")
SCRIPTS = {
    "audit_cases": (),
    "direct": ("--quick", "--only", "5"),
    "growth": ("--sizes", "64", "128", "--backends", "lmdb"),
    "mutants": ("upside down",),
    "loaders": ("--rounds", "1", "--datasets", "cifar10", "--backends", "lmdb", "--samples", "640"),
    "overhead": ("--seconds", "0.1", "--only", "computes nothing"),
    "peers": ("npy", "webdataset", *CIFAR, "--codec", "raw", *SMALL),
    "profile_cases": ("--only", "slow transform, generator"),
    "profile_overhead": ("--seconds", "0.1", "--only", "generator"),
    "profile_loops": ("--only", "plain"),
    "profile_memory": ("--only", "nothing"),
    "readers": (*CIFAR, *SMALL),
    "verdicts": (),
}
# Modules of others, and scripts that other tests start.
APART = {
    "control_groups",
    "gate_cases",
    "history",
    "operations",
    "plan_error",
    "ratios",
    "recommended_loops",
    "sizing",
    "turns",
}
FOLDER = Path(__file__).parents[3]


def test_every_script_is_started_by_a_test() -> None:
    assert {path.stem for path in (FOLDER / "benchmarks").glob("*.py")} == APART | SCRIPTS.keys()


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_in_its_smallest_form(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", *SCRIPTS[name]]
    env = {**os.environ, "STOREBENCH_STORES": str(tmp_path / "stores"), "PYTHONPATH": str(FOLDER)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    # 1 is a figure that is not what was asked for, as those of so little time are.
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout
