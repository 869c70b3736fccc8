"""Find bytes on a device that, according to this kernel, were not read since it booted."""

import contextlib
import os
import random
import stat
import sys
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storebench.probes import page_cache
from storebench.probes.machine import read_text
from storebench.probes.mounts import Mount

Range = tuple[str, int]
"""A file's path and an offset in it."""

APART_BYTES = 2 << 20
"""Average minimum distance of ranges in one file, because a cache below may read ahead, too."""

_MOST_PER_FILE = 4
_ENOUGH_FILES = 20_000
_ROOTS = ("/usr/lib", "/usr/share", "/usr/libexec", "/usr/bin", "/opt", "/var/lib")


def boot_id() -> str | None:
    """Return the kernel's id of this boot; None if it gives none."""
    return read_text("/proc/sys/kernel/random/boot_id")


def boot_time_s() -> float:
    """Return the boot time of this kernel, in seconds since 1970."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The bytes that may be read: ranges of `size` bytes of files on `folder`'s filesystem, unread since `since_s`."""

    folder: Path
    mount: Mount
    size: int
    since_s: float


def unread_ranges(wanted: Candidates, count: int, *, used: Container[Range], limit_s: float) -> list[Range]:
    """Return up to `count` random ranges without reading any file.

    A file is used if its data and its metadata were last changed before `since_s`, it was
    not accessed since (if the mount records access times), and none of its pages is in the
    page cache. Large files are preferred, and only few ranges of one file are used, because
    neighbouring data is likely to be cached together.

    Parameters
    ----------
    used
        Ranges that an earlier call has read.
    limit_s
        Time limit of the search in seconds.
    """
    until = time.monotonic() + limit_s
    files: list[tuple[int, str]] = []
    for path, facts in _files(_roots(wanted), wanted.folder.stat().st_dev, until):
        if facts.st_size >= wanted.size and _last_use(facts, wanted.mount) < wanted.since_s:
            files.append((facts.st_size, path))
        if len(files) >= _ENOUGH_FILES:
            break
    ranges: list[Range] = []
    for length, path in sorted(files, reverse=True):
        if len(ranges) >= 2 * count:
            break
        new = [candidate for candidate in _ranges(path, length, wanted.size) if candidate not in used]
        if new and _uncached(path):
            ranges += random.sample(new, min(len(new), _MOST_PER_FILE))
    return random.sample(ranges, min(count, len(ranges)))


def _last_use(facts: os.stat_result, mount: Mount) -> float:
    """Return the time of a file's last change or, if later and recorded by the mount, of its last access."""
    changed = max(facts.st_mtime, facts.st_ctime)
    return changed if "noatime" in mount.options else max(changed, facts.st_atime)


def _roots(wanted: Candidates) -> list[str]:
    return [sys.base_prefix, sys.prefix, *_ROOTS, str(wanted.folder), wanted.mount.point]


def _files(roots: Sequence[str], device: int, until: float) -> Iterator[tuple[str, os.stat_result]]:
    """Yield files below the roots, from folders in random order, so that a time limit still covers many places."""
    seen: set[str] = set()
    folders = [os.path.realpath(root) for root in roots]
    while folders and time.monotonic() < until:
        folder = folders.pop(random.randrange(len(folders)))
        if folder in seen:
            continue
        seen.add(folder)
        for path, facts in _entries(folder):
            if facts.st_dev != device:
                continue
            if stat.S_ISDIR(facts.st_mode):
                folders.append(path)
            elif stat.S_ISREG(facts.st_mode):
                yield path, facts


def _entries(folder: str) -> list[tuple[str, os.stat_result]]:
    statuses = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                statuses.append((entry.path, entry.stat(follow_symlinks=False)))
    return statuses


def _uncached(path: str) -> bool:
    """Return whether no page of a file is in the page cache; False if this cannot be determined."""
    try:
        return page_cache.resident([path]).pages_resident == 0
    except OSError:
        return False


def _ranges(path: str, length: int, size: int) -> Iterator[Range]:
    for start in range(0, length - size + 1, APART_BYTES):
        room = min(APART_BYTES, length - start) // size
        yield path, start + size * random.randrange(room)
