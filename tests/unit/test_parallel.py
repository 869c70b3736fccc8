"""The suite in two processes: files side by side, each whole in one process, and a quiet test while nobody else runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.parallel import SCOPES, scope_of

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("xdist")

CONFTEST = """
import os
from pathlib import Path

import pytest
from tests.support.parallel import pytest_configure, pytest_runtest_protocol, pytest_xdist_make_scheduler

HERE = Path(__file__).parent / "running"


@pytest.fixture(autouse=True)
def running(request):
    HERE.mkdir(exist_ok=True)
    mark = HERE / f"{os.getpid()}-{request.node.name}"
    mark.touch()
    with (HERE.parent / "log").open("a") as log:
        log.write(f"{request.node.nodeid} {os.getpid()}\\n")
    yield
    mark.unlink()
"""

SEEN = """
import os
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "running"


def others():
    return [path.name for path in HERE.iterdir() if not path.name.startswith(f"{os.getpid()}-")]


@pytest.mark.parametrize("number", range(2))
def test_a_quiet_one(number):
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        assert others() == []
        time.sleep(0.01)


test_a_quiet_one = pytest.mark.quiet(test_a_quiet_one)


@pytest.mark.parametrize("number", range(2))
def test_an_ordinary_one(number):
    time.sleep(0.05)
"""

MEETING = """
import time
from pathlib import Path


def test_two_meet():
    place = Path(__file__).parent / "meeting"
    place.mkdir(exist_ok=True)
    (place / Path(__file__).stem).touch()
    end = time.monotonic() + 60
    while len(list(place.iterdir())) < 2:
        assert time.monotonic() < end, "the other one did not come"
        time.sleep(0.01)
"""


@pytest.mark.full
def test_quiet_tests_run_alone_and_others_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  quiet\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(MEETING + SEEN)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2"],
        cwd=tmp_path,
        env={**inherited, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "10 passed" in done.stdout.splitlines()[-1]
    ran = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert len({nodeid for nodeid, _ in ran}) == len(ran) == 10
    processes = {(nodeid.partition("::")[0], process) for nodeid, process in ran}
    assert len(processes) == len({process for _, process in processes}) == 2


def test_every_scope_names_files_that_are_there() -> None:
    for name, parts in SCOPES.items():
        for part in parts:
            assert (ROOT / part).exists(), part
            assert scope_of(f"{part}::test_one") == name
    assert scope_of("tests/unit/test_stats.py::test_one[a]") == "tests/unit/test_stats.py"
