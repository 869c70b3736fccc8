"""Control groups of emulated nodes: limits that the kernel enforces, in version 1 or 2, and no group left."""

import subprocess
import sys

import pytest

from benchmarks.control_groups import hierarchy, joining
from benchmarks.nodes.node import node_groups
from storebench.errors import UsageError
from storebench.probes.cgroup import find_controller

MIB = 1 << 20

pytestmark = pytest.mark.root


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
