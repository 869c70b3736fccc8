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
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

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
    with _group("cpu") as (group, version):
        if version == 2:
            (group / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        yield Place(prefix=_joining(group))


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
        group, version = undo.enter_context(_group("blkio", "io"))
        number = Path(loop).stat().st_rdev
        device = f"{os.major(number)}:{os.minor(number)}"
        if version == 2:
            (group / "io.max").write_text(f"{device} rbps={DEVICE_BYTES_PER_S} riops={DEVICE_READS_PER_S}")
        else:
            (group / "blkio.throttle.read_bps_device").write_text(f"{device} {DEVICE_BYTES_PER_S}")
            (group / "blkio.throttle.read_iops_device").write_text(f"{device} {DEVICE_READS_PER_S}")
        yield Place(prefix=_joining(group), temporary=mount)


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
    return "" if _hierarchy("cpu") and _hierarchy("blkio", "io") else "there are no writable control groups"


def _hierarchy(*controllers: str) -> tuple[Path, int] | None:
    """Return the folder in which groups with one of the controllers are made, and the version of the hierarchy."""
    root = Path("/sys/fs/cgroup")
    for name in controllers:
        if (root / name / "tasks").is_file():
            return root / name, 1
    available = root / "cgroup.controllers"
    if available.is_file() and set(available.read_text().split()) & set(controllers):
        return root, 2
    return None


@contextlib.contextmanager
def _group(*controllers: str) -> Iterator[tuple[Path, int]]:
    """Make a control group; it is removed in the end."""
    found = _hierarchy(*controllers)
    if found is None:
        raise OSError(f"no control groups with {controllers[0]}")
    root, version = found
    if version == 2:
        for name in controllers:
            with contextlib.suppress(OSError):
                (root / "cgroup.subtree_control").write_text(f"+{name}")
    group = root / f"storebench-selftest-{os.getpid()}"
    group.mkdir()
    try:
        yield group, version
    finally:
        _remove(group)


def _remove(group: Path, most_s: float = 10.0) -> None:
    """Remove a control group; its last process may take a moment to leave it."""
    deadline = time.monotonic() + most_s
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _joining(group: Path) -> tuple[str, ...]:
    return "sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()
