"""The options of the direct readers: how they read a file ahead of the loop."""

import sys
from dataclasses import dataclass

from storebench.formats.options import Options, flag, integer, size
from storebench.probes.cgroup import memory_limit_bytes

KIB, MIB = 1 << 10, 1 << 20
MOST_MIB = 1 << 20
MOST_READERS = 1024

WINDOW_BYTES = 64 * MIB
"""The read-ahead distance if nothing limits the memory of this process."""

MIN_UNIT_BYTES = 4 * MIB
"""Least bytes that are read together if reads are merged: LMDBIO's figure for COAL."""

_SHARE_OF_LIMIT = 8
"""With limited memory, an eighth of it is requested ahead. With a quarter, much data was evicted before it was read."""


@dataclass(frozen=True, kw_only=True)
class ReadPolicy(Options):
    """Settings for reading a file, one field per option."""

    explicit: bool = flag(
        default=True,
        meaning="read cold data explicitly; off leaves it to page faults of the mapping",
    )
    merged: bool = flag(
        default=True,
        meaning="read windows of several batches, and close samples in one request; off is one request per sample",
    )
    window_bytes: int | None = size(
        name="window_mib",
        default=None,
        least=4,
        most=MOST_MIB,
        unit=MIB,
        meaning="how far to read ahead of the loop, in MiB; auto: 64, or 1/8 of the control group's memory limit",
    )
    sweep_bytes: int = size(
        name="sweep_mib",
        default=256,
        least=0,
        most=MOST_MIB,
        unit=MIB,
        meaning="read small samples in one pass where they span at most this many MiB",
    )
    gap_bytes: int = size(
        name="gap_kib",
        default=8,
        least=0,
        most=MOST_MIB,
        unit=KIB,
        meaning="read through a gap of up to this many KiB instead of asking twice",
    )
    readers_at_a_time: int | None = integer(
        default=None,
        least=1,
        most=MOST_READERS,
        meaning="how many processes may read the file at the same time; the others wait for their turn",
    )

    def window(self) -> int:
        """Return the read-ahead distance from the loop, in bytes."""
        return self.window_bytes or min(WINDOW_BYTES, _room_bytes())

    def sweep(self) -> int:
        """Return the most bytes that small samples may span to be read in one pass."""
        return min(self.sweep_bytes, _room_bytes())


def _room_bytes() -> int:
    """Return the bytes that may wait in the page cache, within the memory limit of this process."""
    limit = memory_limit_bytes()
    return sys.maxsize if limit is None else max(limit // _SHARE_OF_LIMIT, 2 * MIN_UNIT_BYTES)
