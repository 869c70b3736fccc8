"""Groups with a memory limit: made with our name, entered, read, removed, and swept after a kill."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storebench.errors import UsageError
from storebench.probes.cgroup import Controller, find_controller, memory_group, remove_stale
from storebench.probes.page_cache import evict

MIB = 1 << 20

FILL = """
import sys
[file] = sys.argv[1:]
sys.stdin.readline()
with open(file, "rb") as opened:
    while opened.read(1 << 20):
        pass
print("read", flush=True)
sys.stdin.readline()
"""

MAKE_AND_DIE = """
import os
from storebench.probes.cgroup import MemoryGroup
folder = MemoryGroup.create(64 << 20).folder
(folder / "inner").mkdir()
print(folder, flush=True)
os.kill(os.getpid(), 9)
"""

pytestmark = pytest.mark.root


@pytest.fixture
def controller() -> Controller:
    try:
        return find_controller()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture
def reader(big_file: Path, controller: Controller) -> Iterator["subprocess.Popen[str]"]:
    """Yield a process that reads a file of 64 MiB when it is told to."""
    evict([big_file])
    with subprocess.Popen(
        [sys.executable, "-c", FILL, str(big_file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def tell(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_reads_are_charged_to_the_group_and_stay_below_its_limit(
    reader: "subprocess.Popen[str]", big_file: Path, controller: Controller
) -> None:
    limit = 32 * MIB
    assert big_file.stat().st_size >= 2 * limit
    with memory_group(limit) as group:
        group.enter([reader.pid])
        tell(reader)
        assert reader.stdout is not None
        assert reader.stdout.readline() == "read\n"
        usage = group.usage()
        assert usage.peak_bytes is not None
        assert 0.9 * limit <= usage.peak_bytes <= limit
        assert usage.own_bytes is not None
        assert usage.own_bytes <= 0.5 * limit
        assert usage.oom_kills == 0
        tell(reader)
        reader.wait(60)
        folder = group.folder
    assert not folder.exists()


def test_the_group_of_a_killed_process_is_removed_when_the_next_is_made(controller: Controller) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAKE_AND_DIE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    left = Path(done.stdout.strip())
    assert left.name.startswith("storebench-")
    with memory_group(64 * MIB) as group:
        assert not left.exists()
        assert remove_stale(controller.parent) == []
        assert group.folder.is_dir(), "the group of a living process stays"
