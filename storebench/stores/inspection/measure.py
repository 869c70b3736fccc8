"""Time random reads of a part through its library: cold, with the file evicted before each read, and warm.

Both states are confirmed by counts of resident pages. Before each cold read, at most `MOST_RESIDENT_FRAC` of the file
may be resident. The file is therefore evicted again and again, and opened again where the library maps it, because
mapped pages stay. A warm pass must bring no page into the page cache.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storebench.probes.page_cache import ask_to_evict, cache_facts, evict, resident
from storebench.probes.page_count import PAGE_BYTES, opened
from storebench.results import CacheVerdict
from storebench.settings.words import CacheState
from storebench.stores.inspection.findings import Reads

MOST_RESIDENT_FRAC = 0.05
"""Share of the file that may be resident before a cold read."""

LEAST_RESIDENT_PAGES = 64
"""As many pages may be resident in any case: a library maps some of them around each page that it touches."""

FEWEST_PAGES = 4 * LEAST_RESIDENT_PAGES
"""A file with fewer pages has no cold figure: the pages that may be resident are too large a part of it."""

_WARM_TRIES = 2
_VALUES = 8
_MOST_VALUE_BYTES = 4 << 20
_SLOW = 0.9

Prepare = Callable[[Any], Callable[[], Any]]
"""Prepare the read of one item; the returned function reads it into memory, and is what is timed."""


@dataclass(frozen=True, kw_only=True)
class SampleSource:
    """The means to read random samples of one part.

    Attributes
    ----------
    paths
        The files that hold them.
    open
        Opens the library, and yields the function that prepares the read of an item.
    items
        The items to read, in random order, each a different sample.
    maps
        Whether the library maps the file.
    """

    paths: tuple[Path, ...]
    open: Callable[[], AbstractContextManager[Prepare]]
    items: Sequence[Any]
    maps: bool


@dataclass(frozen=True, kw_only=True)
class ReadMeasurement:
    """Cold and warm reads of a part.

    Attributes
    ----------
    sizes
        Bytes of each sample that was read.
    values
        The first few samples, or their first 4 MiB, for finding out what they contain.
    """

    cold: Reads
    warm: Reads
    sizes: tuple[int, ...]
    values: tuple[bytes, ...]


def measure(source: SampleSource, *, budget_s: float) -> ReadMeasurement:
    """Read items cold, then warm, for about `budget_s` seconds each at most. There must be at least one item."""
    cold = _cold(source, budget_s)
    sizes, values = _fill(source, budget_s)
    warm = _warm(source, source.items[: len(sizes)], budget_s)
    return ReadMeasurement(cold=cold, warm=warm, sizes=sizes, values=values)


def nbytes_of(value: Any) -> int:
    """Return the bytes of a value as it was read: bytes, text, an array, or an array or a record of those."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.hasobject:
        return sum(map(nbytes_of, _held(value)))
    return value.nbytes if isinstance(value, np.ndarray | np.generic) else len(bytes_of(value))


def bytes_of(value: Any) -> bytes:
    """Return a value as bytes; of an array of objects its first one, and of a record the largest of its fields."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.hasobject:
        held = _held(value)
        return b"".join(map(bytes_of, [max(held, key=nbytes_of)] if value.dtype.names else held[:1]))
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, np.ndarray | np.generic):
        return value.tobytes()
    # A reference of HDF5 to another object has no bytes.
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else b""


def _held(value: Any) -> list[Any]:
    """Return the fields of a record or of an array of records, or the objects of an array."""
    if value.dtype.names:
        return [value[name] for name in value.dtype.names]
    return list(value.ravel())


def _cold(source: SampleSource, budget_s: float) -> Reads:
    deadline = time.perf_counter() + budget_s
    method = evict(source.paths)
    facts = cache_facts(CacheState.COLD, resident(source.paths), paths=source.paths, how=method)
    if facts.verdict != CacheVerdict.VERIFIED:
        return Reads(samples=0, reason=facts.reason)
    total_pages = resident(source.paths).pages_total
    if total_pages < FEWEST_PAGES:
        why = "after a few reads all of it is in memory"
        return Reads(
            samples=0, reason=f"too small a file, {total_pages} pages of at least {FEWEST_PAGES}: {why}"
        )
    seconds: list[float] = []
    pages: list[int] = []
    *others, first = source.items
    waiting = iter(others or [first])
    while time.perf_counter() < deadline:
        before = len(seconds)
        for span_s, grown in _cold_round(source, first, waiting, deadline):
            seconds.append(span_s)
            pages.append(grown)
        if len(seconds) == before:
            break
        evict(source.paths)
    if not seconds:
        return Reads(samples=0, reason="opening the file brings too much of it into the page cache")
    return _reads(seconds, read_bytes=statistics.fmean(pages) * PAGE_BYTES)


def _cold_round(
    source: SampleSource, first: Any, waiting: Iterator[Any], deadline: float
) -> Iterator[tuple[float, int]]:
    """Open the library and read until too much is resident; yield seconds and pages that came in, per read."""
    with source.open() as prepare:
        if not source.maps:
            prepare(first)()  # so that the library has read its own tables, as in the middle of an epoch
        while time.perf_counter() < deadline:
            item = next(waiting, None)
            if item is None:
                return
            read = prepare(item)
            held = _evicted_but_for(source.paths)
            if held is None:
                return
            span_s = _timed(read)
            yield span_s, max(0, (resident(source.paths).pages_resident or 0) - held)


def _evicted_but_for(paths: Sequence[Path]) -> int | None:
    """Evict the files and return the number of pages that stay; None if those are too many for a cold read."""
    for path in paths:
        with opened(path) as fd:
            ask_to_evict(fd)
    residency = resident(paths)
    held = residency.pages_resident
    if held is None or held > max(LEAST_RESIDENT_PAGES, MOST_RESIDENT_FRAC * residency.pages_total):
        return None
    return held


def _timed(read: Callable[[], Any]) -> float:
    start = time.perf_counter()
    read()
    return time.perf_counter() - start


def _fill(source: SampleSource, budget_s: float) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
    """Read items so that their pages are resident; return all sizes, and the first values."""
    deadline = time.perf_counter() + budget_s
    sizes: list[int] = []
    values: list[bytes] = []
    with source.open() as prepare:
        for item in source.items:
            value = prepare(item)()
            sizes.append(nbytes_of(value))
            if len(values) < _VALUES:
                values.append(bytes_of(value)[:_MOST_VALUE_BYTES])
            if time.perf_counter() > deadline:
                break
    return tuple(sizes), tuple(values)


def _warm(source: SampleSource, items: Sequence[Any], budget_s: float) -> Reads:
    """Time the reads of items that were read just now; a pass that brings pages in is repeated."""
    reads = Reads(samples=0)
    for _ in range(_WARM_TRIES):
        seconds: list[float] = []
        with source.open() as prepare:
            prepare(items[0])()
            before = resident(source.paths)
            deadline = time.perf_counter() + budget_s
            for item in items:
                seconds.append(_timed(prepare(item)))
                if time.perf_counter() > deadline:
                    break
            after = resident(source.paths)
        if before.pages_resident is None or after.pages_resident is None:
            return _reads(
                seconds,
                read_bytes=None,
                reason=f"resident pages cannot be counted: {before.reason or after.reason}",
            )
        grown = max(0, after.pages_resident - before.pages_resident)
        reason = f"{grown} pages came into the page cache meanwhile" if grown else ""
        reads = _reads(seconds, read_bytes=grown * PAGE_BYTES / len(seconds), reason=reason)
        if reads.verified:
            break
    return reads


def _reads(seconds: Sequence[float], *, read_bytes: float | None, reason: str = "") -> Reads:
    slow_s = sorted(seconds)[min(len(seconds) - 1, int(_SLOW * len(seconds)))]
    return Reads(
        samples=len(seconds),
        median_s=statistics.median(seconds),
        p90_s=slow_s,
        read_bytes=read_bytes,
        verified=not reason,
        reason=reason,
    )
