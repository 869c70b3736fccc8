"""Count the resident pages of files without touching any of them."""

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storebench.errors import CellFailedError
from storebench.probes.machine import mount_of
from storebench.system.libc import LIBC

PAGE_BYTES = mmap.PAGESIZE

NOT_ALLOWED = "the kernel answers only for files that you own or may write"

_NR_CACHESTAT = 451
_MAP_BYTES = 1 << 30

Paths = Iterable[Path | str]
_CountFd = Callable[[int, int], int]
_Ways = list[tuple[str, _CountFd]]


@dataclass(frozen=True, kw_only=True)
class Residency:
    """The resident part of some files."""

    pages_total: int
    pages_resident: int | None
    method: str
    reason: str = ""

    @property
    def frac(self) -> float | None:
        """Resident pages over all pages; None if they were not counted, or if there are no pages."""
        if self.pages_resident is None or not self.pages_total:
            return None
        return self.pages_resident / self.pages_total


NO_PAGES = Residency(pages_total=0, pages_resident=None, method="unknown", reason="the files have no pages")


class CannotCountError(CellFailedError):
    """A method of counting does not work here; the message gives the reason."""


def resident(paths: Paths) -> Residency:
    """Count the resident pages of files without touching any of them."""
    files = list(paths)
    total = pages_of(files)
    return _residency(total, _ways(files[0]), lambda count: _per_file(files, count)) if total else NO_PAGES


def pages_of(paths: Paths) -> int:
    """Return the number of pages of some files."""
    return sum(_pages(os.stat(path).st_size) for path in paths)  # noqa: PTH116 - a Path for each of 10,000 files takes longer


def resident_by_file(paths: Sequence[Path | str]) -> dict[Path | str, int]:
    """Return the resident pages of each file that has any; empty if they cannot be counted."""
    for _, count in _ways(paths[0]):
        with contextlib.suppress(CannotCountError):
            return {path: pages for path, pages in zip(paths, _per_file(paths, count), strict=True) if pages}
    return {}


class OpenFiles:
    """Files that stay open, so that their resident pages can be counted repeatedly at little cost."""

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
        """Count the resident pages without touching any of them."""
        if not self._pages:
            return NO_PAGES
        return _residency(
            self._pages, self._ways, lambda count: (count(fd, size) for fd, size in self._fds if size)
        )

    def close(self) -> None:
        """Close the files."""
        while self._fds:
            os.close(self._fds.pop()[0])


def _residency(total: int, ways: _Ways, counts: Callable[[_CountFd], Iterable[int]]) -> Residency:
    """Count with the first method that works here."""
    reasons: list[str] = []
    for name, count in ways:
        try:
            pages = sum(counts(count))
        except CannotCountError as error:
            reasons.append(f"{name}: {error.what}")
        else:
            return Residency(pages_total=total, pages_resident=pages, method=name)
    return Residency(pages_total=total, pages_resident=None, method="unknown", reason="; ".join(reasons))


def _ways(path: Path | str) -> _Ways:
    fstype = mount_of(path).fstype
    if fstype == "zfs":
        return [("page cache", _zfs)]
    mincore: tuple[str, _CountFd] = ("mincore", _mincore)
    return (
        [mincore]
        if fstype == "overlay"
        else [("cachestat", lambda fd, size: cachestat_pages(fd, 0, size)), mincore]
    )


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES)


def _per_file(files: Sequence[Path | str], count: _CountFd) -> Iterator[int]:
    for path in files:
        with opened(path) as fd:
            size = os.fstat(fd).st_size
            yield count(fd, size) if size else 0


@contextlib.contextmanager
def opened(path: Path | str) -> Iterator[int]:
    """Open a file for reading and yield its descriptor."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _zfs(_fd: int, _size: int) -> int:
    raise CannotCountError("ZFS keeps file data in a separate cache (ARC), which cannot be counted by file")


def cachestat_pages(fd: int, start: int, length: int) -> int:
    """Return the number of resident pages in a range of an open file, by `cachestat(2)`."""
    # The exact length matters: length 0, "to the end", would also count the pages of a large folio beyond the file.
    span = (ctypes.c_uint64 * 2)(start, _pages(length) * PAGE_BYTES)
    stat = (ctypes.c_uint64 * 5)()
    if LIBC.syscall(_NR_CACHESTAT, fd, span, stat, 0):
        code = ctypes.get_errno()
        raise CannotCountError("this kernel is older than 6.5" if code == errno.ENOSYS else os.strerror(code))
    return int(stat[0])


def mincore_pages(address: int, length: int) -> int:
    """Return the number of resident pages in a mapping of a file, by `mincore(2)`."""
    flags = np.zeros(_pages(length), np.uint8)
    if LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_void_p(flags.ctypes.data)):
        raise CannotCountError(os.strerror(ctypes.get_errno()))
    return int(np.count_nonzero(flags & 1))


def may_mincore(fd: int) -> bool:
    """Return whether `mincore(2)` answers truthfully for an open file: this user owns it or may write it."""
    return os.fstat(fd).st_uid == os.geteuid() or os.access(f"/proc/self/fd/{fd}", os.W_OK)


def _mincore(fd: int, size: int) -> int:
    if not may_mincore(fd):
        raise CannotCountError(NOT_ALLOWED)
    total = 0
    for start in range(0, size, _MAP_BYTES):
        length = min(_MAP_BYTES, size - start)
        with mmap.mmap(fd, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=start) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            address = view.ctypes.data
            del view  # a live view would forbid closing the mapping
            total += mincore_pages(address, length)
    return total
