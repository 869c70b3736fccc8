"""Control groups of both versions, on a hierarchy of plain files: what is parsed, written and refused.

The kernel's own rules (limits, charges, moves between groups) are not emulated.
"""

import errno
import os
from pathlib import Path

import pytest

from storebench.errors import UsageError
from storebench.probes import cgroup, machine
from storebench.probes.cgroup import (
    MemoryGroup,
    ThrottledGroup,
    find_controller,
    memory_group,
    memory_room_bytes,
    oom_kills,
)
from storebench.settings.tiers import find_tier

MIB = 1 << 20
OWN = "user.slice/app.slice/run.scope"

STAT = """\
anon 1000
file 5000
kernel 300
kernel_stack 100
shmem 200
inactive_file 9
slab 150
"""


class Hierarchy:
    """A folder that looks like /sys/fs/cgroup, with this process in one of its groups."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.top, self._files, self._patch = folder / "cgroup", folder, patch
        self.writes: list[tuple[str, str]] = []
        self.refused: dict[str, int] = {}
        (self.top / OWN).mkdir(parents=True)
        (self.top / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        self.mounted(f"30 23 0:26 / {self.top} rw,nosuid shared:4 - cgroup2 cgroup2 rw")
        self.inside(f"/{OWN}")
        patch.setattr(cgroup, "_REMOVE_WAITS_S", (0.0,))
        self._record()

    def mounted(self, *lines: str) -> None:
        """Let the kernel list these mounts."""
        path = self._files / "mountinfo"
        path.write_text("\n".join(["22 1 0:20 / /proc rw - proc proc rw", *lines]) + "\n")
        self._patch.setattr(machine, "MOUNTINFO", path)

    def inside(self, path: str, *more: str) -> None:
        """Let this process be in a group of version 2, and in others."""
        listed = self._files / "own"
        listed.write_text("\n".join([*more, f"0::{path}"]) + "\n")
        self._patch.setattr(machine, "OWN_GROUPS", listed)

    def delegates(self, *groups: str, controllers: str = "cpu memory pids") -> None:
        for name in groups:
            (self.top / name / "cgroup.subtree_control").write_text(f"{controllers}\n")

    def _record(self) -> None:
        """Note every write below the hierarchy, and refuse those that the kernel is to refuse."""
        write = Path.write_text

        def noted(path: Path, text: str, **options: str) -> int:
            if path.is_relative_to(self.top):
                code = self.refused.get(path.name) or self.refused.get(str(path.relative_to(self.top)))
                if code:
                    raise OSError(code, os.strerror(code), str(path))
                self.writes.append((path.name, text))
            return write(path, text, **options)

        self._patch.setattr(Path, "write_text", noted)


@pytest.fixture
def hierarchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hierarchy:
    return Hierarchy(tmp_path, monkeypatch)


def test_groups_are_made_where_the_controller_is_delegated(hierarchy: Hierarchy) -> None:
    hierarchy.delegates("user.slice/app.slice", "user.slice")
    found = find_controller()
    assert (found.version, found.parent) == (2, hierarchy.top / "user.slice/app.slice")
    assert found.home == hierarchy.top / OWN


def test_the_limit_stands_before_a_process_enters(hierarchy: Hierarchy) -> None:
    hierarchy.delegates("user.slice")
    controller = find_controller()
    hierarchy.writes.clear()
    group = MemoryGroup.create(64 * MIB, controller=controller)
    assert group.version == 2
    group.enter([11, 12])
    group.leave([12])
    assert hierarchy.writes == [
        ("memory.max", str(64 * MIB)),
        ("memory.swap.max", "0"),
        ("cgroup.procs", "11"),
        ("cgroup.procs", "12"),
        ("cgroup.procs", "12"),
    ]
    assert (group.folder / "cgroup.procs").read_text() == "12"
    assert (hierarchy.top / OWN / "cgroup.procs").read_text() == "12"


def test_reads_are_limited_and_counted_where_the_io_controller_is_delegated(hierarchy: Hierarchy) -> None:
    hierarchy.delegates("user.slice", controllers="io memory")
    group = ThrottledGroup.create()
    group.throttle("8:0", find_tier("20:400"))
    group.throttle("8:0", find_tier(":7"))
    assert [text for name, text in hierarchy.writes if name == "io.max"] == [
        "8:0 rbps=20000000 riops=400",
        "8:0 riops=7",
    ]
    (group.folder / "io.stat").write_text("8:16 rbytes=9 rios=9\n8:0 rbytes=4096 wbytes=8 rios=3 wios=2\n")
    assert group.reads("8:0") == (4096, 3)
    assert group.reads("8:32") == (0, 0)


def test_reads_cannot_be_limited_without_the_io_controller(hierarchy: Hierarchy) -> None:
    hierarchy.delegates("user.slice", controllers="memory")
    with pytest.raises(
        UsageError, match=r"reads from a device cannot be limited here: .* delegates the io controller"
    ):
        ThrottledGroup.create()


def test_what_is_still_charged_is_reclaimed_before_the_group_goes(hierarchy: Hierarchy) -> None:
    hierarchy.delegates("user.slice")
    with memory_group(64 * MIB) as group:
        (group.folder / "memory.current").write_text("4096\n")
        hierarchy.writes.clear()
    assert hierarchy.writes == [("memory.reclaim", "4096")]
    hierarchy.writes.clear()
    hierarchy.refused["memory.reclaim"] = errno.EACCES  # a kernel before 5.19
    group.remove()
    assert hierarchy.writes == []


def test_usage_is_told_without_counting_shared_memory_twice(hierarchy: Hierarchy) -> None:
    hierarchy.delegates("user.slice")
    with memory_group(64 * MIB) as group:
        for name, text in {
            "memory.stat": STAT,
            "memory.peak": "8000\n",
            "memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n",
        }.items():
            (group.folder / name).write_text(text)
        usage = group.usage()
        assert (usage.peak_bytes, usage.own_bytes) == (8000, 1500)
        assert (usage.oom_kills, oom_kills(group.folder)) == (1, 1)


def test_the_tightest_room_of_all_groups_counts_and_page_cache_is_free(hierarchy: Hierarchy) -> None:
    assert memory_room_bytes() is None
    for name, limit in ((OWN, "max\n"), ("user.slice/app.slice", "9000\n"), ("user.slice", "9400\n")):
        (hierarchy.top / name / "memory.max").write_text(limit)
        (hierarchy.top / name / "memory.stat").write_text(STAT)
    assert memory_room_bytes() == 9000 - 1500
    (hierarchy.top / "user.slice" / "memory.stat").write_text(STAT.replace("anon 1000", "anon 3000"))
    assert memory_room_bytes() == 9400 - 3500
    (hierarchy.top / OWN / "memory.high").write_text("4000\n")
    assert memory_room_bytes() == 4000 - 1500


def test_a_refusal_says_what_to_do_or_what_was_refused(hierarchy: Hierarchy) -> None:
    with pytest.raises(UsageError, match=r"echo \+memory > .*/cgroup/cgroup\.subtree_control"):
        find_controller()
    hierarchy.delegates("user.slice")
    for name, words in (
        ("cgroup.procs", "cannot enter"),
        ("memory.max", r"no group can be made in .*slice \(Perm"),
    ):
        hierarchy.refused[name] = errno.EACCES
        with pytest.raises(UsageError, match=words):
            find_controller()


PLACES = {
    "a container sees its own part of it": ("/docker/0123", f"/docker/0123/{OWN}", OWN),
    "a group that is gone": ("/", f"/{OWN}/gone (deleted)", ""),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_own_group_is_found(hierarchy: Hierarchy, name: str) -> None:
    root, inside, own = PLACES[name]
    hierarchy.mounted(f"30 23 0:26 {root} {hierarchy.top} rw - cgroup2 cgroup2 rw")
    hierarchy.inside(inside)
    hierarchy.delegates("")
    found = find_controller()
    assert (found.parent, found.home) == (hierarchy.top, hierarchy.top / own if own else hierarchy.top)


STAT_V1 = """\
cache 0
rss 0
shmem 0
hierarchical_memory_limit 9000
total_cache 5000
total_rss 1000
total_shmem 200
"""


def test_a_limit_of_version_1_also_holds_memory_of_the_groups_below(
    hierarchy: Hierarchy, tmp_path: Path
) -> None:
    first = tmp_path / "memory"
    (first / "job/step").mkdir(parents=True)
    (hierarchy.top / "cgroup.controllers").write_text("hugetlb pids\n")
    hierarchy.mounted(f"32 23 0:28 / {first} rw - cgroup cgroup rw,memory")
    hierarchy.inside("/", "5:memory:/job/step")
    for name, limit in (("", 1 << 63), ("job", 9000), ("job/step", 1 << 63)):
        (first / name / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (first / "job/memory.stat").write_text(STAT_V1)
    (first / "job/memory.kmem.usage_in_bytes").write_text("300\n")
    assert memory_room_bytes() == 9000 - 1500
    assert MemoryGroup(first / "job", home=first).usage().own_bytes == 1500
