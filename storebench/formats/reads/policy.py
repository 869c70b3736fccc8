"""How a file is read ahead, as the options of the direct readers say it."""

from dataclasses import dataclass

from storebench.formats.options import Options, flag, integer, size

KIB, MIB = 1 << 10, 1 << 20
MOST_MIB = 1 << 20
MOST_READERS = 1024


@dataclass(frozen=True, kw_only=True)
class ReadPolicy(Options):
    """How a file is read: one field per option. The aliases are LMDBIO's names."""

    explicit: bool = flag(
        default=True,
        alias="dio",
        meaning="read cold data explicitly; off leaves it to page faults of the mapping",
    )
    merged: bool = flag(
        default=True,
        alias="coal",
        meaning="read windows of several batches, and close samples in one request; off is one request per sample",
    )
    window_bytes: int = size(
        name="window_mib",
        default=64,
        least=4,
        most=MOST_MIB,
        unit=MIB,
        meaning="how far to read ahead of the loop, in MiB",
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
        alias="stag",
        meaning="how many processes may read the file at the same time; the others wait for their turn",
    )
