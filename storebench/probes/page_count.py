"""Count the resident pages of files without touching any of them."""

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storebench.errors import CellFailedError
from storebench.probes.machine import mount_of
from storebench.system.file_tree import Paths, names_of
from storebench.system.libc import LIBC

PAGE_BYTES = mmap.PAGESIZE

NOT_ALLOWED = "the kernel answers only for files that you own or may write"

_NR_CACHESTAT = 451
_MAP_BYTES = 1 << 30

_Span, _Stat = ctypes.c_uint64 * 2, ctypes.c_uint64 * 5
_CountFd = Callable[[int, int], int]
_Ways = list[tuple[str, _CountFd]]


@dataclass(frozen=True, kw_only=True)
class Residency:
    """The resident part of some files, where it can be counted."""

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
    return _residency(_ways(paths), lambda count: _per_file(paths, count))


def pages_of(paths: Paths) -> int:
    return sum(_pages(os.stat(path).st_size) for path in names_of(paths))  # noqa: PTH116 - Path objects take seconds


def resident_by_file(paths: Paths) -> dict[str, int]:
    """Return the resident pages of each file that has any; empty if they cannot be counted."""
    for _, count in _ways(paths):
        with contextlib.suppress(CannotCountError):
            counted = zip(names_of(paths), _per_file(paths, count), strict=True)
            return {path: pages for path, (_, pages) in counted if pages}
    return {}


class OpenFiles:
    """Files that stay open, so that their resident pages can be counted repeatedly at little cost."""

    def __init__(self, paths: Paths) -> None:
        with contextlib.ExitStack() as stack:
            fds = [stack.enter_context(opened(path)) for path in paths]
            self._open = stack.pop_all()  # until this object is gone
        self._sizes = [(fd, size) for fd in fds if (size := os.fstat(fd).st_size)]
        self._ways = _ways(paths)

    def resident(self) -> Residency:
        """Count the resident pages without touching any of them."""
        return _residency(
            self._ways, lambda count: ((_pages(size), count(fd, size)) for fd, size in self._sizes)
        )


def _residency(ways: _Ways, counts: Callable[[_CountFd], Iterable[tuple[int, int]]]) -> Residency:
    """Count with the first method that works here; `counts` yields the pages of each file, and the resident ones."""
    reasons: list[str] = []
    for name, count in ways:
        total = pages = 0
        try:
            for of_file, resident_of_file in counts(count):
                total += of_file
                pages += resident_of_file
        except CannotCountError as error:
            reasons.append(f"{name}: {error.what}")
        else:
            return Residency(pages_total=total, pages_resident=pages, method=name) if total else NO_PAGES
    if not ways:
        return NO_PAGES
    return Residency(pages_total=0, pages_resident=None, method="unknown", reason="; ".join(reasons))


def _ways(paths: Paths) -> _Ways:
    if not paths:
        return []
    fstype = mount_of(next(names_of(paths))).fstype
    if fstype == "zfs":
        return [("page cache", _zfs)]
    ways: _Ways = [("cachestat", lambda fd, size: cachestat_pages(fd, 0, size)), ("mincore", _mincore)]
    return ways[1:] if fstype == "overlay" else ways


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES)


def _per_file(paths: Paths, count: _CountFd) -> Iterator[tuple[int, int]]:
    """Yield the pages of each file, and the resident ones."""
    for path in names_of(paths):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # without `opened`, which takes as long as the call
        try:
            size = os.fstat(fd).st_size
            counted = count(fd, size) if size else 0
        finally:
            os.close(fd)
        yield _pages(size), counted


@contextlib.contextmanager
def opened(path: Path | str, flags: int = 0) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        yield fd
    finally:
        os.close(fd)


def _zfs(_fd: int, _size: int) -> int:
    raise CannotCountError("ZFS keeps file data in a separate cache (ARC), which cannot be counted by file")


def cachestat_pages(fd: int, start: int, length: int) -> int:
    """Return the number of resident pages in a range of an open file, by `cachestat(2)`."""
    # The exact length matters: length 0, "to the end", would also count the pages of a large folio beyond the file.
    span, stat = _Span(start, _pages(length) * PAGE_BYTES), _Stat()
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
    """Return True if `mincore(2)` answers truthfully for an open file: this user owns it or may write it."""
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
