"""Count, evict and fill the page cache for a store's files, and judge whether a cell got what it asked for.

Counting is by `cachestat(2)` (Linux 6.5 and later, number 451 on every 64-bit
architecture), else by `mincore(2)` over a mapping that touches nothing. Two
traps that this module knows: through overlayfs `cachestat` always says 0 (the
pages belong to the file below, only a mapping leads there), and `mincore` says
"all resident" of a file that the caller neither owns nor may write.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storebench.errors import UsageError
from storebench.probes.mounts import IN_MEMORY, mount_of
from storebench.results import CacheFacts, CacheVerdict

COLD_MAX_FRAC = 0.01
WARM_MIN_FRAC = 0.99
WARM_ENOUGH_FRAC = 0.995
WARM_PASSES = 5
"""Some machines push idle pages out by themselves (DAMON): what is gone again is read again, a few times."""

PAGE_BYTES = mmap.PAGESIZE

DROP_CACHES = "/proc/sys/vm/drop_caches"

_NR_CACHESTAT = 451
_READ_BYTES = 4 << 20
_MAP_BYTES = 1 << 30
# Pages under writeback cannot be evicted yet; the waits add up to some three seconds.
_EVICT_WAITS_S = (0.0, 0.02, 0.1, 0.3, 0.6, 1.0, 1.0)
_MANY_FILES = 64

_libc = ctypes.CDLL(None, use_errno=True)

Paths = Iterable[Path | str]
_CountFd = Callable[[int, int], int]


@dataclass(frozen=True, kw_only=True)
class Residency:
    """How much of some files the page cache holds.

    Attributes
    ----------
    pages_total
        Pages that the files have.
    pages_resident
        Pages of them in the page cache; null where nothing could count them.
    method
        "cachestat", "mincore" or "unknown".
    reason
        Why nothing could count, or "".
    """

    pages_total: int
    pages_resident: int | None
    method: str
    reason: str = ""

    @property
    def frac(self) -> float | None:
        """Resident pages over all pages; null where not counted or where there are no pages."""
        if self.pages_resident is None or not self.pages_total:
            return None
        return self.pages_resident / self.pages_total


NO_PAGES = Residency(pages_total=0, pages_resident=None, method="unknown", reason="the files have no pages")


class _CannotCountError(Exception):
    """Counting in one way does not work here; the text says why."""


def resident(paths: Paths) -> Residency:
    """Count the resident pages of files without touching a page of them.

    Raises
    ------
    OSError
        One of the files cannot be opened.
    """
    files = list(paths)
    total = sum(_pages(Path(path).stat().st_size) for path in files)
    if not total:
        return NO_PAGES
    reasons: list[str] = []
    for name, count in _ways(files[0]):
        try:
            found = sum(_per_file(files, count))
        except _CannotCountError as error:
            reasons.append(f"{name}: {error}")
        else:
            return Residency(pages_total=total, pages_resident=found, method=name)
    return Residency(pages_total=total, pages_resident=None, method="unknown", reason="; ".join(reasons))


class OpenFiles:
    """Some files that stay open, so that their resident pages can be counted again and again at little cost.

    Raises
    ------
    OSError
        One of the files cannot be opened.
    """

    def __init__(self, paths: Paths) -> None:
        files = list(paths)
        self._fds: list[tuple[int, int]] = []
        try:
            for path in files:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._fds.append((fd, os.fstat(fd).st_size))
        except OSError:
            self.close()
            raise
        self._pages = sum(_pages(size) for _, size in self._fds)
        self._ways = _ways(files[0]) if files else []

    def resident(self) -> Residency:
        """Count the resident pages without touching a page."""
        if not self._pages:
            return NO_PAGES
        reasons: list[str] = []
        for name, count in self._ways:
            try:
                found = sum(count(fd, size) for fd, size in self._fds if size)
            except _CannotCountError as error:
                reasons.append(f"{name}: {error}")
            else:
                return Residency(pages_total=self._pages, pages_resident=found, method=name)
        return Residency(
            pages_total=self._pages, pages_resident=None, method="unknown", reason="; ".join(reasons)
        )

    def close(self) -> None:
        """Close the files."""
        while self._fds:
            os.close(self._fds.pop()[0])


def _ways(path: Path | str) -> list[tuple[str, _CountFd]]:
    fstype = mount_of(path).fstype
    if fstype == "zfs":
        return [("page cache", _zfs)]
    mincore: tuple[str, _CountFd] = ("mincore", _mincore)
    return [mincore] if fstype == "overlay" else [("cachestat", _cachestat), mincore]


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES)


def _per_file(files: Sequence[Path | str], count: _CountFd) -> Iterator[int]:
    for path in files:
        with _opened(path) as fd:
            size = os.fstat(fd).st_size
            yield count(fd, size) if size else 0


@contextlib.contextmanager
def _opened(path: Path | str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _zfs(_fd: int, _size: int) -> int:
    raise _CannotCountError("ZFS keeps file data in a cache of its own (ARC), which nobody can count by file")


def _cachestat(fd: int, size: int) -> int:
    # The exact length matters: "to the end" would count a large folio's pages beyond the file.
    span = (ctypes.c_uint64 * 2)(0, _pages(size) * PAGE_BYTES)
    stat = (ctypes.c_uint64 * 5)()
    if _libc.syscall(_NR_CACHESTAT, fd, span, stat, 0):
        code = ctypes.get_errno()
        raise _CannotCountError(
            "this kernel is older than 6.5" if code == errno.ENOSYS else os.strerror(code)
        )
    return int(stat[0])


def _mincore(fd: int, size: int) -> int:
    owner = os.fstat(fd).st_uid == os.geteuid()
    if not owner and not os.access(f"/proc/self/fd/{fd}", os.W_OK):
        raise _CannotCountError("the kernel answers only for files that you own or may write")
    return sum(
        _mincore_span(fd, start, min(_MAP_BYTES, size - start)) for start in range(0, size, _MAP_BYTES)
    )


def _mincore_span(fd: int, offset: int, length: int) -> int:
    flags = np.zeros(_pages(length), np.uint8)
    with mmap.mmap(fd, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=offset) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        address = view.ctypes.data
        del view  # a live view would forbid closing the mapping
        code = _libc.mincore(
            ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_void_p(flags.ctypes.data)
        )
    if code:
        raise _CannotCountError(os.strerror(ctypes.get_errno()))
    return int(np.count_nonzero(flags & 1))


def evict(paths: Paths, *, drop_caches: bool = False) -> str:
    """Write files back and evict them from the page cache; return how ("fadvise").

    Pages that somebody maps stay, and so do pages of tmpfs: count afterwards.

    Parameters
    ----------
    drop_caches
        Also drop every clean page, dentry and inode of the whole machine. Needs root.

    Raises
    ------
    UsageError
        `drop_caches` without root. Nothing ever asks for a password.
    """
    files = list(paths)
    if drop_caches and not os.access(DROP_CACHES, os.W_OK):
        raise UsageError(
            "dropping the caches of the whole machine needs root",
            where=DROP_CACHES,
            hint="Leave out --drop-caches: eviction file by file needs no root.",
        )
    if len(files) > _MANY_FILES:
        _sync_filesystem(files[0])
    _evict_until_gone(files)
    if not drop_caches:
        return "fadvise"
    Path(DROP_CACHES).write_text("3\n", encoding="ascii")
    return "fadvise+drop_caches"


def _sync_filesystem(path: Path | str) -> None:
    """Write back the whole filesystem: far cheaper than a journal commit for each of many new files."""
    with _opened(path) as fd:
        _libc.syncfs(fd)


def _evict_until_gone(files: Sequence[Path | str]) -> None:
    if not files or mount_of(files[0]).fstype in IN_MEMORY:
        return
    few = COLD_MAX_FRAC / 2 * sum(_pages(Path(path).stat().st_size) for path in files)
    left, pages = files, -1
    for wait_s in _EVICT_WAITS_S:
        time.sleep(wait_s)
        for path in left:
            with _opened(path) as fd:
                with contextlib.suppress(OSError):  # a read-only filesystem has nothing to write back
                    os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        before, counts = pages, _still_resident(left)
        left, pages = list(counts), sum(counts.values())
        # An open reader maps a few pages, and waiting does not take those away.
        if not left or before == pages <= few:
            return


def _still_resident(files: Sequence[Path | str]) -> dict[Path | str, int]:
    for _, count in _ways(files[0]):
        with contextlib.suppress(_CannotCountError):
            found = zip(files, _per_file(files, count), strict=True)
            return {path: pages for path, pages in found if pages}
    return {}


def warm(paths: Paths, *, anew: bool = False) -> int:
    """Read each file from start to end; return their bytes.

    A machine that pushes idle pages out may take some away while others are still
    being read. So all are read again, up to `WARM_PASSES` times, while less than
    `WARM_ENOUGH_FRAC` is resident. It may still be less in the end: count afterwards.

    Parameters
    ----------
    anew
        Evict them first. Pages that were read one by one lie in the cache as single pages, pages that were read in
        a row in units of up to 2 MiB, which are mapped several times as fast: how they got there must not depend
        on what was run before.
    """
    files = list(paths)
    if anew:
        evict(files)
    done = _read(files)
    for _ in range(WARM_PASSES - 1):
        frac = resident(files).frac
        if frac is None or frac >= WARM_ENOUGH_FRAC:
            break
        _read(files)
    return done


def _read(paths: Paths) -> int:
    buffer = bytearray(_READ_BYTES)
    done = 0
    for path in paths:
        with _opened(path) as fd:
            while got := os.readv(fd, [buffer]):
                done += got
    return done


def who_maps(paths: Paths) -> list[str]:
    """Name the processes that map one of the files, as "pid 123 (python)"; this one is "(this process)".

    Processes of other users are seen by root only.
    """
    names, inodes = _identities(paths)
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (folder / "maps").read_text(encoding="utf-8", errors="surrogateescape")
            if any(_maps_one(line, names, inodes) for line in text.splitlines()):
                found.append((int(folder.name), (folder / "comm").read_text().strip()))
    return [
        f"pid {pid} ({'this process' if pid == os.getpid() else command})" for pid, command in sorted(found)
    ]


def _identities(paths: Paths) -> tuple[set[str], set[tuple[str, str]]]:
    names, inodes = set(), set()
    for path in paths:
        found = Path(path).stat()
        names.add(os.path.realpath(path))
        inodes.add((f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}", str(found.st_ino)))
    return names, inodes


def _maps_one(line: str, names: set[str], inodes: set[tuple[str, str]]) -> bool:
    fields = line.split(maxsplit=5)
    # By name as well: on btrfs and overlayfs the device in maps is not the one that stat gives.
    return len(fields) == 6 and ((fields[3], fields[4]) in inodes or fields[5] in names)


def cache_facts(
    requested: str,
    before: Residency,
    after: Residency | None = None,
    *,
    paths: Paths = (),
    how: str = "none",
    applies_to: str = "epoch",
) -> CacheFacts:
    """Judge by the count just before the first timed step whether a cell got its cache state.

    Call it right after counting `before`: the likely cause of a failure is looked
    for now. The count after the epoch can be put in later with `dataclasses.replace`.

    Parameters
    ----------
    requested
        "cold" (at most 1% resident), "warm" (at least 99%) or "any" (nothing to verify).
    paths
        The files counted, to find the likely cause of a failure.
    how
        How the state was brought about: what `evict` returned, "read", or "none".
    """
    verdict, reason = _verdict(requested, before)
    if verdict is CacheVerdict.FAILED:
        cause = _cold_cause(list(paths)) if requested == "cold" else _warm_cause(before)
        reason = f"{reason}; {cause}" if cause else reason
    known = [part for part in (how, before.method) if part not in ("none", "unknown")]
    return CacheFacts(
        requested=requested,
        method="+".join(known) or "none",
        resident_frac_before=before.frac,
        resident_frac_after=after.frac if after else None,
        verdict=verdict,
        applies_to=applies_to,
        reason=reason,
    )


def _verdict(requested: str, before: Residency) -> tuple[CacheVerdict, str]:
    frac = before.frac
    if requested == "any":
        return CacheVerdict.UNVERIFIED, "no cache state was asked for"
    if requested not in ("cold", "warm"):
        raise UsageError(f"no cache state is called {requested!r}", hint="Use cold, warm or any.")
    if frac is None:
        return CacheVerdict.UNVERIFIED, f"resident pages cannot be counted: {before.reason}"
    if requested == "cold" and frac > COLD_MAX_FRAC:
        return CacheVerdict.FAILED, f"{frac:.1%} of the store was resident, cold allows {COLD_MAX_FRAC:.0%}"
    if requested == "warm" and frac < WARM_MIN_FRAC:
        return CacheVerdict.FAILED, f"{frac:.1%} of the store was resident, warm needs {WARM_MIN_FRAC:.0%}"
    return CacheVerdict.VERIFIED, ""


def _cold_cause(paths: Sequence[Path | str]) -> str:
    if not paths:
        return ""
    mount = mount_of(paths[0])
    if mount.fstype in IN_MEMORY:
        return f"cold cannot exist on {mount.fstype} ({mount.point}): its files live in memory only"
    holders = who_maps(paths)
    if holders:
        return f"likely cause: mapped by {', '.join(holders)}, and mapped pages cannot be evicted"
    return "likely cause: another process reads or writes these files now"


def _warm_cause(before: Residency) -> str:
    size = before.pages_total * PAGE_BYTES
    free = os.sysconf("SC_AVPHYS_PAGES") * PAGE_BYTES
    return (
        f"likely cause: memory (the store has {size / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free, "
        "and a control group may allow less) or a reclaimer that pushes idle pages out (see 'storebench doctor')"
    )
