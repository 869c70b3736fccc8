"""Explicit reads of one file: find the resident bytes, request many ranges at once, copy them out."""

import contextlib
import ctypes
import functools
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storebench.arrays import ImageShape
from storebench.errors import CorruptStoreError
from storebench.formats.common import damaged
from storebench.formats.windows import Batch, Windows
from storebench.probes.machine import block_device, mount_of
from storebench.probes.page_count import (
    NOT_ALLOWED,
    PAGE_BYTES,
    CannotCountError,
    cachestat_pages,
    may_mincore,
    mincore_pages,
)
from storebench.system.kernel import load_kernel
from storebench.system.libc import LIBC

Offsets = npt.NDArray[np.int64]  # byte offsets in a file, int64 [n]
SampleRows = npt.NDArray[np.uint8]  # samples of one size, uint8 [n, S], C order

# Smaller samples cost more in calls than in copying, so they are gathered from a mapping.
SMALL_BYTES = 32 << 10

_FAULT_AROUND_BYTES = 64 << 10  # the kernel maps this much of a file on one page fault
_GROUP_BYTES, _GROUP_HINTS = 4 << 20, 256


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Page-aligned, sorted, disjoint ranges of a file that cover some samples."""

    starts: Offsets
    stops: Offsets  # int64 [m], bytes

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def total_bytes(self) -> int:
        return int((self.stops - self.starts).sum())

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.starts.tolist(), self.stops.tolist(), strict=True))


NO_PIECES = Pieces(starts=np.empty(0, np.int64), stops=np.empty(0, np.int64))


def merge(offsets: Offsets, lengths: Offsets | int, gap_bytes: int = 0) -> Pieces:
    """Return the ranges that cover the samples; ranges at most `gap_bytes` apart are merged."""
    starts = offsets & -PAGE_BYTES
    stops = (offsets + lengths + (PAGE_BYTES - 1)) & -PAGE_BYTES
    if not len(starts):
        return NO_PIECES
    pages = int(stops.max() - starts.min()) // PAGE_BYTES
    if pages < 16 * len(starts):  # then counting pages is faster than sorting samples
        # The covered runs of pages without sorting, from the numbers of samples that begin and end in each page.
        base = int(starts.min())
        begun = np.bincount((starts - base) // PAGE_BYTES, minlength=pages + 1)
        ended = np.bincount((stops - base) // PAGE_BYTES, minlength=pages + 1)
        covered = np.cumsum(begun - ended) > 0
        edges = np.flatnonzero(np.diff(covered, prepend=False)) * PAGE_BYTES + base
        starts, stops = edges[0::2], edges[1::2]
    else:
        order = np.argsort(starts, kind="stable")
        starts, stops = starts[order], np.maximum.accumulate(stops[order])
    breaks = np.flatnonzero(starts[1:] > stops[:-1] + gap_bytes)
    return Pieces(
        starts=starts[np.concatenate(([0], breaks + 1))],
        stops=stops[np.concatenate((breaks, [len(stops) - 1]))],
    )


class DirectFile:
    """One file that is open for explicit reads. Belongs to the process that opened it."""

    def __init__(self, path: Path, *, advise_random: bool = True) -> None:
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise damaged("the data file is missing", path) from None
        self.size = os.fstat(self.fd).st_size
        if not self.size:
            os.close(self.fd)
            raise damaged("the data file is empty", path)
        if advise_random:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        self._map = mmap.mmap(self.fd, self.size, prot=mmap.PROT_READ)
        self.bytes: SampleRows = np.frombuffer(self._map, np.uint8)
        mount = mount_of(path)
        self._may_mincore = may_mincore(self.fd)
        self._count, self.cannot_count = self._way(mount.fstype)
        # The kernel truncates longer hints to the device's read-ahead.
        ahead = int(block_device(mount).get("read_ahead_kb") or 0)
        self._hint_bytes = min(max(ahead, 128), 4096) << 10

    def close(self) -> None:
        if self.fd < 0:
            return
        self.bytes = np.empty(0, np.uint8)
        self._map.close()
        os.close(self.fd)
        self.fd = -1

    def check_size(self) -> None:
        """Refuse to continue if the file was truncated: touching a mapping beyond its end kills the process."""
        if self.shrank():
            raise CorruptStoreError("the data file shrank while it was read", where=self.path)

    def shrank(self) -> bool:
        # Cheaper than fstat, which matters for every batch; nothing here reads at the file's position.
        return os.lseek(self.fd, 0, os.SEEK_END) < self.size

    def is_mapped(self, start: int, stop: int) -> bool:
        """Whether every page of a range is resident; this is fast if the process has mapped all of it."""
        start &= -PAGE_BYTES
        stop = min(stop, self.size)
        return self._may_mincore and self._mincore(start, stop - start) == -(-(stop - start) // PAGE_BYTES)

    def resident_frac(self, start: int, stop: int) -> float:
        """Return the share of a range's pages that is in the page cache; 0 if `cannot_count` says why."""
        if self._count is None:
            return 0.0
        start &= -PAGE_BYTES
        stop = min(stop, self.size)
        return self._count(start, stop - start) / -(-(stop - start) // PAGE_BYTES)

    def _way(self, fstype: str) -> tuple[Callable[[int, int], int] | None, str]:
        """Return a function that counts the resident pages of a range, or the reason for its absence."""
        # On overlayfs cachestat always returns 0, because the pages belong to the underlying file.
        ways: list[Callable[[int, int], int]] = [self._mincore]
        if fstype != "overlay":
            ways.insert(0, functools.partial(cachestat_pages, self.fd))
        reasons = []
        for count in ways:
            try:
                count(0, min(self.size, PAGE_BYTES))
            except CannotCountError as error:
                reasons.append(error.what)
            else:
                return count, ""
        return None, "; ".join(reasons)

    def _mincore(self, start: int, length: int) -> int:
        if not self._may_mincore:
            raise CannotCountError(NOT_ALLOWED)
        return mincore_pages(self.bytes.ctypes.data + start, length)

    def ask_for(self, pieces: Pieces) -> None:
        """Start reading ranges into the page cache; return when the reads are queued, not when they are done."""
        for at, length in self._hints(pieces):
            os.posix_fadvise(self.fd, at, length, os.POSIX_FADV_WILLNEED)

    def read_in(self, pieces: Pieces) -> None:
        """Read ranges into the page cache, and map the longer ones as they arrive; return when all are resident."""
        groups = list(self._groups(pieces))
        requested = threading.Semaphore(0)

        def ask() -> None:
            for group in groups:
                with contextlib.suppress(OSError):  # the reader that needs the bytes reports the error
                    for at, length in group:
                        os.posix_fadvise(self.fd, at, length, os.POSIX_FADV_WILLNEED)
                requested.release()

        asking = threading.Thread(target=ask, name="storebench-asking", daemon=True)
        asking.start()
        try:
            for group in groups:
                requested.acquire()
                self._wait_for(group)
        finally:
            asking.join()

    def _wait_for(self, hints: list[tuple[int, int]]) -> None:
        for at, length in hints:
            # A fault on a page that is still being read counts as, and costs, a major fault; this call does not.
            os.pread(self.fd, 1, min(at + length, self.size) - 1)
            if length >= _FAULT_AROUND_BYTES:
                # Put its pages into this process's page tables, with the GIL released.
                LIBC.madvise(
                    ctypes.c_void_p(self.bytes.ctypes.data + at),
                    ctypes.c_size_t(min(at + length, self.size) - at),
                    22,  # MADV_POPULATE_READ
                )

    def _groups(self, pieces: Pieces) -> Iterator[list[tuple[int, int]]]:
        group, filled = list[tuple[int, int]](), 0
        for at, length in self._hints(pieces):
            group.append((at, length))
            filled += length
            if filled >= _GROUP_BYTES or len(group) >= _GROUP_HINTS:
                yield group
                group, filled = [], 0
        if group:
            yield group

    def _hints(self, pieces: Pieces) -> Iterator[tuple[int, int]]:
        for start, stop in pieces.pairs():
            for at in range(start, stop, self._hint_bytes):
                yield at, min(self._hint_bytes, stop - at)

    def touch(self, start: int, stop: int) -> None:
        """Map a range that is known to be resident."""
        self.bytes[start : min(stop, self.size) : _FAULT_AROUND_BYTES].max(initial=0)

    def copy_rows(self, offsets: Offsets, out: SampleRows) -> None:
        """Copy samples of one size out of the mapping, row i from ``offsets[i]``."""
        kernel = load_kernel()
        if kernel is None:
            for row, at in zip(out, offsets.tolist(), strict=True):
                row[:] = self.bytes[at : at + len(row)]
        elif kernel.rows(self.bytes, offsets, out) < len(offsets):
            raise IndexError("a sample is not inside of its file")

    def read_rows(self, offsets: Offsets, out: SampleRows) -> None:
        """Read samples of one size with ``preadv``, row i from ``offsets[i]``."""
        size = out.shape[1]
        for row, at in enumerate(offsets.tolist()):
            if os.preadv(self.fd, [out[row].data], at) != size:
                self.read_fully(at, out[row])

    def read_windows(self, offsets: Offsets, windows: Windows, image_shape: ImageShape, out: Batch) -> None:
        """Read raw images with ``preadv``, image i from ``offsets[i]``, and copy a window of each into `out`."""
        image = np.empty((1, *image_shape), np.uint8)
        for row, at in enumerate(offsets.tolist()):
            self.read_fully(at, image.reshape(-1))
            windows.part(slice(row, row + 1)).cut(image, out[row : row + 1])

    def read_fully(self, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Read ``len(out)`` bytes at `offset` into `out`, uint8 [n], in as many calls as it takes."""
        done = 0
        while done < len(out):
            got = os.preadv(self.fd, [out[done:].data], offset + done)
            if not got:
                raise CorruptStoreError(f"the file ends within a value at byte {offset}", where=self.path)
            done += got

    def payloads(self, offsets: Offsets, lengths: Offsets, *, mapped: bool) -> list[bytes]:
        """Return samples of any size as bytes, out of the mapping or by ``pread``."""
        pairs = zip(offsets.tolist(), lengths.tolist(), strict=True)
        if mapped:
            return [self._map[at : at + length] for at, length in pairs]
        contents = [os.pread(self.fd, length, at) for at, length in pairs]
        if any(len(content) != length for content, length in zip(contents, lengths.tolist(), strict=True)):
            raise CorruptStoreError("the file ends within a value", where=self.path)
        return contents
