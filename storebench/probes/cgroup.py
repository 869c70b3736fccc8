"""Limit the memory of some processes, or their reads, with a control group (v1 or v2)."""

import contextlib
import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from storebench.errors import CellFailedError, UsageError
from storebench.probes.machine import disk_number, own_groups, read_text
from storebench.settings.tiers import Tier
from storebench.system.processes import started_ticks

if TYPE_CHECKING:
    from storebench.record.schema import TierFacts

_NAME = re.compile(r"storebench-(?P<pid>\d+)-((?P<start>\d+)-)?[0-9a-f]{8}")
_TRIAL_BYTES = 64 << 20
_REMOVE_WAITS_S = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)

_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
# Files with a limit on page cache. Above `memory.high`, the kernel reclaims, too, and slows the processes.
_LIMITS = {1: (_LIMIT[1],), 2: (_LIMIT[2], "memory.high")}

_PEAK = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}
_NO_SWAP = {1: "memory.swappiness", 2: "memory.swap.max"}
_UNLIMITED = 1 << 62
_OOM = {1: "memory.oom_control", 2: "memory.events"}
_ANONYMOUS = {1: "total_rss", 2: "anon"}
# Lines of memory.stat. In version 1, those without "total" leave out the groups below.
_SHARED = {1: "total_shmem", 2: "shmem"}

# The parts that "kernel" in a memory.stat of version 2 sums up since Linux 5.18.
_KERNEL_PARTS = ("kernel_stack", "pagetables", "percpu", "sock", "slab")


@dataclass(frozen=True, kw_only=True)
class GroupUsage:
    """Memory that processes of a group and of those below it have used since it was made, in bytes; None if unknown."""

    peak_bytes: int | None
    own_bytes: int | None
    oom_kills: int


@dataclass(frozen=True, kw_only=True)
class Controller:
    """A place for groups with a memory limit."""

    version: int
    parent: Path
    home: Path


class ControlGroup:
    """A control group that limits its processes."""

    CONTROLLERS: ClassVar[dict[int, str]]
    """The controller's name by version."""
    FIRST: ClassVar[str]
    """A file that only groups of version 1 have."""
    LIMITED: ClassVar[str]
    """What it limits, for messages."""
    TRIAL: ClassVar[tuple[int, ...]] = ()
    """The limit of a group that is made to see whether one can be made."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home
        self.version = 1 if (folder / self.FIRST).exists() else 2

    @classmethod
    def create(cls, *limit: int, controller: Controller | None = None) -> Self:
        """Make a group with a limit, and remove the groups of killed processes."""
        controller = controller or find_controller(cls)
        remove_stale(controller.parent)
        pid = os.getpid()
        folder = controller.parent / f"storebench-{pid}-{started_ticks(pid)}-{secrets.token_hex(4)}"
        try:
            folder.mkdir()
            made = cls(folder, controller.home)
            made.set_limit(*limit)
        except OSError as error:
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise _not_permitted(
                cls, f"no group can be made in {controller.parent} ({error.strerror})"
            ) from None
        return made

    def set_limit(self, *limit: int) -> None:
        """Set the limit that a new group has."""

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Return the group that another process made at `folder`; its home is this process's current group."""
        _, groups = _own_groups(cls)
        return cls(folder, groups[0])

    def enter(self, pids: Iterable[int]) -> None:
        """Move processes, with all their threads, into this group; their memory stays charged to their old one."""
        for pid in pids:
            _move(type(self), pid, self.folder)

    def leave(self, pids: Iterable[int]) -> None:
        """Move processes back to their previous group; those that have ended are not an error."""
        for pid in pids:
            with contextlib.suppress(OSError):
                (self.home / "cgroup.procs").write_text(str(pid))

    def disband(self) -> None:
        """Leave and remove the group, for a process whose creator was killed; other members must have ended."""
        self.leave([os.getpid()])
        self.remove()

    def remove(self) -> None:
        """Remove the group; wait up to two seconds for members that are ending."""
        for wait_s in _REMOVE_WAITS_S:
            time.sleep(wait_s)
            with contextlib.suppress(OSError):
                self.empty()
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            if not self.folder.exists():
                return

    def empty(self) -> None:
        """Free what is charged to the group."""


class MemoryGroup(ControlGroup):
    """A control group whose processes share a limited amount of memory."""

    # A page of the page cache is charged to the group that first touched it; memory from before a process entered
    # stays charged to its previous group.

    CONTROLLERS: ClassVar = {1: "memory", 2: "memory"}
    FIRST: ClassVar = _LIMIT[1]
    LIMITED: ClassVar = "the page cache"
    TRIAL: ClassVar = (_TRIAL_BYTES,)

    def set_limit(self, *limit: int) -> None:
        (self.folder / _LIMIT[self.version]).write_text(str(limit[0]))
        # With swap, the processes' own memory could make room for more page cache than requested.
        with contextlib.suppress(OSError):
            (self.folder / _NO_SWAP[self.version]).write_text("0")

    def empty(self) -> None:
        """Reclaim the memory: what is charged to a removed group would keep the kernel's part of it alive."""
        if self.version == 1:
            (self.folder / "memory.force_empty").write_text("0")
        elif charged := _number(self.folder / "memory.current"):
            (self.folder / "memory.reclaim").write_text(str(charged))  # since Linux 5.19

    def usage(self) -> GroupUsage:
        """Return the memory that the group's processes have used so far."""
        stat = _numbers(self.folder / "memory.stat")
        shared = stat.get(_SHARED[self.version], 0)  # the kernel counts it as page cache
        kernel = stat.get("kernel", sum(stat.get(name, 0) for name in _KERNEL_PARTS))
        if self.version == 1:
            kernel = _number(self.folder / "memory.kmem.usage_in_bytes") or 0
        anonymous = stat.get(_ANONYMOUS[self.version])
        return GroupUsage(
            peak_bytes=_number(self.folder / _PEAK[self.version]),
            own_bytes=None if anonymous is None else anonymous + shared + kernel,
            oom_kills=_numbers(self.folder / _OOM[self.version]).get("oom_kill", 0),
        )


class ThrottledGroup(ControlGroup):
    """A control group whose processes read from a device at limited rates."""

    CONTROLLERS: ClassVar = {1: "blkio", 2: "io"}
    FIRST: ClassVar = "blkio.throttle.read_bps_device"
    LIMITED: ClassVar = "reads from a device"

    def throttle(self, disk: str, tier: Tier) -> None:
        """Limit reads from a disk ("8:0")."""
        limits = {"bps": tier.bytes_per_s, "iops": tier.requests_per_s}
        given = {name: round(limit) for name, limit in limits.items() if limit}
        try:
            if self.version == 2:
                words = " ".join(f"r{name}={limit}" for name, limit in given.items())
                (self.folder / "io.max").write_text(f"{disk} {words}")
                return
            for name, limit in given.items():
                (self.folder / f"blkio.throttle.read_{name}_device").write_text(f"{disk} {limit}")
        except OSError as error:
            raise _not_permitted(type(self), f"device {disk}: {error.strerror}") from None

    def reads(self, disk: str) -> tuple[int, int]:
        """Return the bytes and the requests that the group's processes have read from a disk."""
        if self.version == 2:
            line = re.search(rf"^{disk} (.*)", read_text(self.folder / "io.stat") or "", re.MULTILINE)
            fields = dict(re.findall(r"(\w+)=(\d+)", line[1] if line else ""))
            return int(fields.get("rbytes", 0)), int(fields.get("rios", 0))
        files = ("io_service_bytes", "io_serviced")
        texts = (read_text(self.folder / f"blkio.throttle.{name}_recursive") or "" for name in files)
        matches = [re.search(rf"^{disk} Read (\d+)", text, re.MULTILINE) for text in texts]
        read, requests = (int(match[1]) if match else 0 for match in matches)
        return read, requests


class EmulatedTier:
    """The limits of a tier on the reads of this process and of those that it starts."""

    def __init__(self, tier: Tier, disk: str, groups: Sequence[ThrottledGroup]) -> None:
        self._tier = tier
        self._disk = disk
        self._groups = groups
        self._begun = (0.0, 0, 0)

    @classmethod
    def enter(cls, tier: Tier, store: Path, folder: Path, memory: Path | None = None) -> Self:
        """Move this process into the group at `folder`, limited for the disk of the store."""
        disk = disk_number(store)
        if disk is None:
            raise CellFailedError(
                "the store is on no block device, so its reads cannot be limited", where=store
            )
        groups = [ThrottledGroup.at(folder)]
        if memory is not None and groups[0].version == 2:
            # A process is in one group of version 2, so that with a memory limit gets these limits, too.
            groups.append(ThrottledGroup.at(memory))
        for group in groups:
            group.throttle(disk, tier)
        groups[0].enter([os.getpid()])
        return cls(tier, disk, groups)

    def begin(self) -> None:
        self._begun = self._counted()

    def end(self) -> "TierFacts":
        from storebench.record.schema import TierFacts  # slow to import, and imports numpy

        seconds, read, requests = (
            after - before for after, before in zip(self._counted(), self._begun, strict=True)
        )
        return TierFacts(
            disk=self._disk,
            limit_bytes_per_s=self._tier.bytes_per_s,
            limit_requests_per_s=self._tier.requests_per_s,
            read_bytes=int(read),
            requests=int(requests),
            seconds=seconds,
        )

    def _counted(self) -> tuple[float, int, int]:
        counts = [group.reads(self._disk) for group in self._groups]
        return time.perf_counter(), sum(read for read, _ in counts), sum(number for _, number in counts)


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    group = MemoryGroup.create(limit_bytes)
    try:
        yield group
    finally:
        group.remove()


def find_controller(kind: type[ControlGroup] = MemoryGroup) -> Controller:
    """Return the place where this process may make groups of a kind, determined by trying."""
    version, groups = _own_groups(kind)
    name = kind.CONTROLLERS[version]
    refusals: list[UsageError] = []
    for folder in groups:
        controller = Controller(version=version, parent=folder, home=groups[0])
        if version == 2 and name not in (read_text(folder / "cgroup.subtree_control") or "").split():
            # A group with processes of its own cannot, unless it is the root, so this says less than any refusal.
            continue
        try:
            group = kind.create(*kind.TRIAL, controller=controller)
            try:
                with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
                    group.enter([process.pid])
                    _move(kind, process.pid, controller.home)
            finally:
                group.remove()
        except UsageError as error:
            refusals.append(error)
        else:
            return controller
    if refusals:
        raise refusals[0]
    remedy = f"'echo +{name} > {groups[-1] / 'cgroup.subtree_control'}', where no process may be but in groups below"
    raise _not_permitted(
        kind, f"no group above {groups[0]} delegates the {name} controller; as root, run {remedy}"
    )


def remove_stale(parent: Path) -> list[str]:
    """Remove groups of storebench in `parent` whose creators have ended, with those below, and return their names."""
    removed = []
    for folder in sorted(parent.glob("storebench-*")):
        match = _NAME.fullmatch(folder.name)
        ticks = started_ticks(int(match["pid"])) if match else None
        if match and (ticks is None or match["start"] not in (None, str(ticks))):
            with contextlib.suppress(OSError):  # it has live members, or belongs to another user
                for inner in sorted(filter(Path.is_dir, folder.rglob("*")), reverse=True):
                    inner.rmdir()
                folder.rmdir()
                removed.append(folder.name)
    return removed


def oom_kills(folder: Path | None = None) -> int | None:
    """Return the number of a group's processes that were killed for lack of memory; None if they are not counted."""
    if folder is None:
        try:
            folder = _own_groups()[1][0]
        except UsageError:
            return None
    counts = (_numbers(folder / name).get("oom_kill") for name in _OOM.values())
    return next((count for count in counts if count is not None), None)


def memory_limit_bytes() -> int | None:
    """Return the memory limit of this process's groups in bytes, page cache included; None if nothing limits them."""
    return min((limit for _, limit in _limits()), default=None)


def memory_room_bytes() -> int | None:
    """Return the memory in bytes that this process's control groups still allow; None if nothing limits it."""
    rooms = (limit - (MemoryGroup(folder, home=folder).usage().own_bytes or 0) for folder, limit in _limits())
    return min(rooms, default=None)


def _limits() -> Iterator[tuple[Path, int]]:
    """Return this process's groups that have a limit, and the lowest that stands in each folder, in bytes."""
    with contextlib.suppress(UsageError):
        version, groups = _own_groups()
        for folder in groups:
            for limit in filter(None, (_number(folder / name) for name in _LIMITS[version])):
                # Version 2 says "max" where there is no limit, version 1 a number near 2^63.
                if limit < _UNLIMITED:
                    yield folder, limit


def _own_groups(kind: type[ControlGroup] = MemoryGroup) -> tuple[int, list[Path]]:
    """Return the version with the controller, and our groups, innermost first."""
    version, groups = own_groups(kind.CONTROLLERS)
    if not groups:
        names = " or ".join(dict.fromkeys(kind.CONTROLLERS.values()))
        raise _not_permitted(kind, f"no control group hierarchy with the {names} controller is mounted")
    return version, groups


def _move(kind: type[ControlGroup], pid: int, folder: Path) -> None:
    """Move a process with all its threads into the group at `folder`."""
    try:
        (folder / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise _not_permitted(kind, f"process {pid} cannot enter {folder}: {error.strerror}") from None


def _not_permitted(kind: type[ControlGroup], why: str) -> UsageError:
    return UsageError(
        f"{kind.LIMITED} cannot be limited here: {why}",
        hint=f"Run as root, or in a control group with a delegated {kind.CONTROLLERS[2]} controller; "
        "'storebench doctor' checks it.",
    )


def _number(path: Path) -> int | None:
    text = read_text(path) or ""
    return int(text) if text.isdigit() else None


def _numbers(path: Path) -> dict[str, int]:
    return {
        name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", read_text(path) or "", re.MULTILINE)
    }
