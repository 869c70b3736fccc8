"""The file system of a path: its type, its free space, and waiting until it has written a file."""

import os
from os import PathLike
from pathlib import Path

MOUNTINFO = "/proc/self/mountinfo"


def mount_fields(path: str | PathLike[str]) -> list[str] | None:
    """Return the fields of the line in /proc/self/mountinfo for the mount of `path`, still escaped."""
    best: list[str] | None = None
    try:
        real = os.path.realpath(path)
        text = Path(MOUNTINFO).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    for line in filter(None, text.split("\n")):
        fields = line.split(" ")
        point = unescape(fields[4])
        holds = point in ("/", real) or real.startswith(point + "/")
        # On one mount point the last line hides the earlier ones, so >= and not >.
        if holds and (best is None or len(fields[4]) >= len(best[4])):
            best = fields
    return best


def nearest_folder(path: Path) -> Path:
    """Return the folder itself, or the nearest one above it that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def file_system(path: str | PathLike[str]) -> str:
    """Return the type and the mount point of the file system of `path`, such as "ext4 on /data"."""
    fields = mount_fields(path)
    if fields is None:
        return "an unknown file system"
    # After a variable number of optional fields comes a dash, then the type.
    name = f"{fields[fields.index('-') + 1]} on {unescape(fields[4])}"
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def is_full(path: str | PathLike[str]) -> bool:
    """Return True if the file system of `path` has no block or no inode left for this process."""
    try:
        counts = os.statvfs(nearest_folder(Path(path)))
    except OSError:
        return False
    # A file system that does not count blocks or inodes reports a total of 0.
    return (counts.f_blocks > 0 and not counts.f_bavail) or (counts.f_files > 0 and not counts.f_favail)


def sync(path: str | PathLike[str]) -> None:
    """Wait until the content of a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file_system(handle: int, path: str | PathLike[str]) -> None:
    """Wait until the file system of an open file or folder has everything on disk that was written to it."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).syncfs(handle):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(path))


def unescape(field: str) -> str:
    """Undo the kernel's octal escapes of space, tab, newline and backslash."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(escape, character)
    return field
