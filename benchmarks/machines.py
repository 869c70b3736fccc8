"""Emulated machines for the gate's own test: the same code, on this machine with something of it taken away.

Each is a context that yields a `Place`, how to start a process there; everything that was set
up is taken down when it ends. All but one core and the neighbour need root.
"""

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.control_groups import control_group, hierarchy, joining, limit_reads

QUOTA_US, PERIOD_US = 3_000, 5_000
"""60% of one core, in slices that are shorter than any round, so that every round is slowed alike."""

DEVICE_BYTES_PER_S = 40 << 20
DEVICE_READS_PER_S = 2_000
_DISK_BYTES = 2 << 30

_BUSY = """
import os, numpy as np
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # never above what it disturbs
a = np.ones(1 << 24)
while True: a *= 1.0000001
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """How a process is started on an emulated machine.

    Attributes
    ----------
    prefix
        Put before the command.
    temporary
        Folder for its temporary files; None takes the usual one.
    """

    prefix: tuple[str, ...] = ()
    temporary: Path | None = None


@contextlib.contextmanager
def this_machine() -> Iterator[Place]:
    """Yield this machine as it is."""
    yield Place()


@contextlib.contextmanager
def neighbour() -> Iterator[Place]:
    """Let a process on another core take memory bandwidth."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        yield Place()
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def one_core() -> Iterator[Place]:
    """Allow one core."""
    yield Place(prefix=("taskset", "-c", str(min(os.sched_getaffinity(0)))))


@contextlib.contextmanager
def quota() -> Iterator[Place]:
    """Allow `QUOTA_US` of every `PERIOD_US`."""
    with control_group(_name(), "cpu") as group:
        if group.version == 2:
            (group.folder / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
        else:
            (group.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group.folder / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        yield Place(prefix=joining(group.folder))


@contextlib.contextmanager
def slow_device() -> Iterator[Place]:
    """Put temporary files on a disk of `DEVICE_BYTES_PER_S` and `DEVICE_READS_PER_S`: a throttled loop device."""
    with tempfile.TemporaryDirectory(prefix="storebench-disk-") as folder, contextlib.ExitStack() as undo:
        image, mount = Path(folder) / "image", Path(folder) / "mount"
        mount.mkdir()
        with image.open("wb") as file:
            file.truncate(_DISK_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(image))
        loop = _run("losetup", "--find", "--show", "--direct-io=on", str(image))
        undo.callback(_run, "losetup", "--detach", loop)
        _run("mount", loop, str(mount))
        undo.callback(_run, "umount", str(mount))
        group = undo.enter_context(control_group(_name(), "blkio", "io"))
        number = Path(loop).stat().st_rdev
        device = f"{os.major(number)}:{os.minor(number)}"
        limit_reads(group, device, DEVICE_BYTES_PER_S, DEVICE_READS_PER_S)
        yield Place(prefix=joining(group.folder), temporary=mount)


MACHINES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "quota": quota,
    "loaded": neighbour,
    "slow-device": slow_device,
    "one-core": one_core,
}
"""Emulated machine -> what sets it up: a CPU quota, a neighbour that takes memory bandwidth, and so on."""


def unavailable() -> str:
    """Return why not every machine can be emulated here, or ""."""
    if os.geteuid():
        return "it needs root, for control groups and a loop device"
    if len(os.sched_getaffinity(0)) < 2:
        return "it needs two cores"
    return "" if hierarchy("cpu") and hierarchy("blkio", "io") else "there are no writable control groups"


def _name() -> str:
    return f"storebench-selftest-{os.getpid()}"


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()
