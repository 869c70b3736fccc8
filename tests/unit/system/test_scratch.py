"""Temporary folders are removed together with what is mounted in them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storebench.filesystem import mounts_in
from storebench.system.scratch import scratch_folder

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")]


def test_a_mount_in_use_ends_with_the_folder(tmp_path: Path) -> None:
    with scratch_folder("place", tmp_path) as folder:
        point = folder / "a point"
        point.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], check=True)
        used = (point / "used").open("w")
    used.close()
    assert not mounts_in(tmp_path)
    assert not list(tmp_path.iterdir())


LEAVES = """
import os, subprocess, sys, psutil  # modules that another user may not read later
from pathlib import Path
from storebench.errors import StorebenchError
from storebench.system.scratch import scratch_folder
try:
    with scratch_folder("place", Path(sys.argv[1])) as folder:
        (folder / "point").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder / "point"], check=True)
        os.setresuid(65534, 65534, 0)
except StorebenchError as error:
    sys.exit(f"{error} {error.exit_code}")
"""


def test_a_mount_that_stays_is_said_with_the_command_that_ends_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, tmp_path], capture_output=True, text=True, check=False
    )
    [point] = mounts_in(tmp_path)
    try:
        assert done.stderr.splitlines() == [f"{point}: it is still mounted. Run as root: umount -l {point} 2"]
    finally:
        subprocess.run(["umount", "-l", point], check=True)
        assert not os.path.ismount(point)
