"""Disks of a known behaviour: loop devices with and without a cache below."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from storebench.probes import page_cache

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
