"""Inspect a file of any program: find its samples, read random ones, try settings, in a separate process."""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from storebench.datasets.base import HF_PREFIX
from storebench.datasets.containers.base import Container
from storebench.datasets.containers.find import find_container
from storebench.datasets.containers.pixels import is_pickle
from storebench.datasets.images import suffix_of
from storebench.errors import CorruptDataError
from storebench.probes.page_cache import ask_to_evict, cache_facts, evict, resident
from storebench.probes.page_count import PAGE_BYTES
from storebench.record.schema import CacheVerdict
from storebench.settings.words import CacheState, Split
from storebench.system.isolated import run_isolated
from storebench.system.scratch import scratch_folder

SAMPLES = 200  # random samples to read
BUDGET_S = 1.5  # about the time of all cold reads, and of all warm ones
LIMIT_S = 120.0
MEMORY_BYTES = 2 << 30
SEED = 0  # the seed of all draws, so that two inspections of a file read the same samples
MOST_READ_BYTES = 256 << 20  # larger chunks, row groups and samples are not read
MOST_RESIDENT_FRAC = 0.05
LEAST_RESIDENT_PAGES = 64  # may stay in any case: a library maps some around each page that it touches

# A file with fewer pages has no cold figure: the pages that may be resident are too large a part of it.
FEWEST_PAGES = 4 * LEAST_RESIDENT_PAGES

COPY_BYTES, COPY_ROWS = 32 << 20, 5_000  # most of a file that is copied, to try a setting of its writer

# Prepare the read of one item; the returned function reads it into memory, and is timed.
Prepare = Callable[[Any], Callable[[], Any]]


@dataclass(frozen=True, kw_only=True)
class Reads:
    """Timed random reads in one state of the page cache; `reason` says why there are none, or no verified ones."""

    samples: int = 0
    median_s: float | None = None  # per sample
    read_bytes: float | None = None  # into the page cache per cold read, on average
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Another value of a setting, and how many times as fast it is as the file is stored; None if not measured."""

    setting: str
    now: str
    tried: str
    cold: float | None
    warm: float | None


@dataclass(frozen=True, kw_only=True)
class SampleSet:
    """The samples of a file: the records of LMDB, a data set, or many alike data sets."""

    name: str
    samples: int
    exact: bool = True  # whether they were counted, and not estimated
    layout: str
    others: str = ""  # the rest of the file
    advice: str | None = None
    unread: str = ""  # why no sample is read
    content: str = ""  # of the samples that were read, and their sizes: shortest, median, longest
    sample_bytes: tuple[int, int, int] | None = None
    cold: Reads | None = None
    warm: Reads | None = None
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """The means to read random samples: the file, what opens the library, and the items in random order."""

    path: Path
    open: Callable[[], AbstractContextManager[Prepare]]
    items: Sequence[Any]
    maps: bool = False  # whether the library maps the file
    batch: int = 1  # samples of each item


class Setting(NamedTuple):
    """A setting of a reader or writer: its value now, another one, and what reads samples with that."""

    name: str
    now: str
    tried: str
    source: Source


class Found(NamedTuple):
    """Samples before any is read; `settings` may make copies when it is iterated."""

    part: SampleSet
    source: Source
    settings: Iterable[Setting] = ()


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Findings about one file."""

    path: Path
    kind: str
    file_bytes: int
    resident_frac: float | None  # in the page cache before it was inspected
    part: SampleSet | None  # its samples, or those with the most bytes; None without any


def drawn(items: Sequence[Any], count: int) -> list[Any]:
    """Return up to `count` of the items at random, each once, always the same ones of the same items."""
    return random.Random(SEED).sample(items, min(count, len(items)))


def too_large(what: str, nbytes: int) -> str:
    """Return the reason why no sample is read where one read needs so many bytes; "" for few."""
    return (
        f"{what} has {nbytes / 1e6:,.0f} MB, and a read needs it as a whole"
        if nbytes > MOST_READ_BYTES
        else ""
    )


def in_batches(source: Source, size: int = 64) -> Iterator[Setting]:
    """Yield the setting of a call for several samples; its items are lists."""
    items = [source.items[at : at + size] for at in range(0, len(source.items) - size + 1, size)]
    if items:
        yield Setting("samples per call", "1", f"{size}", replace(source, items=items, batch=size))


def inspect(text: str | Path, *, samples: int = SAMPLES) -> Inspection:
    """Return the layout of a file, or of the first one of several, and the cost of a random sample of it."""
    several = find_container(str(text).removeprefix(HF_PREFIX), Split.TRAIN)
    container = find_container(str(several.files[0]), Split.TRAIN)
    container.asked = several.asked
    path = container.files[0]
    try:
        return run_isolated(
            partial(_findings, container, samples),
            doing=f"reading it as {container.kind}",
            where=path,
            limit_s=LIMIT_S,
            memory_bytes=MEMORY_BYTES,
        )
    except OSError as error:
        raise CorruptDataError(f"it cannot be read ({error.strerror or error})", where=path) from error


def _findings(container: Container, samples: int) -> Inspection:
    path = container.files[0]
    status = path.stat()
    # A sparse file has holes, which are never resident.
    stored = min(status.st_size, 512 * status.st_blocks) or status.st_size
    frac = resident([path]).frac
    with scratch_folder("trials") as folder:
        found = _found(container, samples, folder)
        part = found.part if found else None
        if found and found.source.items and not found.part.unread:
            part = _measured(found)
    return Inspection(
        path=path,
        kind=container.kind,
        file_bytes=stored,
        resident_frac=None if frac is None else min(1.0, frac * status.st_size / max(1, stored)),
        part=part,
    )


def _found(container: Container, samples: int, folder: Path) -> Found | None:
    # Each imports a library that is large or may be missing.
    if container.kind == "LMDB":
        from storebench.stores.lmdb_files import lmdb_samples

        return lmdb_samples(container.files[0], samples)
    if container.kind == "HDF5":
        from storebench.stores.hdf5_files import hdf5_samples

        return hdf5_samples(container, samples, folder)
    from storebench.stores.container_files import container_samples

    return container_samples(container, samples, folder)


def _measured(found: Found) -> SampleSet:
    """Return the samples with figures: reads as the file is stored, cold and warm, and those of other settings."""
    cold, (warm, contents, sizes) = _cold(found.source, BUDGET_S), _warm(found.source, BUDGET_S)
    trials = []
    for name, now, value, source in found.settings:
        gains = [_gain(cold, _cold(source, BUDGET_S / 3)), _gain(warm, _warm(source, BUDGET_S / 3)[0])]
        if any(gains):
            trials.append(Trial(setting=name, now=now, tried=value, cold=gains[0], warm=gains[1]))
    kinds = [kind for kind, _ in contents.most_common(3)]
    return replace(
        found.part,
        content=" or ".join(kind or "other bytes" for kind in kinds) if any(kinds) else "",
        sample_bytes=(min(sizes), int(statistics.median(sizes)), max(sizes)),
        cold=cold,
        warm=warm,
        trials=tuple(trials),
    )


def _gain(before: Reads, after: Reads) -> float | None:
    return before.median_s / after.median_s if before.median_s and after.median_s else None


def _cold(source: Source, budget_s: float) -> Reads:
    """Read items, each with the file evicted before."""
    paths = [source.path]
    method, before = evict(paths), resident(paths)
    facts = cache_facts(CacheState.COLD, before, paths=paths, how=method)
    if facts.verdict != CacheVerdict.VERIFIED:
        return Reads(reason=facts.reason)
    if before.pages_total < FEWEST_PAGES:
        small = f"too small a file, {before.pages_total} pages of at least {FEWEST_PAGES}"
        return Reads(reason=f"{small}: after a few reads all of it is in memory")
    most = max(LEAST_RESIDENT_PAGES, MOST_RESIDENT_FRAC * before.pages_total)
    seconds, pages = list[float](), list[int]()
    *items, last = source.items
    with ExitStack() as stack, source.path.open("rb") as file:
        prepare: Prepare | None = None
        for item in _within(items or [last], budget_s):
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
            seconds.append(_timed(read) / source.batch)
            pages.append(max(0, (resident(paths).pages_resident or 0) - held))
    if not seconds:
        return Reads(reason="opening the file brings too much of it into the page cache")
    read_bytes = statistics.fmean(pages) * PAGE_BYTES
    return Reads(samples=len(seconds), median_s=statistics.median(seconds), read_bytes=read_bytes)


def _warm(source: Source, budget_s: float) -> tuple[Reads, Counter[str], list[int]]:
    """Read the items to fill the page cache, then time their reads; return those, the contents and all sizes."""
    contents, sizes = Counter[str](), list[int]()
    with source.open() as prepare:
        for item in _within(source.items, budget_s):
            value = prepare(item)()
            content = _bytes_of(value)
            contents[_content_of(value, content)] += 1
            sizes.append(len(content))
        before = resident([source.path]).pages_resident
        timed = _within(source.items[: len(sizes)], budget_s)
        seconds = [_timed(prepare(item)) / source.batch for item in timed]
        after = resident([source.path]).pages_resident
    reason = "resident pages cannot be counted"
    if before is not None and after is not None:
        reason = f"{after - before} pages came into the page cache meanwhile" if after > before else ""
    reads = Reads(samples=len(seconds), median_s=statistics.median(seconds), reason=reason)
    return reads, contents, sizes


def _within(items: Sequence[Any], budget_s: float) -> Iterator[Any]:
    """Yield items until the time is up, at least one."""
    deadline = time.perf_counter() + budget_s
    for item in items:
        yield item
        if time.perf_counter() > deadline:
            break


def _timed(read: Callable[[], Any]) -> float:
    start = time.perf_counter()
    read()
    return time.perf_counter() - start


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, list) or (isinstance(value, np.ndarray) and value.dtype.hasobject):
        return b"".join(map(_bytes_of, value if isinstance(value, list) else value.ravel().tolist()))
    if isinstance(value, np.ndarray | np.generic):
        return value.tobytes()
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value or b""


_KINDS = {".jpg": "JPEG", ".png": "PNG", ".webp": "WebP", ".gif": "GIF", ".bmp": "BMP", ".tif": "TIFF"}
_WITHIN = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"WEBP": "WebP"}  # in a record or a pickle


def _content_of(value: Any, content: bytes) -> str:
    """Return the type of pixels, or the kind of other bytes by the first ones. Nothing is unpickled or decoded."""
    if isinstance(value, np.ndarray) and value.ndim > 1:
        return f"{value.dtype} {'x'.join(map(str, value.shape))}"
    if kind := _KINDS.get(suffix_of(content)):
        return kind
    inner = next((kind for start, kind in _WITHIN.items() if start in content[:64]), "")
    if is_pickle(content):
        return f"pickled {inner}".strip()
    return f"a record with {inner}" if inner else ""
