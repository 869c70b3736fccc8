"""The filesystem and the block device of a path, from /proc/self/mountinfo."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from storebench.filesystem import mount_fields, unescape

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "rootfs"})
"""Filesystems whose files are only in the page cache: none of their pages can be evicted to a device."""


@dataclass(frozen=True, kw_only=True)
class Mount:
    """The mount of a path."""

    point: str
    fstype: str
    source: str
    options: tuple[str, ...]
    device: tuple[int, int] | None


def mount_of(path: Path | str) -> Mount:
    """Return the mount of `path`, which must exist."""
    return _mount(mount_fields(path), Path(os.path.realpath(path)).stat().st_dev)


def _mount(fields: list[str] | None, st_dev: int) -> Mount:
    if fields is None:
        return Mount(point="/", fstype="unknown", source="", options=(), device=_device(st_dev, ""))
    # After a variable number of optional fields and a dash: type, source, options of the superblock.
    fstype, source, super_options = fields[fields.index("-") + 1 :][:3]
    options = tuple(sorted({*fields[5].split(","), *super_options.split(",")}))
    return Mount(
        point=unescape(fields[4]),
        fstype=fstype,
        source=unescape(source),
        options=options,
        device=_device(st_dev, unescape(source)),
    )


def _device(st_dev: int, source: str) -> tuple[int, int] | None:
    if os.major(st_dev):
        return os.major(st_dev), os.minor(st_dev)
    # btrfs and others give files an anonymous device number, but name the mounted device.
    if not source.startswith("/dev/"):
        return None
    try:
        status = Path(source).stat()
    except OSError:
        return None
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISBLK(status.st_mode) else None
