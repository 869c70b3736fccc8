"""Control groups of emulated machines: limits that the kernel enforces, in version 1 or 2, and no group left."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.control_groups import hierarchy, joining
from benchmarks.machines import DEVICE_BYTES_PER_S, PERIOD_US, QUOTA_US, Place, quota, slow_device
from benchmarks.nodes.node import node_groups
from storebench.errors import UsageError
from storebench.probes.cgroup import find_controller
from storebench.probes.page_cache import evict

MIB = 1 << 20
SIZE = 32 * MIB

WORK = """
import time
begun, end = time.perf_counter(), time.process_time() + 0.6
while time.process_time() < end:
    pass
print(0.6 / (time.perf_counter() - begun))
"""

READ = """
import sys, time
begun = time.perf_counter()
with open(sys.argv[1], "rb", buffering=0) as file:
    while file.read(1 << 20):
        pass
print(time.perf_counter() - begun)
"""

pytestmark = pytest.mark.root


@contextmanager
def available(machine: AbstractContextManager[Place]) -> Iterator[Place]:
    """Set up an emulated machine, or skip; its groups must be gone afterwards."""
    with ExitStack() as undo:
        try:
            place = undo.enter_context(machine)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"it cannot be emulated here: {error}")
        yield place
    assert left() == []


def left() -> list[Path]:
    """Return the groups for emulated machines that exist."""
    roots = [found[0] for name in ("cpu", "blkio", "io") if (found := hierarchy(name))]
    return [folder for root in roots for folder in root.glob(f"storebench-selftest-{os.getpid()}*")]


def told(place: Place, script: str, *arguments: str) -> float:
    """Run a script on an emulated machine, and return the number that it prints."""
    command = [*place.prefix, sys.executable, "-c", script, *arguments]
    return float(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)


def test_a_quota_leaves_its_share_of_one_core() -> None:
    with available(quota()) as place:
        [folder] = set(left())
        assert told(place, WORK) <= 1.2 * QUOTA_US / PERIOD_US
        counted = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
        assert int(counted["nr_throttled"]) > 0, "a busy machine alone could be as slow"


def test_a_slow_device_is_read_at_its_rate() -> None:
    with available(slow_device()) as place:
        assert place.temporary is not None
        with tempfile.NamedTemporaryFile(dir=place.temporary) as file:
            file.write(os.urandom(SIZE))
            file.flush()
            evict([Path(file.name)])
            took_s = told(place, READ, file.name)
    assert took_s >= 0.7 * SIZE / DEVICE_BYTES_PER_S


FIND = """
from storebench.probes.cgroup import find_controller, memory_group, memory_limit_bytes
with memory_group(32 << 20) as group:
    print(group.folder.parent, memory_limit_bytes())
"""


def test_a_limited_cell_on_a_node_stays_below_the_nodes_own_limits() -> None:
    try:
        find_controller()
    except UsageError as error:
        pytest.skip(str(error))
    if hierarchy("blkio", "io") is None:
        pytest.skip("there are no control groups that limit reads")
    with node_groups(0, 256 * MIB) as groups:
        command = [*joining(*groups.entered), sys.executable, "-c", FIND]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout.split() == [str(groups.memory.folder), str(256 * MIB)]
        limit = "io.max" if groups.reads.version == 2 else "blkio.throttle.read_bps_device"
        assert (groups.reads.folder / limit).exists()
    assert not groups.memory.folder.exists()
