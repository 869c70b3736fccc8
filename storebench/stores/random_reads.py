"""Random reads of the samples in a file of another program: timed cold, with the file evicted before each, and warm."""

import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.datasets.containers.pixels import is_pickle
from storebench.datasets.images import suffix_of
from storebench.probes.page_cache import ask_to_evict, cache_facts, evict, resident
from storebench.probes.page_count import PAGE_BYTES
from storebench.record.schema import CacheVerdict
from storebench.settings.words import CacheState

SEED = 0  # the seed of all draws, so that two inspections of a file read the same samples
MOST_RESIDENT_FRAC = 0.05
LEAST_RESIDENT_PAGES = 64  # may stay in any case: a library maps some around each page that it touches

# A file with fewer pages has no cold figure: the pages that may be resident are too large a part of it.
FEWEST_PAGES = 4 * LEAST_RESIDENT_PAGES

# Prepare the read of one item; the returned function reads it into memory, and is timed.
Prepare = Callable[[Any], Callable[[], Any]]


@dataclass(frozen=True, kw_only=True)
class Reads:
    """Timed random reads in one state of the page cache; `reason` says why there are none, or no verified ones."""

    samples: int
    median_s: float | None = None
    p90_s: float | None = None
    read_bytes: float | None = None  # into the page cache per read, on average
    verified: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class SampleSet:
    """The samples of a file: the records of LMDB, a data set, or many alike data sets."""

    name: str
    samples: int
    exact: bool = True  # whether they were counted, and not estimated
    layout: str
    content: str = ""
    sample_bytes: tuple[int, int, int] | None = None  # shortest, median, longest; None until they are read
    touched_bytes: float = 0.0  # whole pages and chunks that an uncached read of one needs at least
    advice: str | None = None
    cold: Reads | None = None
    warm: Reads | None = None
    unread: str = ""  # why no sample was read
    is_dataset: bool = True  # whether `run` reads it where it is

    @property
    def amplification(self) -> float | None:
        """Touched bytes over the median sample size; None if that is unknown."""
        return None if self.sample_bytes is None else self.touched_bytes / max(1, self.sample_bytes[1])


@dataclass(frozen=True, kw_only=True)
class Source:
    """The means to read random samples: the file, what opens the library, and the items in random order."""

    path: Path
    open: Callable[[], AbstractContextManager[Prepare]]
    items: Sequence[Any]
    maps: bool  # whether the library maps the file
    value: str = ""  # of the setting that is tried
    batch: int = 1  # samples of each item


@dataclass(frozen=True, kw_only=True)
class TriedSetting:
    """A setting of a reader or writer: its value now, and one to try, in a state of the page cache."""

    name: str
    now: Source
    tried: Source
    cold: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The gain of another value of a setting: samples per second, or how random an order is."""

    setting: str
    now: str
    tried: str
    factor: float
    gain: str  # "as fast, warm", "as fast, cold" or "as random"


@dataclass(frozen=True, kw_only=True)
class FileSamples:
    """Samples as they were found, before any is read; those without a source are not read."""

    part: SampleSet
    source: Source | None = None
    settings: Callable[[Source, Path], Iterable[TriedSetting | Trial]] | None = (
        None  # makes copies in a folder
    )
    notes: dict[str, str] = field(default_factory=dict)  # on the rest of the file


def drawn(items: Sequence[Any], count: int) -> list[Any]:
    """Return up to `count` of the items at random, each once, always the same ones of the same items."""
    return random.Random(SEED).sample(items, min(count, len(items)))


def paged(nbytes: float) -> int:
    """Return the bytes of the fewest pages that hold a range of this size."""
    return max(1, math.ceil(nbytes / PAGE_BYTES)) * PAGE_BYTES


def spread(sizes: npt.ArrayLike) -> tuple[int, int, int]:
    """Return the shortest, the median and the longest of some sizes; zeros for none."""
    lengths = np.asarray(sizes, np.int64)
    if not len(lengths):
        return 0, 0, 0
    return int(lengths.min()), int(np.median(lengths)), int(lengths.max())


def measured(part: SampleSet, source: Source, *, budget_s: float) -> SampleSet:
    """Read random samples cold, then warm, for about `budget_s` seconds each, and return the part with the figures."""
    cold = cold_reads(source, budget_s)
    warm, sizes, values = _warm(source, budget_s)
    # Where sizes become known by reading, the touched bytes are those beside the sample.
    return replace(
        part,
        content=part.content or contents_of(values),
        sample_bytes=part.sample_bytes or spread(sizes),
        touched_bytes=part.touched_bytes + (0 if part.sample_bytes else paged(spread(sizes)[1])),
        cold=cold,
        warm=warm,
    )


def evicted(path: Path) -> tuple[int, str]:
    """Evict a file; return its pages, and the reason why no read of it is known to be cold, or ""."""
    method, before = evict([path]), resident([path])
    facts = cache_facts(CacheState.COLD, before, paths=[path], how=method)
    if facts.verdict != CacheVerdict.VERIFIED:
        return before.pages_total, facts.reason
    if before.pages_total < FEWEST_PAGES:
        small = f"too small a file, {before.pages_total} pages of at least {FEWEST_PAGES}"
        return before.pages_total, f"{small}: after a few reads all of it is in memory"
    return before.pages_total, ""


def cold_reads(source: Source, budget_s: float) -> Reads:
    """Read items for about `budget_s` seconds, each with the file evicted before."""
    deadline = time.perf_counter() + budget_s
    paths = [source.path]
    pages_total, why_not = evicted(source.path)
    if why_not:
        return Reads(samples=0, reason=why_not)
    most = max(LEAST_RESIDENT_PAGES, MOST_RESIDENT_FRAC * pages_total)
    seconds: list[float] = []
    pages: list[int] = []
    *items, last = source.items
    with ExitStack() as stack, source.path.open("rb") as file:
        prepare: Prepare | None = None
        for item in items or [last]:
            if time.perf_counter() > deadline:
                break
            if prepare is None or source.maps:  # mapped pages cannot be evicted
                stack.close()
                prepare = stack.enter_context(source.open())
                if not source.maps:
                    prepare(last)()  # the library has read its own tables then, as in the middle of an epoch
            read = prepare(item)
            ask_to_evict(file.fileno())
            held = resident(paths).pages_resident
            if held is None or held > most:
                break
            seconds.append(_timed(read))
            pages.append(max(0, (resident(paths).pages_resident or 0) - held))
    if not seconds:
        return Reads(samples=0, reason="opening the file brings too much of it into the page cache")
    return _reads(seconds, read_bytes=statistics.fmean(pages) * PAGE_BYTES)


def _timed(read: Callable[[], Any]) -> float:
    start = time.perf_counter()
    read()
    return time.perf_counter() - start


def _warm(source: Source, budget_s: float) -> tuple[Reads, list[int], list[bytes]]:
    """Read the items to fill the page cache, then time their reads; return those, all sizes and the first values."""
    sizes: list[int] = []
    values: list[bytes] = []
    seconds: list[float] = []
    with source.open() as prepare:
        deadline = time.perf_counter() + budget_s
        for item in source.items:
            pieces = _pieces(prepare(item)())
            sizes.append(sum(map(len, pieces)))
            if len(values) < 8:
                values.append(max(pieces, key=len, default=b"")[: 4 << 20])
            if time.perf_counter() > deadline:
                break
        before = resident([source.path])
        deadline = time.perf_counter() + budget_s
        for item in source.items[: len(sizes)]:
            seconds.append(_timed(prepare(item)))
            if time.perf_counter() > deadline:
                break
        after = resident([source.path])
    if before.pages_resident is None or after.pages_resident is None:
        reason = f"resident pages cannot be counted: {before.reason or after.reason}"
        return _reads(seconds, read_bytes=None, reason=reason), sizes, values
    grown = max(0, after.pages_resident - before.pages_resident)
    reason = f"{grown} pages came into the page cache meanwhile" if grown else ""
    return _reads(seconds, read_bytes=grown * PAGE_BYTES / len(seconds), reason=reason), sizes, values


def _reads(seconds: Sequence[float], *, read_bytes: float | None, reason: str = "") -> Reads:
    return Reads(
        samples=len(seconds),
        median_s=statistics.median(seconds),
        p90_s=sorted(seconds)[min(len(seconds) - 1, int(0.9 * len(seconds)))],
        read_bytes=read_bytes,
        verified=not reason,
        reason=reason,
    )


def _pieces(value: Any) -> list[bytes]:
    """Return a value as it was read as bytes: those of bytes or text, and of each element of an array."""
    if isinstance(value, np.ndarray | np.generic):
        if not value.dtype.hasobject:
            return [value.tobytes()]
        return [piece for part in np.ravel(value).tolist() for piece in _pieces(part)]
    if isinstance(value, str):
        return [value.encode("utf-8", "surrogateescape")]
    return [value] if isinstance(value, bytes) else []


_KINDS = {".jpg": "JPEG", ".png": "PNG", ".webp": "WebP", ".gif": "GIF", ".bmp": "BMP", ".tif": "TIFF"}
_WITHIN = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"WEBP": "WebP"}  # in a record or a pickle


def contents_of(values: Sequence[bytes]) -> str:
    """Return the contents of some values in words, the most frequent kinds first; "" if no kind is known."""
    kinds = Counter(map(_content_of, values))
    return " or ".join(kind or "other bytes" for kind, _ in kinds.most_common(3)) if any(kinds) else ""


def _content_of(value: bytes) -> str:
    """Return the kind of one value by its first bytes. Nothing is unpickled or decoded."""
    if kind := _KINDS.get(suffix_of(value)):
        return kind
    inner = next((kind for start, kind in _WITHIN.items() if start in value[:64]), "")
    if is_pickle(value):
        return f"pickled {inner}".strip()
    return f"a record with {inner}" if inner else ""
