"""The checks of ``storebench doctor``: try what this machine can measure for stores in a folder, and say it plainly."""

import enum
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from storebench.errors import PLYVEL, UsageError, from_os_error, install_line
from storebench.probes import machine, page_cache
from storebench.probes.cgroup import (
    ControlGroup,
    MemoryGroup,
    ThrottledGroup,
    find_controller,
    memory_limit_bytes,
)
from storebench.probes.counters import CounterProbe
from storebench.probes.environment import version_of
from storebench.probes.loop_mount import why_not
from storebench.probes.machine import IN_MEMORY, Mount, mount_of
from storebench.probes.page_count import PAGE_BYTES, resident
from storebench.probes.rates import device_rates
from storebench.settings.words import CacheState
from storebench.system.kernel import load_kernel
from storebench.system.scratch import scratch_folder
from storebench.units import rounded_bytes

SCRATCH_BYTES = 8 << 20
DEFAULT_READ_AHEAD_KB = 128
LITTLE_SPACE_BYTES = 20 << 30


class CheckStatus(enum.StrEnum):
    """Whether something can be measured here."""

    OK = "ok"
    NOTE = "note"
    """It works, with a condition to know when reading the figures."""
    NO = "no"


OK, NOTE, NO = CheckStatus


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    state: CheckStatus
    found: str
    advice: str = ""


def checkup(folder: Path) -> list[Check]:
    """Try everything that storebench needs on `folder`'s filesystem, and look for sources of noise."""
    if not folder.is_dir():
        raise UsageError("no such folder", where=folder, hint="Name the folder of your stores.")
    mount = mount_of(folder)
    try:
        with scratch_folder("checkup", folder) as scratch, (scratch / "scratch").open("wb") as file:
            file.write(os.urandom(SCRATCH_BYTES))
            file.flush()
            os.fsync(file.fileno())
            checks = [*_page_cache(Path(file.name), mount), *_device(Path(file.name))]
    except OSError as error:
        raise from_os_error(error, folder) from None
    return [
        *checks,
        *_disk(mount),
        *_rights(folder),
        *_noise(),
        *_room(folder),
        *_libraries(),
    ]


def _check(name: str, works: object, found: str, advice: str, otherwise: CheckStatus = NOTE) -> Check:
    """Return the result of a check: without advice where it works."""
    return Check(name, OK, found) if works else Check(name, otherwise, found, advice)


def _page_cache(scratch: Path, mount: Mount) -> Iterator[Check]:
    residency = page_cache.warm([scratch])
    none = residency.reason or f"{residency.method} sees no page of a file that was just read"
    advice = "Cold and warm cells will be called unverified. Use Linux 6.5 or later and a local ext4 or xfs."
    found = f"{residency.method} works" if residency.frac else none
    yield _check("counting cached pages", residency.frac, found, advice, NO)
    page_cache.evict([scratch])
    keep = "Keep the stores on a disk to measure cold cells; warm ones are fine here."
    fail = "Cold cells will fail here: keep the stores on a local disk."
    for state, reach, advice in (
        (CacheState.COLD, resident, keep if mount.fstype in IN_MEMORY else fail),
        (CacheState.WARM, page_cache.warm, "Free some memory."),
    ):
        facts = page_cache.cache_facts(state, reach([scratch]), paths=[scratch])
        reached = facts.verdict == "verified"
        found = "reached and verified" if reached else facts.reason
        yield _check(f"{state} cells on {mount.fstype}", reached, found, advice, NO)


def _device(scratch: Path) -> Iterator[Check]:
    page_cache.evict([scratch])
    probe = CounterProbe([os.getpid()], scratch)
    probe.start()
    page_cache.warm([scratch])
    counters = probe.stop(SCRATCH_BYTES)
    none = "the kernel counted no byte of a file that was evicted and read again"
    for name, key in (
        ("device reads of a process", "device_read_bytes"),
        ("reads of the block device", "block_device_read_bytes"),
    ):
        counted = getattr(counters, key)
        found = "counted by the kernel" if counted else counters.reasons.get(key, none)
        yield _check(name, counted, found, "Read amplification cannot be measured here.", NO)
    reasons = device_rates([scratch], PAGE_BYTES, limit_s=0.03).reasons
    found = next(iter(reasons.values()), "O_DIRECT reads reach the device")
    yield _check("device ceilings", not reasons, found, "Cold figures will have no device ceiling.", NO)


def _disk(mount: Mount) -> Iterator[Check]:
    # A cache below may answer cold reads: a host's, or this kernel's below a loop device.
    loop = machine.loop_image(mount.device)
    found = "a virtual machine: its host may cache the disk" if machine.virtual_machine() else ""
    if loop and not loop[1]:
        found = "the loop device reads through this kernel's page cache, from which its image is not evicted"
    if found:
        advice = "Cold figures may describe that cache (docs/methodology.md)."
        yield Check("cache below this kernel", NOTE, found, advice)
    disk = machine.block_device(mount)
    value = disk.get("read_ahead_kb")
    if value is None:
        return
    usual = int(value) == DEFAULT_READ_AHEAD_KB
    other = f"{value} KiB on {disk['name']}; Linux's default is {DEFAULT_READ_AHEAD_KB}"
    yield _check(
        "read-ahead",
        usual,
        f"{value} KiB, Linux's default" if usual else other,
        "It determines much of a cold figure: more helps mapped stores that are read whole, and multiplies the "
        "cost of reading part of one. Compare cold figures only with machines that have the same setting "
        f"(as root: echo {DEFAULT_READ_AHEAD_KB} > /sys/block/{disk['name']}/queue/read_ahead_kb).",
    )


def _rights(folder: Path) -> Iterator[Check]:
    """Check what needs root or a delegated control group."""
    root = os.access(page_cache.DROP_CACHES, os.W_OK)
    advice = "Not needed: files are evicted one by one, and their pages counted."
    yield _check("--drop-caches", root, "allowed (root)" if root else "needs root", advice)
    limits: tuple[tuple[str, type[ControlGroup], str], ...] = (
        ("limiting the page cache", MemoryGroup, 'Cells with cache = "limited"'),
        ("emulating slower storage", ThrottledGroup, "Cells with a tier"),
    )
    for name, kind, cells in limits:
        try:
            refusal, found = "", f"works (control groups, version {find_controller(kind).version})"
        except UsageError as error:
            refusal = found = error.what
        controller = kind.CONTROLLERS[2]
        advice = f"{cells} cannot be run. As root they can, where the {controller} controller is writable."
        yield _check(name, not refusal, found, advice)
    reason = why_not(folder)
    advice = "Cells with their own read-ahead cannot run; all others can."
    yield _check("read-ahead per cell", not reason, reason or "works (loop devices with direct I/O)", advice)


def _noise() -> Iterator[Check]:
    """Check what makes figures vary from time to time."""
    damon = machine.damon() or "cannot be read"
    quiet = damon in ("off", "cannot be read")
    found = damon if quiet else f"on ({damon}): this machine reclaims idle pages by itself"
    advice = (
        "A store that was warm a minute ago may not be; warm cells count pages, and fail if too few remain."
    )
    yield _check("DAMON reclaim", quiet, found, advice)
    swap = psutil.swap_memory().total
    advice = "Memory backends may be swapped out: check their major faults, or run 'swapoff -a' as root."
    yield _check("swap", not swap, rounded_bytes(swap) if swap else "none", advice)
    governor = machine.governor()
    fixed = governor in (None, "performance")
    found = (governor or "not controlled from here") if fixed else f"governor {governor}"
    advice = "Speeds vary with it. As root: cpupower frequency-set -g performance."
    yield _check("CPU frequency", fixed, found, advice)
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    advice = "Other work disturbs the figures: stop it, or use more replicates."
    yield _check("load", load <= 0.5 * cores, f"{load:.1f} on {cores} cores", advice)


def _room(folder: Path) -> Iterator[Check]:
    free = shutil.disk_usage(folder).free
    advice = "'storebench bench SCENARIO --dry-run' says how much a scenario writes."
    yield _check("free space", free >= LITTLE_SPACE_BYTES, f"{rounded_bytes(free)} in {folder}", advice)
    total, limit = psutil.virtual_memory().total, memory_limit_bytes()
    whole = limit is None or limit >= total
    found = rounded_bytes(total if limit is None else min(limit, total))
    found += "" if whole else " by a control group, page cache included"
    advice = "A warm store must fit into that together with the training process."
    yield _check("memory", whole, found, advice)


def _libraries() -> Iterator[Check]:
    version = version_of("torch")
    if version is None:
        yield Check("torch", NO, "not installed", "Run: pip install storebench.")
    else:
        import torch

        cuda = torch.cuda.is_available()
        found = f"{version}, {torch.cuda.get_device_name() if cuda else 'CPU only'}"
        advice = (
            "An accelerator can be emulated with '--compute emulated:MILLISECONDS'; every result says so."
        )
        yield _check("torch", cuda, found, advice)
    built = load_kernel() is not None
    advice = "Batches are cropped and copied by numpy, which is slower. Install a C compiler, and storebench again."
    yield _check("compiled kernel", built, "loaded" if built else "not built", advice)
    for name, extra in (("h5py", "hdf5"), (PLYVEL, "leveldb"), ("lmdb", "lmdb")):
        version = version_of(name)
        advice = f"For the format {extra}, run: {install_line(name)}."
        yield _check(name, version, version or "not installed", advice, NO)
