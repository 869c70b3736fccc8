"""Inspect a file of any program: find its samples, read random ones, try settings, in a separate process."""

import copy
import itertools
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from storebench.datasets.base import HF_PREFIX, Image
from storebench.datasets.containers.base import Container, NamedFields
from storebench.datasets.containers.recognize import find_container
from storebench.datasets.images import suffix_of
from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.probes.page_cache import ask_to_evict, cache_facts, evict
from storebench.probes.page_count import PAGE_BYTES, resident
from storebench.record.schema import CacheVerdict
from storebench.settings.words import CacheState, Split
from storebench.system.isolated import run_isolated
from storebench.system.scratch import scratch_folder

SAMPLES = 200  # random samples to read
BUDGET_S = 1.5  # about the time of all cold reads, and of all warm ones
SCAN_S = 5.0  # a longer scan of tar, TFRecord or LMDB ends early, and the number of samples is estimated
LIMIT_S = 120.0
MEMORY_BYTES = 2 << 30
SEED = 0  # of the draw, so that two inspections of a file read the same samples
MOST_READ_BYTES = 256 << 20  # larger chunks and row groups are not read
MOST_RESIDENT_FRAC = 0.05
LEAST_RESIDENT_PAGES = 64  # may stay in any case: a library maps some around each page that it touches

# A file with fewer pages has no cold figure: the pages that may be resident are too large a part of it.
FEWEST_PAGES = 4 * LEAST_RESIDENT_PAGES

_MAPPED = ("LMDB", "Arrow")  # mapped pages cannot be evicted
_OPENED_ANEW = (
    *_MAPPED,
    "HDF5",
)  # for each read: closing empties HDF5's cache of chunks, of no use in a large file


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
class Inspection:
    """Findings about one file."""

    path: Path
    kind: str
    file_bytes: int
    resident_frac: float | None  # in the page cache before it was inspected
    samples: int
    exact: bool  # whether they were counted, and not estimated
    layout: str
    notes: tuple[str, ...]  # on what was left out
    advice: str | None
    unread: str  # why no sample was read
    content: str = ""  # of the samples that were read, and their sizes: shortest, median, longest
    sample_bytes: tuple[int, int, int] | None = None
    cold: Reads | None = None
    warm: Reads | None = None
    trials: tuple[Trial, ...] = ()


def inspect(text: str | Path, *, samples: int = SAMPLES) -> Inspection:
    """Return the layout of a file, or of the first one of several, and the cost of a random sample of it."""
    container = first_of(text)
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


def first_of(text: str | Path, asked: NamedFields | None = None) -> Container:
    """Return the container of a file, or of the first one of several, which is not looked at yet."""
    several = find_container(str(text).removeprefix(HF_PREFIX), Split.TRAIN)
    container = find_container(str(several.files[0]), Split.TRAIN)
    container.asked = asked or several.asked
    return container


def _findings(container: Container, samples: int) -> Inspection:
    from storebench.stores.layouts import estimated, layout_of  # it imports a large library

    path = container.files[0]
    status = path.stat()
    # A sparse file has holes, which are never resident.
    stored = min(status.st_size, 512 * status.st_blocks) or status.st_size
    frac = resident([path]).frac
    scanned = copy.copy(container)
    scanned.deadline = time.perf_counter() + SCAN_S
    scanned.scan()
    exact, count = not scanned.ended_early, len(scanned.classes.labels)
    if not count:
        raise DataNotFoundError("holds no samples", where=path, hint="Name another file.")
    layout = layout_of(scanned)
    unread = f"a read needs {layout.least_bytes / 1e6:,.0f} MB as a whole"
    inspection = Inspection(
        path=path,
        kind=container.kind,
        file_bytes=stored,
        resident_frac=None if frac is None else min(1.0, frac * status.st_size / max(1, stored)),
        samples=count if exact else estimated(scanned),
        exact=exact,
        layout=layout.words,
        notes=tuple(scanned.notes),
        advice=layout.advice,
        unread=unread if layout.least_bytes > MOST_READ_BYTES else "",
    )
    items = random.Random(SEED).sample(range(count), min(count, samples))
    container = copy.copy(scanned)
    del scanned  # nothing is open
    return inspection if inspection.unread or not items else _measured(inspection, container, items)


def _measured(inspection: Inspection, container: Container, items: list[int]) -> Inspection:
    """Return the findings with figures: reads as the file is stored, cold and warm, and those of other settings."""
    from storebench.stores.layouts import settings_of

    one_each = [[item] for item in items]
    cold = _reads(container, one_each, BUDGET_S, cold=True)
    sizes, contents = list[int](), Counter[str]()
    reader = copy.copy(container)
    for item in _within(items, BUDGET_S):  # fills the page cache
        [value] = reader.read_many([item])
        sizes.append(len(value) if isinstance(value, bytes) else value.nbytes)
        contents[_content_of(value)] += 1
    del reader
    warm = _reads(container, one_each[: len(sizes)], BUDGET_S, cold=False)
    trials = []
    with scratch_folder("trials") as folder:
        for name, now, new, tried, batch in settings_of(container, folder):
            order = items if tried.files == container.files else range(len(tried.classes.labels))
            drawn = random.Random(SEED).sample(order, len(order))
            batches = [drawn[at : at + batch] for at in range(0, len(drawn) - batch + 1, batch)]
            gains = [
                _gain(before, _reads(tried, batches, BUDGET_S / 3, cold=before is cold))
                for before in (cold, warm)
            ]
            if any(gains):
                trials.append(Trial(setting=name, now=now, tried=new, cold=gains[0], warm=gains[1]))
    return replace(
        inspection,
        content=" or ".join(kind for kind, _ in contents.most_common(3)),
        sample_bytes=(min(sizes), int(statistics.median(sizes)), max(sizes)),
        cold=cold,
        warm=warm,
        trials=tuple(trials),
    )


def _gain(before: Reads, after: Reads) -> float | None:
    return before.median_s / after.median_s if before.median_s and after.median_s else None


def _reads(container: Container, batches: Sequence[Sequence[int]], budget_s: float, *, cold: bool) -> Reads:
    """Read batches of samples as a dataset does; if `cold`, each with the files evicted before."""
    files = container.files_of(itertools.chain.from_iterable(batches))
    if not batches or (cold and (why_not := not_cold(files))):
        return Reads(reason=why_not if batches else "too few samples")
    before = resident(files)
    most = max(LEAST_RESIDENT_PAGES, MOST_RESIDENT_FRAC * before.pages_total)
    seconds, pages, reader = list[float](), list[int](), copy.copy(container)
    for number, batch in enumerate(_within(batches, budget_s)):
        if container.kind in _OPENED_ANEW:
            del reader
            reader = copy.copy(container)
            _ = reader.handle
        if container.kind not in _MAPPED and (cold or not number):
            reader.read_many(
                batches[-1]
            )  # it has read the library's tables then, as in the middle of an epoch
        paths = container.files_of(batch) if cold else []
        held = _held(paths, most)
        if held > most:
            break
        start = time.perf_counter()
        reader.read_many(batch)
        seconds.append((time.perf_counter() - start) / len(batch))
        if cold:
            pages.append(max(0, (resident(paths).pages_resident or 0) - int(held)))
    if not seconds:
        return Reads(reason="opening the file brings too much of it into the page cache")
    reads = Reads(samples=len(seconds), median_s=statistics.median(seconds))
    if cold:
        return replace(reads, read_bytes=statistics.fmean(pages) * PAGE_BYTES)
    grown = (resident(files).pages_resident or 0) - (before.pages_resident or 0)
    return replace(reads, reason=f"{grown} pages came into the page cache meanwhile" if grown > 0 else "")


def _held(paths: list[Path], most: float) -> float:
    """Evict files, and return the pages that stay; those that read-ahead is still reading go a moment later."""
    held = 0.0
    for _ in range(10 if paths else 0):
        for path in paths:
            with path.open("rb") as file:
                ask_to_evict(file.fileno())
        pages = resident(paths).pages_resident
        held = math.inf if pages is None else pages
        if held <= most:
            break
        time.sleep(0.01)
    return held


def not_cold(files: list[Path]) -> str:
    """Evict files; return the reason why no read of them is known to be cold, or ""."""
    method, before = evict(files), resident(files)
    facts = cache_facts(CacheState.COLD, before, paths=files, how=method)
    if facts.verdict != CacheVerdict.VERIFIED:
        return facts.reason
    if before.pages_total < FEWEST_PAGES:
        small = f"too small a file, {before.pages_total} pages of at least {FEWEST_PAGES}"
        return f"{small}: after a few reads all of it is in memory"
    return ""


def _within(items: Sequence[Any], budget_s: float) -> Iterator[Any]:
    """Yield items until the time is up, at least one."""
    deadline = time.perf_counter() + budget_s
    for item in items:
        yield item
        if time.perf_counter() > deadline:
            break


def _content_of(value: bytes | Image) -> str:
    if isinstance(value, bytes):
        return suffix_of(value)[1:].upper().replace("JPG", "JPEG")
    return f"{value.dtype} {'x'.join(map(str, value.shape))}"
