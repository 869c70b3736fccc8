"""The findings about one file: its parts, their samples, and the measured cost of a random one."""

from dataclasses import dataclass, field
from pathlib import Path

UNKNOWN_BYTES = 1 << 16
"""Assumed size of a sample whose size is not known before it is read."""


@dataclass(frozen=True, kw_only=True)
class Reads:
    """Random reads of one part through the format's own library, in one state of the page cache.

    Attributes
    ----------
    samples
        Number of timed reads.
    median_s, p90_s
        Median and 90th percentile of the time of a read, in seconds; None without timed reads.
    read_bytes
        Bytes that came into the page cache per read, on average; None if they cannot be counted.
    verified
        Whether counts of resident pages confirm the state.
    reason
        Why there are no timed reads, or why the state is not verified; "" otherwise.
    """

    samples: int
    median_s: float | None = None
    p90_s: float | None = None
    read_bytes: float | None = None
    verified: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class SampleSet:
    """Samples of one kind: a database, a data set, or many alike data sets.

    Attributes
    ----------
    name
        Its name in the file; empty for the unnamed database of LMDB.
    samples
        Number of samples.
    exact
        Whether `samples` was counted; False if it is an estimate.
    layout
        Layout in the file, in words.
    content
        Contents of a sample, in words; empty if nothing is known about them.
    sample_bytes
        Shortest, median and longest size of the samples that were looked at; None if none was.
    looked_at
        Number of samples that `sample_bytes` is of; None if the size of every sample is known.
    touched_bytes
        Bytes that a read of one uncached sample of median size needs at least: whole pages and whole chunks.
        None if `sample_bytes` is.
    advice
        How to improve a costly layout; None if there is nothing to improve.
    cold, warm
        Measured random reads; None if none were tried.
    decompress_s
        Median time to decompress the chunks of one sample, in seconds; None if nothing is compressed.
    unread
        Why no sample was read; "" if samples were read, or none were asked for.
    """

    name: str
    samples: int
    exact: bool = True
    layout: str
    content: str = ""
    sample_bytes: tuple[int, int, int] | None
    looked_at: int | None = None
    touched_bytes: float | None
    advice: str | None = None
    cold: Reads | None = None
    warm: Reads | None = None
    decompress_s: float | None = None
    unread: str = ""

    @property
    def amplification(self) -> float | None:
        """Touched bytes over the median sample size; None if either is unknown."""
        if self.sample_bytes is None or self.touched_bytes is None:
            return None
        return self.touched_bytes / max(1, self.sample_bytes[1])

    @property
    def weight(self) -> int:
        """Bytes of all samples, from the median; unknown sizes count as those of images."""
        return self.samples * (self.sample_bytes[1] if self.sample_bytes else UNKNOWN_BYTES)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Findings about one file.

    Attributes
    ----------
    kind
        "LMDB", "LevelDB" or "HDF5".
    file_bytes
        Size of the file, or of all files of a LevelDB.
    resident_frac
        Share of it in the page cache before it was inspected; None if it cannot be counted.
    parts
        The parts with the most bytes, largest first.
    notes
        Anything else, by name.
    """

    path: Path
    kind: str
    file_bytes: int
    resident_frac: float | None
    parts: tuple[SampleSet, ...]
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def main(self) -> SampleSet | None:
        """The part with the most bytes among those that were read, or among all of them; None without parts."""
        read = [part for part in self.parts if part.warm is not None and part.warm.samples]
        return max(read or self.parts, key=lambda part: part.weight, default=None)
