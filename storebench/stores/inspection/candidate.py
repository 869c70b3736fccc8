"""A part that was found in a file, the way to read its samples, and the draw of random ones."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.probes.page_count import PAGE_BYTES
from storebench.stores.inspection.findings import SampleSet
from storebench.stores.inspection.measure import SampleSource

SEED = 0
"""The seed of all draws, so that two inspections of a file read the same samples."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A part as it was found, before any sample is read.

    Attributes
    ----------
    part
        The part without measurements.
    source
        The means to read its samples; None if they cannot be read, or none are to be read.
    beside_bytes
        Bytes that a read of a sample needs beside the sample, where the sizes of samples become known by reading.
    decompress
        Measures `SampleSet.decompress_s`; None if it does not apply.
    """

    part: SampleSet
    source: SampleSource | None
    beside_bytes: float = 0.0
    decompress: Callable[[], float | None] | None = None


@dataclass(frozen=True, kw_only=True)
class FileContent:
    """The content of a file: candidates, and notes on the rest."""

    candidates: Sequence[Candidate]
    notes: dict[str, str]


def drawn(items: Sequence[Any], count: int) -> list[Any]:
    """Return up to `count` of the items at random, each once, always the same ones of the same items."""
    return random.Random(SEED).sample(items, min(count, len(items)))


def paged(nbytes: float) -> float:
    """Return the bytes of the pages that a range of this size touches, averaged over its possible offsets."""
    return ((max(1.0, nbytes) - 1) / PAGE_BYTES + 1) * PAGE_BYTES


def spread(sizes: npt.ArrayLike) -> tuple[int, int, int]:
    """Return the shortest, the median and the longest of some sizes; zeros for none."""
    lengths = np.asarray(sizes, np.int64)
    if not len(lengths):
        return 0, 0, 0
    return int(lengths.min()), int(np.median(lengths)), int(lengths.max())
