"""Real sessions of the benchmark suite: what a machine that cannot measure a cell, or is busy, leaves in them."""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.machines import MACHINES, Place, unavailable
from storebench.check.calibration import LimitingWork
from storebench.check.sides.benchmarks import FAILED_KEY
from storebench.cli.main import app
from storebench.testing.busy import OthersProbe
from storebench.testing.calibrations import (
    Calibrate,
    device_reads,
    gather,
    inflate,
    interpreter,
    matrix_product,
)

ROOT = Path(__file__).resolve().parents[3]
MEMORY = Path("/dev/shm")


def session(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "benchmarks/suite/test_read.py",
    ]
    return subprocess.run(
        [*command, "--benchmark-enable", f"--benchmark-json={out}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not MEMORY.is_dir(), reason="needs a filesystem in memory")
def test_a_cold_benchmark_that_cannot_be_cold_fails_the_gate(tmp_path: Path) -> None:
    """On a filesystem in memory nothing is cold: the session fails, and so does the check of what it wrote."""
    out = tmp_path / "contender.json"
    with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
        done = session(out, "-k", "lmdb and get", f"--basetemp={memory}/base")
    assert done.returncode == 1
    assert "the cache was not made cold" in done.stdout
    raw = json.loads(out.read_text())
    assert [one["extra_info"]["cell_id"] for one in raw["benchmarks"]] == ["read/lmdb+raw:get/warm"]
    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps({**raw, FAILED_KEY: {}}))
    result = CliRunner().invoke(app, ["check", str(baseline), str(out)])
    assert result.exit_code == 5
    assert "the cache was not made cold" in result.output


def _spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@pytest.fixture
def stranger() -> Iterator[None]:
    """Keep a core busy with a process that is no descendant of this one."""
    code = (
        "import os, time\nif os.fork(): os._exit(0)\nend = time.time() + 1.5\nwhile time.time() < end: pass"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    yield
    time.sleep(0.1)


@pytest.mark.quiet
def test_cores_of_others_are_counted_and_our_own_are_not(stranger: None) -> None:
    probe = OthersProbe()
    time.sleep(0.5)
    with_stranger = probe.cores()
    assert with_stranger is not None
    assert with_stranger > 0.3
    # Our own work, here and in a child, is nobody else's: what is left is what the machine does anyway.
    time.sleep(1.5)
    before = OthersProbe()
    time.sleep(0.5)
    anyway = before.cores()
    child = multiprocessing.get_context("spawn").Process(target=_spin, args=(0.5,))
    child.start()
    ours = OthersProbe()
    _spin(0.5)
    counted = ours.cores()
    child.join()
    assert anyway is not None
    assert counted is not None
    assert counted < anyway + 1.2


ENVIRONMENT = """
import tempfile
from storebench.probes.environment import environment
print(environment(tempfile.gettempdir()).key)
"""


@pytest.mark.root
@pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "emulates machines")
@pytest.mark.parametrize("name", ["quota", "slow-device", "one-core"])
def test_an_emulated_machine_is_another_environment_and_leaves_nothing(name: str) -> None:
    """So a check refuses it; the gate's own test measures which calibrations would carry over to it."""
    groups = set(Path("/sys/fs/cgroup").glob("**/storebench-selftest-*"))
    with MACHINES[name]() as place:
        there = _environment(place)
        mounts = Path("/proc/self/mounts").read_text()
        assert place.temporary is None or str(place.temporary) in mounts
    assert there != _environment(Place())
    assert place.temporary is None or str(place.temporary) not in Path("/proc/self/mounts").read_text()
    assert set(Path("/sys/fs/cgroup").glob("**/storebench-selftest-*")) == groups


def _environment(place: Place) -> str:
    variables = {} if place.temporary is None else {"TMPDIR": str(place.temporary)}
    done = subprocess.run(
        [*place.prefix, sys.executable, "-c", ENVIRONMENT],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_every_kind_of_calibration_does_a_fixed_piece_of_work(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"x" * (1 << 20))
    kinds: dict[LimitingWork, Calibrate] = {
        LimitingWork.MEMORY: gather((32, 32, 3), 256),
        LimitingWork.INFLATE: inflate(),
        LimitingWork.INTERPRETER: interpreter(),
        LimitingWork.MATRIX_PRODUCT: matrix_product(256),
        LimitingWork.DEVICE: device_reads([file], 3072),
    }
    assert set(kinds) == set(LimitingWork)
    for kind, calibrate in kinds.items():
        took = [calibrate() for _ in range(3)]
        assert all(one > 0 for one in took), kind
