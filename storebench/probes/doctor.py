"""The checks of ``storebench doctor``: try what this machine can measure for stores in a folder, and say it plainly."""

import enum
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storebench.errors import UsageError, from_os_error
from storebench.probes import machine, page_cache
from storebench.probes.cgroup import find_controller, memory_limit_bytes
from storebench.probes.counters import CounterProbe
from storebench.probes.environment import version_of
from storebench.probes.loop_mount import why_not
from storebench.probes.machine import IN_MEMORY, Mount, mount_of
from storebench.probes.rates import KEYS, STEADY_MOST, device_rates, loops, spread
from storebench.settings.words import CacheState
from storebench.system.scratch import scratch_folder
from storebench.units import rounded_bytes

SCRATCH_BYTES = 8 << 20
DEFAULT_READ_AHEAD_KB = 128
LITTLE_SPACE_BYTES = 20 << 30

SPEED_S = 2.0
SPEED_CORES_MOST = 4
"""Of a machine with more cores, some are tried: with few loops on each, nothing would be known of any."""

_OPTIONAL = {"h5py": "hdf5", "plyvel": "leveldb", "lmdb": "lmdb"}


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
    with _scratch(folder) as scratch:
        checks = [_counting(scratch), *_states(scratch, mount), *_counters(scratch), _direct(scratch)]
    return [
        *checks,
        *_below(mount),
        *_read_ahead(mount),
        _drop_caches(),
        _limit(),
        _own_device(folder),
        _reclaim(),
        _swap(),
        _governor(),
        _load(),
        *_speed(),
        _space(folder),
        _memory(),
        _torch(),
        *(_library(name, extra) for name, extra in _OPTIONAL.items()),
    ]


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    try:
        with scratch_folder("checkup", folder) as scratch, (scratch / "scratch").open("wb") as file:
            file.write(os.urandom(SCRATCH_BYTES))
            file.flush()
            os.fsync(file.fileno())
            yield Path(file.name)
    except OSError as error:
        raise from_os_error(error, folder) from None


def _counting(scratch: Path) -> Check:
    name, residency = "counting cached pages", page_cache.resident([scratch])
    if residency.frac:
        return Check(name, OK, f"{residency.method} works")
    why = residency.reason or f"{residency.method} sees no page of a file that was just written"
    advice = "Cold and warm cells will be called unverified. Use Linux 6.5 or later and a local ext4 or xfs."
    return Check(name, NO, why, advice)


def _states(scratch: Path, mount: Mount) -> Iterator[Check]:
    page_cache.evict([scratch])
    cold = page_cache.resident([scratch])
    keep = "Keep the stores on a disk to measure cold cells; warm ones are fine here."
    fail = "Cold cells will fail here: keep the stores on a local disk."
    advice = keep if mount.fstype in IN_MEMORY else fail
    yield _state(CacheState.COLD, scratch, cold, mount, advice)
    yield _state(CacheState.WARM, scratch, page_cache.warm([scratch]), mount, "Free some memory.")


def _state(
    state: CacheState, scratch: Path, counted: page_cache.Residency, mount: Mount, advice: str
) -> Check:
    name, facts = f"{state} cells on {mount.fstype}", page_cache.cache_facts(state, counted, paths=[scratch])
    if facts.verdict == "verified":
        return Check(name, OK, "reached and verified")
    return Check(name, NO, facts.reason, advice)


def _counters(scratch: Path) -> Iterator[Check]:
    page_cache.evict([scratch])
    probe = CounterProbe([os.getpid()], scratch)
    probe.start()
    page_cache.warm([scratch])
    counters = probe.stop(SCRATCH_BYTES)
    for name, key in (
        ("device reads of a process", "device_read_bytes"),
        ("reads of the block device", "block_device_read_bytes"),
    ):
        reason = counters.reasons.get(
            key, "the kernel counted no byte of a file that was evicted and read again"
        )
        if getattr(counters, key):
            yield Check(name, OK, "counted by the kernel")
        else:
            yield Check(name, NO, reason, "Read amplification cannot be measured here.")


def _direct(scratch: Path) -> Check:
    reasons = device_rates([scratch], page_cache.PAGE_BYTES, limit_s=0.03).reasons
    if not reasons:
        return Check("device ceilings", OK, "O_DIRECT reads reach the device")
    why = reasons.get(KEYS[0], next(iter(reasons.values())))
    return Check("device ceilings", NO, why, "Cold figures will have no device ceiling.")


def _below(mount: Mount) -> Iterator[Check]:
    """Tell of a cache below that may answer cold reads: a host's, or this kernel's below a loop device."""
    name, loop = machine.hypervisor(), machine.loop_image(mount.device)
    found = f"a virtual machine ({name}): its host may cache the disk" if name else ""
    if loop and not loop[1]:
        found = "the loop device reads through this kernel's page cache, from which its image is not evicted"
    if found:
        advice = "Cold figures may describe that cache (docs/methodology.md)."
        yield Check("cache below this kernel", NOTE, found, advice)


def _read_ahead(mount: Mount) -> Iterator[Check]:
    disk = machine.block_device(mount)
    value = disk.get("read_ahead_kb")
    if value is None:
        return
    if int(value) == DEFAULT_READ_AHEAD_KB:
        yield Check("read-ahead", OK, f"{value} KiB, Linux's default")
        return
    yield Check(
        "read-ahead",
        NOTE,
        f"{value} KiB on {disk['name']}; Linux's default is {DEFAULT_READ_AHEAD_KB}",
        "It determines much of a cold figure: more helps mapped stores that are read whole, and multiplies the "
        "cost of reading part of one. Compare cold figures only with machines that have the same setting "
        f"(as root: echo {DEFAULT_READ_AHEAD_KB} > /sys/block/{disk['name']}/queue/read_ahead_kb).",
    )


def _drop_caches() -> Check:
    if os.access(page_cache.DROP_CACHES, os.W_OK):
        return Check("--drop-caches", OK, "allowed (root)")
    advice = "Not needed: files are evicted one by one, and their pages counted."
    return Check("--drop-caches", NOTE, "needs root", advice)


def _limit() -> Check:
    name = "limiting the page cache"
    try:
        controller = find_controller()
    except UsageError as error:
        advice = 'Cells with cache = "limited" cannot be run. As root they can, where a memory controller is writable.'
        return Check(name, NOTE, error.what, advice)
    return Check(name, OK, f"works (control groups, version {controller.version})")


def _own_device(folder: Path) -> Check:
    name, reason = "read-ahead per cell", why_not(folder)
    if not reason:
        return Check(name, OK, "works (loop devices with direct I/O)")
    return Check(name, NOTE, reason, "Cells with their own read-ahead cannot run; all others can.")


def _reclaim() -> Check:
    damon = machine.damon()
    if damon in (None, "off"):
        return Check("DAMON reclaim", OK, "off" if damon else "cannot be read")
    found = f"on ({damon}): this machine reclaims idle pages by itself"
    advice = "A store that was warm a minute ago may not be. Pages of warm cells are counted, and the cell fails if too few remain."
    return Check("DAMON reclaim", NOTE, found, advice)


def _swap() -> Check:
    size = machine.memory_bytes("SwapTotal")
    if not size:
        return Check("swap", OK, "none")
    advice = "Memory backends may be swapped out: check their major faults, or run 'swapoff -a' as root."
    return Check("swap", NOTE, rounded_bytes(size), advice)


def _governor() -> Check:
    governor = machine.governor()
    if governor in (None, "performance"):
        return Check("CPU frequency", OK, governor or "not controlled from here")
    advice = "Speeds vary with it. As root: cpupower frequency-set -g performance."
    return Check("CPU frequency", NOTE, f"governor {governor}", advice)


def _load() -> Check:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    found = f"{load:.1f} on {cores} cores"
    if load <= 0.5 * cores:
        return Check("load", OK, found)
    return Check("load", NOTE, found, "Other work disturbs the figures: stop it, or use more replicates.")


def _speed() -> Iterator[Check]:
    """Check whether the cores run as fast from moment to moment; nothing where a process cannot choose its core."""
    name, allowed = "speed of the cores", sorted(os.sched_getaffinity(0))
    cores = allowed[:: -(-len(allowed) // SPEED_CORES_MOST)]
    try:
        took = loops(cores, SPEED_S)
    except OSError:
        return
    found = max(spread(some) for some in took.values())
    words = f"the slowest tenth of equal loops on a core takes {found:.2f} times as long as the fastest tenth"
    if found <= STEADY_MOST:
        yield Check(name, OK, f"steady: {words}")
        return
    yield Check(
        name,
        NOTE,
        f"varies: {words} (up to {STEADY_MOST} is steady)",
        "Expect wide intervals: other work here, neighbours on the physical cores (steal time shows only a part of "
        "them) or a changing clock slow the cores down. Use a machine of your own, or measure at another time.",
    )


def _space(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    found = f"{rounded_bytes(free)} in {folder}"
    if free >= LITTLE_SPACE_BYTES:
        return Check("free space", OK, found)
    advice = "'storebench bench SCENARIO --dry-run' says how much a scenario writes."
    return Check("free space", NOTE, found, advice)


def _memory() -> Check:
    total, limit = machine.memory_bytes("MemTotal") or 0, memory_limit_bytes()
    if limit is None or limit >= total:
        return Check("memory", OK, rounded_bytes(total))
    found = f"{rounded_bytes(limit)} by a control group, page cache included"
    return Check("memory", NOTE, found, "A warm store must fit into that together with the training process.")


def _torch() -> Check:
    version = version_of("torch")
    if version is None:
        return Check("torch", NO, "not installed", "Run: pip install storebench.")
    import torch

    if torch.cuda.is_available():
        return Check("torch", OK, f"{version}, {torch.cuda.get_device_name()}")
    advice = "An accelerator can be emulated with '--compute emulated:MILLISECONDS'; every result says so."
    return Check("torch", NOTE, f"{version}, CPU only", advice)


def _library(name: str, extra: str) -> Check:
    version = version_of(name)
    if version:
        return Check(name, OK, version)
    advice = f"For the format {extra}, run: pip install 'storebench[{extra}]'."
    return Check(name, NO, "not installed", advice)
