"""What the suite leaves on a machine: nothing in the folder for temporary files, and nothing in memory."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.leftovers import MEMORY, left_in, name_in_memory, own_temporary_folder, remove

ROOT = Path(__file__).resolve().parents[2]

WHERE = "import tempfile; print(tempfile.gettempdir())"

KILLED_WITH_A_FILE = """
import os, signal
from tests.support.leftovers import name_in_memory
path = name_in_memory()
path.mkdir()
(path / "store").touch()
print(path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_folder_of_a_killed_worker_counts_as_left(tmp_path: Path) -> None:
    for name in ("pymp-abcdefgh", "cache-of-a-library"):
        (tmp_path / name).mkdir()
    (tmp_path / "storebench-error-abcdefgh.txt").touch()
    assert left_in(tmp_path, within_s=0) == ["pymp-abcdefgh"]


def test_what_the_next_start_of_storebench_sweeps_is_not_left(tmp_path: Path) -> None:
    (tmp_path / "storebench-replicate-abcdefgh").mkdir(mode=0o700)
    assert left_in(tmp_path, within_s=0) == []
    assert list(tmp_path.iterdir()) == []


def test_processes_that_are_started_use_the_suites_own_temporary_folder() -> None:
    before = tempfile.gettempdir(), os.environ.get("TMPDIR")
    with own_temporary_folder() as folder:
        done = subprocess.run([sys.executable, "-S", "-c", WHERE], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == tempfile.gettempdir() == str(folder)
    assert not folder.exists()
    assert (tempfile.gettempdir(), os.environ.get("TMPDIR")) == before


@pytest.mark.skipif(not MEMORY.is_dir(), reason="needs a filesystem in memory")
def test_what_a_killed_process_left_in_memory_goes_with_the_next_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WITH_A_FILE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left, own = Path(done.stdout.strip()), name_in_memory()
    own.touch()
    try:
        assert not left.exists()
        assert name_in_memory() != own
        assert own.exists()
    finally:
        remove(own)
