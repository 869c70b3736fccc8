"""Control groups of version 2 on a real kernel, as a container without a service manager and an ordinary user have them.

They are skipped where the memory controller is in version 1.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storebench.errors import UsageError
from storebench.probes.cgroup import MemoryGroup, find_controller
from tests.support.copies import be_nobody, run_code

TOP = Path("/sys/fs/cgroup")
NOBODY = 65534

TELL_PLACE = """
from storebench.errors import UsageError
from storebench.probes.cgroup import find_controller
try:
    found = find_controller()
    print("works", found.version, found.parent, found.home)
except UsageError as error:
    print(error.what)
"""

IN_A_CONTAINER = """
set -e
umount --lazy /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
"$0" -c "$1"
mkdir /sys/fs/cgroup/inner
echo $$ > /sys/fs/cgroup/inner/cgroup.procs
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
"$0" -c "$1"
"""

pytestmark = pytest.mark.root


@pytest.fixture
def outer() -> Iterator[Path]:
    """Yield the folder of a group without processes that delegates nothing."""
    try:
        controller = find_controller()
    except UsageError as error:
        pytest.skip(str(error))
    if controller.version == 1:
        pytest.skip("the memory controller is in version 1")
    group = MemoryGroup.create(1 << 30, controller)
    try:
        yield group.folder
    finally:
        for folder in sorted(filter(Path.is_dir, group.folder.rglob("*")), reverse=True):
            folder.rmdir()
        group.remove()


def enter(group: Path) -> None:
    """Move this process into a group."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def test_a_container_is_told_what_to_run_and_it_works(outer: Path) -> None:
    done = subprocess.run(
        ["unshare", "--cgroup", "--mount", "sh", "-c", IN_A_CONTAINER, sys.executable, TELL_PLACE],
        preexec_fn=functools.partial(enter, outer),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.splitlines()
    assert f"{TOP} delegates no memory controller; as root, move all processes of {TOP} into" in before
    assert before.endswith(f"run 'echo +memory > {TOP}/cgroup.subtree_control'")
    assert after == f"works 2 {TOP} {TOP}/inner"


@pytest.mark.parametrize("delegated", [True, False])
def test_a_user_without_rights_makes_groups_only_where_they_were_given(
    outer: Path, *, delegated: bool
) -> None:
    (outer / "cgroup.subtree_control").write_text("+memory")
    own = outer / "own"
    own.mkdir()
    if delegated:  # as a service manager does it
        for path in (outer, outer / "cgroup.procs", own, own / "cgroup.procs"):
            os.chown(path, NOBODY, NOBODY)

    def enter_as_nobody() -> None:
        enter(own)
        be_nobody()

    done = run_code(TELL_PLACE, first=enter_as_nobody)
    assert done.returncode == 0, done.stderr
    [told] = done.stdout.splitlines()
    expected = (
        f"works 2 {outer} {own}" if delegated else f"no group can be made in {outer} (Permission denied)"
    )
    assert told.endswith(expected)
    assert [path.name for path in outer.iterdir() if path.is_dir()] == ["own"]
