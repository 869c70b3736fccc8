"""Disks of a known behaviour: loop devices with and without a cache below, and control groups that throttle one."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storebench.probes import page_cache

BLKIO_V1 = Path("/sys/fs/cgroup/blkio")
GROUPS_V2 = Path("/sys/fs/cgroup")
FILE_BYTES = 64 << 20
"""Size of the file of the fixture `big_file`."""


@contextlib.contextmanager
def loop_disk(folder: Path, *, cached: bool, files: int = 640, file_bytes: int = 128 << 10) -> Iterator[Path]:
    """Mount a new ext4 with some files, none of them resident.

    With `cached` the page cache of the image's own file answers below the mounted filesystem.
    """
    image, mount = folder / "image", folder / "mount"
    mount.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(files * file_bytes + (32 << 20))
    _done("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,nodiscard", str(image))
    direct = "off" if cached else "on"
    device = _done("losetup", "--find", "--show", f"--direct-io={direct}", str(image))
    try:
        _done("mount", device, str(mount))
        try:
            for number in range(files):
                (mount / f"file{number}").write_bytes(os.urandom(file_bytes))
        finally:
            _done("umount", str(mount))
        page_cache.evict([image])
        _done("mount", device, str(mount))
        try:
            yield mount
        finally:
            _done("umount", str(mount))
    finally:
        _done("losetup", "--detach", device)
        image.unlink()


def _done(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        pytest.skip(f"no {command[0]} here")
    if done.returncode:
        pytest.skip(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def disk_number(path: Path) -> str:
    """Return the number of the whole disk below a file, which is what a throttle takes."""
    found = path.stat().st_dev
    folder = Path(f"/sys/dev/block/{os.major(found)}:{os.minor(found)}").resolve()
    disk = folder.parent if (folder / "partition").exists() else folder
    if not (disk / "dev").exists():
        pytest.skip("no block device below the temporary folder")
    return (disk / "dev").read_text(encoding="ascii").strip()


@contextlib.contextmanager
def throttled(number: str, *, read_bytes_per_s: int = 0, reads_per_s: int = 0) -> Iterator[Path]:
    """Yield the `cgroup.procs` of a group whose reads of a disk are limited; 0 leaves one of the two unlimited."""
    group, settings = _group(number, read_bytes_per_s, reads_per_s)
    try:
        group.mkdir()
        for name, text in settings.items():
            (group / name).write_text(text, encoding="ascii")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group may throttle here: {error.strerror}")
    try:
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def _group(number: str, read_bytes_per_s: int, reads_per_s: int) -> tuple[Path, dict[str, str]]:
    name = f"storebench-test-{os.getpid()}"
    if BLKIO_V1.is_dir():
        limits = {"bps": read_bytes_per_s, "iops": reads_per_s}
        settings = {
            f"blkio.throttle.read_{key}_device": f"{number} {value}" for key, value in limits.items() if value
        }
        return BLKIO_V1 / name, settings
    parts = [f"rbps={read_bytes_per_s}"] if read_bytes_per_s else []
    parts += [f"riops={reads_per_s}"] if reads_per_s else []
    return GROUPS_V2 / name, {"io.max": f"{number} {' '.join(parts)}"}


def run_in(group: Path, script: str, *arguments: object) -> str:
    """Run a script in a fresh interpreter that is in the group, and return what it printed."""
    enter = f"open({str(group)!r}, 'w').write('0')\n"
    done = subprocess.run(
        [sys.executable, "-c", enter + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
