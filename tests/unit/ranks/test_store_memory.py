"""The memory that a data store may use: limited by the scenario, by the machine, and by the control group."""

import pytest

from storebench.errors import UsageError
from storebench.probes import cgroup
from storebench.probes.cgroup import MemoryGroup, memory_group, memory_room_bytes
from storebench.ranks.store_memory import available_bytes, needed_bytes

MIB = 1 << 20


def test_each_node_needs_its_part_and_a_bounded_rest() -> None:
    whole = {"count": 1000, "size": 1000 * 3072, "ranks": 4, "batch_size": 10}
    one, two = (needed_bytes(**whole, local_ranks=ranks) for ranks in (1, 2))
    share = 250 * 3072
    assert share < one < 2 * share
    assert share < two - one < 1.2 * share
    larger = needed_bytes(**whole | {"count": 2000, "size": 2000 * 3072}, local_ranks=1)
    assert larger - one == share + 1000 * 20, "messages do not grow with the store"


def test_a_limit_that_was_asked_for_is_named() -> None:
    assert available_bytes(MIB) == (MIB, "store_memory")


def test_a_control_group_leaves_what_its_processes_do_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        with memory_group(512 * MIB) as group:
            monkeypatch.setattr(cgroup, "_own_groups", lambda: (group.version, [group.folder]))
            room = memory_room_bytes()
            used = MemoryGroup(group.folder, home=group.home).usage().own_bytes or 0
    except UsageError as error:
        pytest.skip(str(error))
    assert room == 512 * MIB - used
