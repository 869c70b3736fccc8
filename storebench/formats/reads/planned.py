"""Read ahead in the known order: windows of batches are sorted by offset, merged, requested, and served in order."""

import collections
import fcntl
import hashlib
import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path

import numpy as np

from storebench.arrays import ImageShape, Indices
from storebench.errors import StorebenchError
from storebench.formats.options import Options, flag, integer, size
from storebench.formats.reads.direct_file import (
    NO_PIECES,
    SMALL_BYTES,
    DirectFile,
    Offsets,
    Pieces,
    SampleRows,
    merge,
)
from storebench.formats.windows import Batch, Windows
from storebench.probes.cgroup import memory_limit_bytes
from storebench.probes.page_count import PAGE_BYTES
from storebench.system.scratch import remove_unused, shared_folder

MIB = 1 << 20

MIN_UNIT_BYTES = (
    4 * MIB
)  # the least bytes that are read together if reads are merged: LMDBIO's figure for COAL
SWEEP_BYTES = 256 * MIB  # small samples that span no more are read in one pass
GAP_BYTES = 8 << 10  # a gap between samples of no more is read through, instead of asking twice


@dataclass(frozen=True, kw_only=True)
class ReadPolicy(Options):
    """Settings for reading a file, one field per option."""

    explicit: bool = flag(
        default=True, meaning="read cold data explicitly; off leaves it to page faults of the mapping"
    )
    merged: bool = flag(
        default=True,
        meaning="read windows of several batches, and close samples in one request; off is one request per sample",
    )
    window_bytes: int | None = size(
        name="window_mib",
        default=None,
        least=4,
        most=1 << 20,
        unit=MIB,
        meaning="how far to read ahead of the loop, in MiB; auto: 64, or 1/8 of the control group's memory limit",
    )
    readers_at_a_time: int | None = integer(
        default=None,
        least=1,
        most=1024,
        meaning="how many processes may read the file at the same time; the others wait for their turn",
    )

    def window(self) -> int:
        """Return the read-ahead distance from the loop, in bytes."""
        return self.window_bytes or min(64 * MIB, _room_bytes())

    def sweep(self) -> int:
        """Return the most bytes that small samples may span to be read in one pass."""
        return min(SWEEP_BYTES, _room_bytes())


def _room_bytes() -> int:
    """Return the bytes that may wait in the page cache, within the memory limit of this process."""
    limit = memory_limit_bytes()
    # An eighth of the limit: with a quarter, much data was evicted before it was read.
    return sys.maxsize if limit is None else max(limit // 8, 2 * MIN_UNIT_BYTES)


class Turns:
    """At most `at_a_time` of the processes that read `path` are inside `one` at any moment."""

    def __init__(self, path: Path, at_a_time: int) -> None:
        tag = hashlib.blake2b(os.fsencode(path.resolve()), digest_size=8).hexdigest()
        self._folder, self._lock = shared_folder(f"storebench-turns-{os.geteuid()}-{tag}")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._slots = [os.open(self._folder / str(number), flags, 0o600) for number in range(at_a_time)]
        self._release = Finalize(self, remove_unused, args=(self._folder, self._lock), exitpriority=0)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Wait for a turn and hold it."""
        slot = self._take()
        try:
            yield
        finally:
            fcntl.flock(slot, fcntl.LOCK_UN)

    def close(self) -> None:
        for slot in self._slots:
            os.close(slot)
        self._slots = []
        self._release()

    def _take(self) -> int:
        for slot in self._slots:
            try:
                fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return slot
        # All are taken: queue for one of them, different processes for different ones.
        slot = self._slots[os.getpid() % len(self._slots)]
        fcntl.flock(slot, fcntl.LOCK_EX)
        return slot


# Bytes that are mapped per call. Few, long calls release the GIL; short ones and the copying thread block each other.
_MAP_BYTES = 256 << 20

# A resident span is trusted for some seconds, or times as long as asking about it took: the shorter of the two.
_TRUSTED_S, _TRUSTED_TIMES = 0.5, 20

# Return offsets and lengths (int64 [n], bytes) of samples, or raise `IndexError`.
Locate = Callable[[Indices], tuple[Offsets, Offsets]]

# Offsets and lengths of a batch's samples, and whether to copy them from the mapping; else by ``preadv``.
BatchPlaces = tuple[Offsets, Offsets, bool]


class PlannedReads:
    """Serve samples of one file, reading ahead of the consumer if it has announced its plan."""

    def __init__(
        self,
        file: DirectFile,
        locate: Locate,
        *,
        mean_bytes: int,
        policy: ReadPolicy,
        check: Callable[[], None],
    ) -> None:
        self.file = file
        self.policy = policy
        self.mean_bytes = mean_bytes
        self._resident_windows = self._read_windows = self._requests = self._asked_bytes = 0
        self.locate = locate
        self._check = check
        self._ahead: _Lookahead | None = None
        self._was_resident = False
        self._resident_until = 0.0
        self.maps_pages = False
        self._to_map = (0, 0)
        readers = policy.readers_at_a_time
        self._turns: Turns | None = Turns(file.path, readers) if readers else None

    def plan(self, batches: Sequence[Indices]) -> None:
        self._stop()
        if batches and self.policy.explicit and self.policy.merged:
            self._ahead = _Lookahead(self, batches)

    def copy_rows(self, indices: Indices, out: SampleRows) -> None:
        """Fill row i of `out` with sample ``indices[i]``; all samples have the rows' length."""
        offsets, _, mapped = self._find(indices)
        if mapped:
            self.file.copy_rows(offsets, out)
        else:
            self.file.read_rows(offsets, out)
        self._check()

    def copy_windows(self, indices: Indices, windows: Windows, image_shape: ImageShape, out: Batch) -> None:
        """Copy a window of each sample, raw pixels of `image_shape`, into `out`, uint8 [n, h, w, C]."""
        offsets, _, mapped = self._find(indices)
        if mapped:
            windows.copy(self.file.bytes, offsets, image_shape, out)
        else:
            self.file.read_windows(offsets, windows, image_shape, out)
        self._check()

    def payloads(self, indices: Indices) -> list[bytes]:
        offsets, lengths, mapped = self._find(indices)
        contents = self.file.payloads(offsets, lengths, mapped=mapped)
        self._check()
        return contents

    def notes(self) -> dict[str, str]:
        unknown = {"residency": f"not counted: {self.file.cannot_count}"} if self.file.cannot_count else {}
        return {
            "windows": f"{self._resident_windows} resident (gathered from the mapping), "
            f"{self._read_windows} read explicitly",
            "asked": f"{self._requests} requests, {self._asked_bytes} bytes",
            **unknown,
        }

    def close(self) -> None:
        self._stop()
        self.file.close()
        if self._turns is not None:
            self._turns.close()

    def prepare(self, offsets: Offsets, lengths: Offsets) -> bool:
        """Make sure that samples are, or soon will be, in the page cache; return whether to copy from the mapping."""
        if not self.policy.explicit or not len(offsets):
            return True
        self._check()
        pieces = self._missing(offsets, lengths)
        if len(pieces):
            return self._read(pieces)
        self._resident_windows += 1
        return True

    def map_some(self) -> bool:
        """Map the next part of the resident ranges; return whether more is left."""
        start, stop = self._to_map
        if start >= stop:
            return False
        self.file.touch(start, min(stop, start + _MAP_BYTES))
        self._to_map = (start + _MAP_BYTES, stop)
        return True

    def _find(self, indices: Indices) -> BatchPlaces:
        planned = self._ahead.take(indices) if self._ahead is not None else None
        if planned is not None:
            return planned
        offsets, lengths = self.locate(indices)
        return offsets, lengths, self.prepare(offsets, lengths)

    def _missing(self, offsets: Offsets, lengths: Offsets) -> Pieces:
        if time.monotonic() < self._resident_until:
            return NO_PIECES
        frac = self._resident_frac(offsets, lengths)
        if frac == 1.0:
            return NO_PIECES
        if self.policy.merged:
            pieces = merge(offsets, lengths, GAP_BYTES)
        else:
            stops = (offsets + lengths + (PAGE_BYTES - 1)) & -PAGE_BYTES
            pieces = Pieces(starts=offsets & -PAGE_BYTES, stops=stops)
        if frac is not None and frac < 0.01:
            return pieces  # few are resident, so all are requested without asking about each
        absent = [self.file.resident_frac(*pair) < 1.0 for pair in pieces.pairs()]
        self._was_resident = not any(absent)
        return Pieces(starts=pieces.starts[absent], stops=pieces.stops[absent])

    def _resident_frac(self, offsets: Offsets, lengths: Offsets) -> float | None:
        """Return the resident share of the span of some samples; None if asking piece by piece is cheaper."""
        start, stop = int(offsets.min()), int((offsets + lengths).max())
        pages = (stop - start) // PAGE_BYTES
        # Asking about one range costs as much as 300 pages of a long range.
        if pages >= 300 * len(offsets) and not (self._was_resident and pages < 1 << 20):
            return None
        began = time.monotonic()
        mapped = self.maps_pages and self.file.is_mapped(start, stop)
        frac = 1.0 if mapped else self.file.resident_frac(start, stop)
        self._was_resident = frac == 1.0
        if self._was_resident:
            now = time.monotonic()
            # Everything that this plan can touch is resident. Asking again would cost time, so trust it for a moment.
            self._resident_until = now + min(_TRUSTED_S, _TRUSTED_TIMES * (now - began))
            if not self.maps_pages:
                self.maps_pages, self._to_map = True, (start, stop)
        return frac

    def _read(self, pieces: Pieces) -> bool:
        self._read_windows += 1
        self._requests += len(pieces)
        self._asked_bytes += pieces.total_bytes
        small = self.mean_bytes < SMALL_BYTES
        with nullcontext() if self._turns is None else self._turns.one():
            # A large sample waits for its own bytes, in preadv.
            if small or self._turns is not None:
                self.file.read_in(pieces)
            else:
                self.file.ask_for(pieces)
        return small

    def _stop(self) -> None:
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None


class _Lookahead:
    """One plan that a background thread works through."""

    def __init__(self, reads: PlannedReads, batches: Sequence[Indices]) -> None:
        self._reads = reads
        self._batches = batches
        self._at = 0
        self._current: collections.deque[BatchPlaces] = collections.deque()
        self._done: queue.SimpleQueue[list[BatchPlaces] | Exception | None] = queue.SimpleQueue()
        self._stopped = False
        units, at_once = self._units()
        self._in_one_pass = at_once == 1
        self._room = threading.Semaphore(at_once)
        self._thread = threading.Thread(
            target=self._work, args=(units,), name="storebench-lookahead", daemon=True
        )
        self._pid = os.getpid()
        self._thread.start()

    def take(self, indices: Indices) -> BatchPlaces | None:
        """Return the next planned batch if it is `indices`, else None."""
        if self._at >= len(self._batches) or self._pid != os.getpid():
            return None
        expected = self._batches[self._at]
        if expected is not indices and not np.array_equal(expected, indices):
            return None
        if not self._current:
            if self._at:
                self._room.release()
            window = self._done.get()
            if not isinstance(window, list):
                self._done.put(window)  # for the next call: the thread has ended, so nothing else comes
                raise window or RuntimeError("the look-ahead ended before its plan")
            self._current.extend(window)
        self._at += 1
        return self._current.popleft()

    def stop(self) -> None:
        self._stopped = True
        self._room.release()
        if self._pid == os.getpid():
            self._thread.join()

    def _work(self, units: Iterator[list[Indices]]) -> None:
        """Prepare windows until the plan ends, the reader stops, or an error occurs; that error is the last message."""
        failure: Exception | None = None
        try:
            for batches in units:
                self._wait_for_room()
                if self._stopped:
                    return
                offsets, lengths = self._reads.locate(np.concatenate(batches))
                mapped = self._reads.prepare(offsets, lengths)
                # Small samples are copied in short calls: mapping at the same time takes longer than mapping first.
                while self._in_one_pass and self._reads.map_some():
                    pass
                ends = itertools.pairwise(itertools.accumulate(map(len, batches), initial=0))
                self._done.put([(offsets[at:end], lengths[at:end], mapped) for at, end in ends])
            while not self._stopped and self._reads.map_some():
                pass
        except (OSError, StorebenchError, IndexError) as error:
            failure = error
        finally:
            self._done.put(failure)

    def _wait_for_room(self) -> None:
        while not self._room.acquire(blocking=False):
            if not self._reads.map_some():
                self._room.acquire()
                return

    def _units(self) -> tuple[Iterator[list[Indices]], int]:
        """Return the batches that are prepared together, and the number of such units at a time."""
        mean, window_bytes = self._reads.mean_bytes, self._reads.policy.window()
        samples = sum(map(len, self._batches))
        if mean >= SMALL_BYTES:
            # One read of such a sample is efficient by itself: small units keep the pipeline full.
            unit = max(MIN_UNIT_BYTES, window_bytes // 8)
            return self._split(unit, unit), max(2, window_bytes // unit)
        most = min(self._reads.file.size, samples * (mean + 2 * PAGE_BYTES))
        if most <= self._reads.policy.sweep():
            return iter([list(self._batches)]), 1
        # The denser a window, the fewer its requests; the first ones are short to be there soon.
        return self._split(MIN_UNIT_BYTES, window_bytes // 2), 2

    def _split(self, first: int, most: int) -> Iterator[list[Indices]]:
        limit, unit, filled = first, list[Indices](), 0
        for batch in self._batches:
            unit.append(batch)
            filled += len(batch) * self._reads.mean_bytes
            if filled >= limit:
                yield unit
                limit, unit, filled = min(2 * limit, most), [], 0
        if unit:
            yield unit
