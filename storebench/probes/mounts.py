"""Which filesystem and which block device a path lies on, from /proc/self/mountinfo."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

MOUNTINFO = "/proc/self/mountinfo"

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "rootfs"})
"""Filesystems whose files are the page cache: nothing of theirs can be evicted to a device."""


@dataclass(frozen=True, kw_only=True)
class Mount:
    """The mount that a path lies on.

    Attributes
    ----------
    point
        Where it is mounted.
    fstype
        "ext4", "overlay", "nfs4", ...; "unknown" where the kernel does not say.
    source
        What is mounted ("/dev/vda1", "tmpfs").
    options
        Options of the mount and of its superblock, as the kernel writes them, sorted.
    device
        (major, minor) of the block device under it, or null where there is none of its own.
    """

    point: str
    fstype: str
    source: str
    options: tuple[str, ...]
    device: tuple[int, int] | None


def mount_of(path: Path | str) -> Mount:
    """Return the mount that `path` lies on; `path` must exist."""
    real = os.path.realpath(path)
    best: list[str] | None = None
    try:
        lines = Path(MOUNTINFO).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        lines = []
    for line in lines:
        fields = line.split(" ")
        # On one mount point the last line hides the earlier ones, so >= and not >.
        if _holds(_unescape(fields[4]), real) and (best is None or len(fields[4]) >= len(best[4])):
            best = fields
    return _mount(best, Path(real).stat().st_dev)


def _mount(fields: list[str] | None, st_dev: int) -> Mount:
    if fields is None:
        return Mount(point="/", fstype="unknown", source="", options=(), device=_device(st_dev, ""))
    # After a variable number of optional fields and a dash: type, source, options of the superblock.
    fstype, source, super_options = fields[fields.index("-") + 1 :][:3]
    options = tuple(sorted({*fields[5].split(","), *super_options.split(",")}))
    return Mount(
        point=_unescape(fields[4]),
        fstype=fstype,
        source=_unescape(source),
        options=options,
        device=_device(st_dev, _unescape(source)),
    )


def _device(st_dev: int, source: str) -> tuple[int, int] | None:
    if os.major(st_dev):
        return os.major(st_dev), os.minor(st_dev)
    # btrfs and others give files an anonymous number, but name the device that was mounted.
    if not source.startswith("/dev/"):
        return None
    try:
        found = Path(source).stat()
    except OSError:
        return None
    return (os.major(found.st_rdev), os.minor(found.st_rdev)) if stat.S_ISBLK(found.st_mode) else None


def _holds(point: str, path: str) -> bool:
    return point in ("/", path) or path.startswith(point + "/")


def _unescape(field: str) -> str:
    """Undo the kernel's octal escapes of space, tab, newline and backslash."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(escape, character)
    return field
