"""A folder on a real disk, a file on it, and a way to run code in another process."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storebench.probes.machine import IN_MEMORY, mount_of
from tests.support.disks import FILE_BYTES
from tests.support.leftovers import MEMORY, name_in_memory, remove


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder on a filesystem with a block device below it, where cold can exist."""
    folder = tmp_path_factory.mktemp("disk")
    mount = mount_of(folder)
    if mount.fstype in IN_MEMORY or mount.device is None:
        pytest.skip(f"the temporary folder is on {mount.fstype}: a disk is needed (pytest --basetemp)")
    return folder


@pytest.fixture(scope="session")
def big_file(disk: Path) -> Path:
    path = disk / "big"
    with path.open("wb") as file:
        for _ in range(FILE_BYTES >> 23):
            file.write(os.urandom(1 << 23))
    return path


@pytest.fixture
def shm() -> Iterator[Path]:
    if not MEMORY.is_dir() or mount_of(MEMORY).fstype != "tmpfs":
        pytest.skip(f"no tmpfs on {MEMORY}")
    path = name_in_memory()
    path.write_bytes(os.urandom(1 << 20))
    yield path
    remove(path)


@pytest.fixture
def python() -> Callable[..., str]:
    """Run a script in a fresh interpreter and return what it printed."""

    def run(script: str, *arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def own_read_bytes() -> Callable[[], int]:
    """Return a function that says how many bytes the device has delivered to this process."""

    def count() -> int:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))

    return count


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
