"""Evict and fill the page cache for a store's files, and check by counting whether a cell got its requested state."""

import errno
import functools
import os
import time
from pathlib import Path

from storebench.errors import CellFailedError
from storebench.filesystem import sync_file_system
from storebench.probes.machine import IN_MEMORY, mount_of
from storebench.probes.page_count import PAGE_BYTES, Residency, opened, pages_of, resident, resident_by_file
from storebench.record.schema import CacheFacts, CacheVerdict
from storebench.settings.words import BOUNDED_STATES, CacheState
from storebench.system.file_tree import Paths, names_of
from storebench.system.scratch import scratch_folder

# Share of a store's pages that may be resident while it counts as cold.
COLD_MAX_FRAC = 0.01

# Most pages of a store that an open reader maps, 256 KiB: only below 25 MiB is that too much for a cold store.
FEW_PAGES = 64

# Share of a store's pages that must be resident for it to count as warm.
WARM_MIN_FRAC = 0.99

# With less than this resident, a store is read again, up to `WARM_PASSES` times in all.
WARM_ENOUGH_FRAC = 0.995

# Some machines reclaim idle pages by themselves (DAMON); reclaimed pages are read again, a few times.
WARM_PASSES = 5

DROP_CACHES = "/proc/sys/vm/drop_caches"

_READ_BYTES = 4 << 20
_TRIAL_BYTES = 4 << 20
# Pages under writeback cannot be evicted yet; the waits add up to about three seconds.
_EVICT_WAITS_S = (0.0, 0.02, 0.1, 0.3, 0.6, 1.0, 1.0)
_MANY_FILES = 64


def evict(paths: Paths) -> str:
    """Write files back and evict them from the page cache; return the method ("fadvise")."""
    if paths:
        _evict(paths)
    return "fadvise"


def ask_to_evict(fd: int) -> None:
    """Ask the kernel once, without waiting, to evict the clean pages of an open file; mapped pages stay."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def drop_caches() -> str:
    """Drop every clean, unused page, dentry and inode of the whole machine; return the method ("drop_caches")."""
    Path(DROP_CACHES).write_text("3\n", encoding="ascii")
    return "drop_caches"


def _evict(files: Paths) -> None:
    first, many = next(names_of(files)), len(files) > _MANY_FILES
    if many:
        with opened(first) as fd:
            _write_back(fd, first, all_files=True)
    if mount_of(first).fstype in IN_MEMORY:
        return
    left, pages = files, -1
    for attempt, wait_s in enumerate(_EVICT_WAITS_S):
        time.sleep(wait_s)
        for path in names_of(left):
            with opened(path) as fd:
                if attempt or not many:  # an fsync of a clean file may still commit the journal
                    _write_back(fd, path)
                ask_to_evict(fd)
        before, counts = pages, resident_by_file(left)
        left, pages = list(counts), sum(counts.values())
        # An open reader maps a few pages, which waiting does not remove; the store is cold with them.
        if not left or before == pages <= COLD_MAX_FRAC * pages_of(files):
            return


def _write_back(fd: int, path: str, *, all_files: bool = False) -> None:
    """Write back a file, or its filesystem: cheaper than a journal commit for each of many new files."""
    subject = f"the filesystem at {mount_of(path).point}" if all_files else "the file"
    try:
        sync_file_system(fd, path) if all_files else os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EINVAL):  # a read-only filesystem has nothing to write
            raise CellFailedError(
                f"{subject} cannot be written back ({os.strerror(error.errno or 0)})",
                where=path,
                hint="Check for device errors ('dmesg') and for a full disk, then convert again.",
            ) from error


def warm(paths: Paths, *, anew: bool = False) -> Residency:
    """Read each file from start to end; return the pages that are resident afterwards."""
    for _ in range(WARM_PASSES):
        _read(paths, anew=anew)
        anew, counted = False, resident(paths)
        if counted.frac is None or counted.frac >= WARM_ENOUGH_FRAC:
            break
    return counted


def _read(paths: Paths, *, anew: bool = False) -> None:
    """Read each file from start to end; if `anew`, evict those first that may have arrived in parts."""
    buffers, many = [bytearray(_READ_BYTES)], len(paths) > _MANY_FILES
    if anew and many:
        first = next(names_of(paths))
        with opened(first) as fd:
            _write_back(fd, first, all_files=True)
    for path in names_of(paths):
        with opened(path) as fd:
            if anew and os.fstat(fd).st_size > PAGE_BYTES:
                if not many:
                    _write_back(fd, path)
                ask_to_evict(fd)
            while os.readv(fd, buffers) == _READ_BYTES:
                pass


@functools.cache
def unreachable(folder: Path) -> dict[CacheState, str]:
    """Return the reasons why cache states cannot be had in a folder, by trying with a file."""
    with scratch_folder("attempt", folder) as scratch:
        trial = scratch / "trial"
        trial.write_bytes(bytes(_TRIAL_BYTES))
        evict([trial])
        left, kept = resident([trial]), warm([trial])
    fstype = mount_of(folder).fstype
    if kept.frac is not None and kept.frac < WARM_MIN_FRAC:
        reason = f"{fstype} keeps no pages of a file that is opened again (sshfs does with -o auto_cache)"
        return dict.fromkeys((*BOUNDED_STATES, CacheState.WARM), reason)
    if left.frac is not None and left.frac > COLD_MAX_FRAC:
        return dict.fromkeys(BOUNDED_STATES, f"{fstype} keeps the pages that it is asked to evict")
    return {}


def cache_facts(
    requested: CacheState,
    before: Residency,
    after: Residency | None = None,
    *,
    paths: Paths = (),
    how: str = "none",
    applies_to: str = "epoch",
) -> CacheFacts:
    """Decide from the count just before the first timed step whether a cell got its cache state."""
    verdict, reason = _verdict(requested, before)
    if verdict is CacheVerdict.FAILED:
        reason = f"{reason}; {_cause(requested, before, paths)}"
    methods = [part for part in (how, before.method) if part not in ("none", "unknown")]
    return CacheFacts(
        requested=requested,
        method="+".join(methods) or "none",
        resident_frac_before=before.frac,
        resident_frac_after=after.frac if after else None,
        verdict=verdict,
        applies_to=applies_to,
        reason=reason,
    )


def _verdict(requested: CacheState, before: Residency) -> tuple[CacheVerdict, str]:
    frac = before.frac
    if requested == CacheState.ANY:
        return CacheVerdict.UNVERIFIED, "no cache state was requested"
    if frac is None:
        return CacheVerdict.UNVERIFIED, f"resident pages cannot be counted: {before.reason}"
    if requested == CacheState.COLD and frac > COLD_MAX_FRAC:
        return CacheVerdict.FAILED, f"{frac:.1%} of the store was resident, cold allows {COLD_MAX_FRAC:.0%}"
    if requested == CacheState.WARM and frac < WARM_MIN_FRAC:
        return CacheVerdict.FAILED, f"{frac:.1%} of the store was resident, warm needs {WARM_MIN_FRAC:.0%}"
    return CacheVerdict.VERIFIED, ""


def _cause(requested: CacheState, before: Residency, paths: Paths) -> str:
    size = before.pages_total * PAGE_BYTES
    if requested == CacheState.WARM:
        free = os.sysconf("SC_AVPHYS_PAGES") * PAGE_BYTES
        return (
            f"likely cause: memory (the store has {size / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free, "
            "and a control group may allow less) or reclaim of idle pages (see 'storebench doctor')"
        )
    mount = mount_of(next(names_of(paths))) if paths else None
    if mount and mount.fstype in IN_MEMORY:
        return f"cold cannot exist on {mount.fstype} ({mount.point}): its files are in memory only"
    cause = "likely cause: another process reads, writes or maps these files"
    # An open reader needs a few pages, which are too many of a small store.
    few = (before.pages_resident or 0) <= FEW_PAGES
    return (
        f"{cause}; or the store is too small: use more samples (--size N extends a dataset)" if few else cause
    )
