"""Detect whether a cache below this kernel (a hypervisor's, a controller's) answers cold reads.

Bytes that were not read since boot are read past the page cache, and then once
more. Without a cache below, both reads take equally long. The probe uses up its
candidates, so the bytes it read and its findings are stored per boot and device.
"""

import contextlib
import dataclasses
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storebench.probes.direct_reads import Request, own_device_bytes, read_direct
from storebench.probes.machine import attached, loop_image
from storebench.probes.mounts import IN_MEMORY, Mount, mount_of
from storebench.probes.remembered import recall, remember
from storebench.probes.unread import Candidates, Range, boot_id, boot_time_s, unread_ranges
from storebench.results import BelowCache, CacheFacts
from storebench.stats import Comparison, compare
from storebench.system.user_cache import user_cache_folder
from storebench.units import Better

READ_BYTES = 64 << 10
SINGLES = 256
"""Many, because most may already be cached below: then only a few slow reads stand out among fast ones."""
GROUPS, IN_FLIGHT = 24, 16
SEARCH_S, READ_S = 0.6, 1.2

SEEN_RATIO = 1.1
"""First reads that are proven to take at least this many times as long show a cache."""
NOT_SEEN_RATIO = 1.25
"""First and second reads that are proven to differ by less than this factor show none."""

FEWEST_SINGLES, FEWEST_GROUPS = 12, 5
MOST_TRIES = 3
"""Per boot and device; further attempts would only use up candidates."""

CACHED_LOOP = "its loop device reads through this kernel's page cache, from which the image is not evicted"
"""Reason of a verdict that needs no measurement."""

STATE_FILE = "below.json"

_BLOCK = 8
"""Number of ranges that are read once before any is read again, so that no small buffer holds the first reads."""
_ALPHA = 0.025
"""Error of each of the two tests, so that both intervals hold together with 95% probability."""


@dataclass(frozen=True, kw_only=True)
class Below:
    """Findings about caches below this kernel; the fields are those of `CacheFacts`.

    Attributes
    ----------
    remembered
        False if the state could not be stored, so that the next call measures again.
    """

    verdict: BelowCache
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    remembered: bool = True


@dataclass(frozen=True, kw_only=True)
class Touches:
    """Seconds of the first and of the second read of the same bytes.

    Attributes
    ----------
    first, second
        Of each range, one read at a time.
    first_groups, second_groups
        Of each group of `IN_FLIGHT` ranges, all in flight at once.
    """

    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    first_groups: list[float] = field(default_factory=list)
    second_groups: list[float] = field(default_factory=list)


class _UnknownError(Exception):
    """Nothing is known about this device; the text says why."""


def below_cache(
    folder: Path | str,
    *,
    state: Path | None = None,
    fallback: Path | None = None,
    since_s: float | None = None,
) -> Below:
    """Return the findings about caches below this kernel, for the device of `folder`.

    The first call of a boot searches and reads for up to two seconds; later calls
    return its findings. Nothing is written but the state file.

    Parameters
    ----------
    state
        Folder of the state file; the user's cache folder by default.
    fallback
        Folder of the state file if that one cannot be written.
    since_s
        Use files that were neither changed nor read since this time, in seconds since 1970; since boot by default.
    """
    folder = _holder(Path(folder))
    mount = mount_of(folder)
    if mount.fstype in IN_MEMORY:
        return _unknown(f"{mount.fstype} has no device")
    if mount.device is None:
        return _unknown(f"{mount.fstype} on {mount.point} names no block device")
    places = filter(None, (state or user_cache_folder(), fallback))
    kept = _Kept.read([place / STATE_FILE for place in places], device=attached(mount.device))
    if kept.found and (kept.found.verdict is not BelowCache.UNKNOWN or kept.tries >= MOST_TRIES):
        return _certain(kept.found, mount)
    since = boot_time_s() if since_s is None else since_s
    used = set(kept.used)
    below = _looked(folder, mount, used, since)
    kept = dataclasses.replace(kept, tries=kept.tries + 1, used=sorted(used), found=below)
    return _certain(dataclasses.replace(below, remembered=kept.write()), mount)


def _holder(folder: Path) -> Path:
    """Return the folder whose device answers: a loop device with direct I/O passes reads on to its image's device."""
    image, direct = loop_image(mount_of(folder).device) or (None, False)
    return image.parent if image is not None and direct else folder


def _certain(below: Below, mount: Mount) -> Below:
    """Return the findings, or that there is a cache if the mount's loop device reads through the page cache."""
    loop = loop_image(mount.device)
    if below.verdict is BelowCache.SEEN or loop is None or loop[1]:
        return below
    return Below(verdict=BelowCache.SEEN, reason=CACHED_LOOP, remembered=below.remembered)


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """Stored findings of this boot's earlier calls about one device."""

    paths: list[Path]
    boot: str | None
    device: str
    others: dict[str, Any] = field(default_factory=dict)
    tries: int = 0
    used: list[Range] = field(default_factory=list)
    found: Below | None = None

    @classmethod
    def read(cls, paths: list[Path], device: str) -> "_Kept":
        blank = cls(paths=paths, boot=boot_id(), device=device)
        for path in paths:
            text = recall(path)
            # A file of an earlier boot, or written by something else, counts as missing.
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                if blank.boot is None or text["boot_id"] != blank.boot:
                    continue
                others = dict(text["devices"])
                mine = others.pop(device, None)
                if mine is None:
                    return dataclasses.replace(blank, others=others)
                fields = mine["found"] | {"verdict": BelowCache(mine["found"]["verdict"])}
                return dataclasses.replace(
                    blank,
                    others=others,
                    tries=int(mine["tries"]),
                    used=[(str(name), int(at)) for name, at in mine["used"]],
                    found=Below(**fields),
                )
        return blank

    def write(self) -> bool:
        """Write the state, and return whether one of the files could be written."""
        fields = dataclasses.asdict(self.found) if self.found else {}
        mine = {"tries": self.tries, "used": self.used, "found": fields}
        text = {"boot_id": self.boot, "devices": self.others | {self.device: mine}}
        return any(not remember(path, text) for path in self.paths)


def _unknown(reason: str) -> Below:
    return Below(verdict=BelowCache.UNKNOWN, reason=reason)


def _looked(folder: Path, mount: Mount, used: set[Range], since_s: float) -> Below:
    """Find ranges, read them twice and decide; the opened ranges are added to `used`."""
    wanted = SINGLES + GROUPS * IN_FLIGHT
    candidates = Candidates(folder=folder, mount=mount, size=READ_BYTES, since_s=since_s)
    ranges = unread_ranges(candidates, wanted, used=used, limit_s=SEARCH_S)
    if len(ranges) < FEWEST_SINGLES:
        return _unknown(
            f"only {len(ranges)} stretches of {READ_BYTES >> 10} KiB were found on {mount.point} that have not been"
            " read since boot"
        )
    try:
        with _opened(ranges) as requests:
            used.update(ranges)
            return decide(_touched(requests, READ_S))
    except _UnknownError as error:
        return _unknown(str(error))
    except OSError as error:
        return _unknown(f"reads with O_DIRECT do not work on {mount.point}: {error.strerror}")


@contextlib.contextmanager
def _opened(ranges: Sequence[Range]) -> Iterator[list[Request]]:
    fds: dict[str, int] = {}
    requests = []
    try:
        for path, offset in ranges:
            if path not in fds:
                fds[path] = _open(path)
            if _stored(fds[path], offset):
                requests.append((fds[path], offset))
        yield requests
    finally:
        for fd in fds.values():
            os.close(fd)


def _open(path: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_NOATIME)
    except PermissionError:  # for files of other users, the kernel always records the access
        return os.open(path, flags)


def _stored(fd: int, offset: int) -> bool:
    """Return whether a range is not a hole; afterwards the kernel knows its location on disk, without reading it."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA) == offset and os.lseek(fd, offset, os.SEEK_HOLE) >= (
            offset + READ_BYTES
        )
    except OSError:
        return False


def _touched(requests: Sequence[Request], limit_s: float) -> Touches:
    touches = Touches()
    singles = len(requests) * SINGLES // (SINGLES + GROUPS * IN_FLIGHT)
    started, before = time.monotonic(), own_device_bytes()
    for half, depth in ((0.5, 1), (1.0, IN_FLIGHT)):
        part = requests[:singles] if depth == 1 else requests[singles:]
        step = _BLOCK if depth == 1 else IN_FLIGHT
        for at in range(0, len(part) - step + 1, step):
            if time.monotonic() - started > half * limit_s:
                break
            _twice(part[at : at + step], depth, touches)
    after = own_device_bytes()
    done = 2 * READ_BYTES * (len(touches.first) + IN_FLIGHT * len(touches.first_groups))
    if before is not None and after is not None and after - before < 0.9 * done:
        raise _UnknownError("reads with O_DIRECT were not served by a block device")
    return touches


def _twice(part: Sequence[Request], depth: int, touches: Touches) -> None:
    if depth == 1:
        touches.first.extend(_each(part))
        touches.second.extend(_each(part))
    else:
        touches.first_groups.append(read_direct(part, READ_BYTES, depth).seconds)
        touches.second_groups.append(read_direct(part, READ_BYTES, depth).seconds)


def _each(requests: Sequence[Request]) -> Iterator[float]:
    with mmap.mmap(-1, READ_BYTES) as buffer:  # O_DIRECT needs aligned memory
        buffer[:] = bytes(READ_BYTES)
        for fd, offset in requests:
            started = time.perf_counter()
            os.preadv(fd, [buffer], offset)
            yield time.perf_counter() - started


def decide(touches: Touches) -> Below:
    """Decide from paired durations: a cache is seen at either depth, and not seen only at both.

    Ratio and interval are those of the depth at which the first reads were slower.
    """
    if len(touches.first) < FEWEST_SINGLES:
        return _unknown(f"only {len(touches.first)} stretches could be read twice in {READ_S:g} s")
    comparisons = [compare(touches.second, touches.first, better=Better.LOWER, alpha=_ALPHA)]
    words = [f"{_times(comparisons[0])} one at a time ({len(touches.first)} pairs)"]
    if len(touches.first_groups) >= FEWEST_GROUPS:
        comparisons.append(
            compare(touches.second_groups, touches.first_groups, better=Better.LOWER, alpha=_ALPHA)
        )
        words.append(
            f"{_times(comparisons[1])} with {IN_FLIGHT} in flight ({len(touches.first_groups)} pairs)"
        )
    lows = [comparison.low if comparison.low is not None else 0.0 for comparison in comparisons]
    highs = [comparison.high if comparison.high is not None else float("inf") for comparison in comparisons]
    if max(lows) > SEEN_RATIO:
        verdict, telling = BelowCache.SEEN, comparisons[lows.index(max(lows))]
    else:
        alike = max(highs) < NOT_SEEN_RATIO and min(lows) > 1 / NOT_SEEN_RATIO
        verdict = BelowCache.NOT_SEEN if alike else BelowCache.UNKNOWN
        telling = comparisons[highs.index(max(highs))]
    reason = (
        f"first over second reads of {READ_BYTES >> 10} KiB that were not read since boot took {', '.join(words)}"
        " times as long"
    )
    return Below(verdict=verdict, ratio=telling.ratio, low=telling.low, high=telling.high, reason=reason)


def _times(comparison: Comparison) -> str:
    return f"{comparison.ratio:.2f} [{comparison.low:.2f}, {comparison.high:.2f}]"


def with_below(facts: CacheFacts, below: Below) -> CacheFacts:
    """Return a cell's cache facts with the findings about caches below."""
    return dataclasses.replace(
        facts,
        below=below.verdict,
        below_ratio=below.ratio,
        below_low=below.low,
        below_high=below.high,
        below_reason=below.reason,
    )


def below_sentence(facts: CacheFacts) -> str:
    """Return the meaning of "cold" for a record, in one plain sentence without a full stop."""
    start = "cold = not in this kernel's page cache"
    if facts.below is BelowCache.SEEN and facts.below_ratio is None:
        return f"cold = the store's files are not in the page cache, but a cache below them answers: {facts.below_reason}"
    if facts.below is BelowCache.UNKNOWN or facts.below_ratio is None:
        why = facts.below_reason or "it was not checked"
        return f"{start}; whether a cache below it answers is unknown: {why}"
    ratio = f"{facts.below_ratio:.2f} times [{facts.below_low:.2f}, {facts.below_high:.2f}]"
    reads = f"first reads take {ratio} as long as second reads"
    if facts.below is BelowCache.SEEN:
        return f"{start}; a cache below it answers: {reads}"
    return f"{start}; no cache below it was seen: {reads}"
