"""Limit the memory of some processes, and with it the page cache that they fill, by a control group (v1 or v2).

The kernel charges a page of the page cache to the group of the process that
touched it first, and frees pages of that group when the limit is reached. So
processes that enter a group with nothing of a store resident can never have
more of it resident than the limit. Memory that a process took before it
entered stays charged to the group that it came from, in both versions.

Groups are named ``storebench-PID-START-RANDOM`` after the process that made them
(its start because ids are used again); those of processes that have gone are
removed when the next one is made, and when storebench starts.
"""

import contextlib
import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from storebench.errors import UsageError
from storebench.probes.machine import read_text
from storebench.system.processes import started_ticks

MOUNTINFO = Path("/proc/self/mountinfo")
OWN_GROUPS = Path("/proc/self/cgroup")

_NAME = re.compile(r"storebench-(?P<pid>\d+)-((?P<start>\d+)-)?[0-9a-f]{8}")
_TRIAL_BYTES = 64 << 20
_REMOVE_WAITS_S = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)

_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
_USAGE = {1: "memory.usage_in_bytes", 2: "memory.current"}
_PEAK = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}
_NO_SWAP = {1: "memory.swappiness", 2: "memory.swap.max"}
_OOM = {1: "memory.oom_control", 2: "memory.events"}
_CACHE = {1: "cache", 2: "file"}
_ANONYMOUS = {1: "rss", 2: "anon"}


@dataclass(frozen=True, kw_only=True)
class GroupUsage:
    """What a group's processes have used since it was made, in bytes; None where this kernel does not say.

    Attributes
    ----------
    peak_bytes
        The most that was charged at any time, page cache included.
    cache_bytes
        Page cache that is charged now.
    own_bytes
        Memory of the processes themselves that is charged now: anonymous, shared and the kernel's for them.
        The page cache can hold so much less than the limit.
    oom_kills
        Processes that the kernel killed because nothing was left to free.
    """

    peak_bytes: int | None
    cache_bytes: int | None
    own_bytes: int | None
    oom_kills: int


@dataclass(frozen=True, kw_only=True)
class Controller:
    """A place where groups with a memory limit can be made.

    Attributes
    ----------
    version
        1 or 2.
    parent
        The group that ours are made in.
    home
        The group that this process is in.
    """

    version: int
    parent: Path
    home: Path


class MemoryGroup:
    """A control group whose processes share a limited amount of memory.

    Parameters
    ----------
    folder
        The group's folder, which exists.
    home
        The group that its processes come from and go back to.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home
        self.version = 1 if (folder / _LIMIT[1]).exists() else 2

    @classmethod
    def create(cls, limit_bytes: int, controller: Controller | None = None) -> Self:
        """Make a group that may hold `limit_bytes`, and remove those that killed processes left behind.

        Raises
        ------
        UsageError
            This process may not make such a group; the text says why.
        """
        controller = controller or find_controller()
        remove_stale(controller.parent)
        pid = os.getpid()
        folder = controller.parent / f"storebench-{pid}-{started_ticks(pid)}-{secrets.token_hex(4)}"
        try:
            folder.mkdir()
            made = cls(folder, controller.home)
            made._set_limit(limit_bytes)
        except OSError as error:
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise _not_permitted(f"no group can be made in {controller.parent} ({error.strerror})") from None
        return made

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Return the group that another process made at `folder`; its home is the group that we are in now.

        Raises
        ------
        UsageError
            No memory controller can be seen.
        """
        _, groups = _own_groups()
        return cls(folder, groups[0])

    def _set_limit(self, limit_bytes: int) -> None:
        (self.folder / _LIMIT[self.version]).write_text(str(limit_bytes))
        # Swap would let the processes' own memory make room for more page cache than was asked for.
        with contextlib.suppress(OSError):
            (self.folder / _NO_SWAP[self.version]).write_text("0")

    def enter(self, pids: Iterable[int]) -> None:
        """Move processes, with all their threads, into this group; what they hold stays charged to their old one.

        Raises
        ------
        UsageError
            The kernel does not let us.
        """
        for pid in pids:
            try:
                (self.folder / "cgroup.procs").write_text(str(pid))
            except OSError as error:
                raise _not_permitted(f"process {pid} cannot enter {self.folder}: {error.strerror}") from None

    def leave(self, pids: Iterable[int]) -> None:
        """Move processes back to where they came from; those that have ended are no error."""
        for pid in pids:
            with contextlib.suppress(OSError):
                (self.home / "cgroup.procs").write_text(str(pid))

    def usage(self) -> GroupUsage:
        """Return what the group's processes have used so far."""
        stat = _numbers(self.folder / "memory.stat")
        shared = stat.get("shmem", 0)  # counted as page cache, though it is memory that the processes share
        cache, anonymous = stat.get(_CACHE[self.version]), stat.get(_ANONYMOUS[self.version])
        return GroupUsage(
            peak_bytes=_number(self.folder / _PEAK[self.version]),
            cache_bytes=None if cache is None else cache - shared,
            own_bytes=None if anonymous is None else anonymous + shared + self._kernel_bytes(stat),
            oom_kills=_numbers(self.folder / _OOM[self.version]).get("oom_kill", 0),
        )

    def _kernel_bytes(self, stat: dict[str, int]) -> int:
        if self.version == 1:
            return _number(self.folder / "memory.kmem.usage_in_bytes") or 0
        return stat.get("kernel", 0)

    def disband(self) -> None:
        """Leave the group and remove it, for a process whose maker was killed; others in it must have ended."""
        self.leave([os.getpid()])
        self.remove()

    def remove(self) -> None:
        """Remove the group; processes that are still in it (they are ending) are waited for, up to two seconds."""
        for wait_s in _REMOVE_WAITS_S:
            time.sleep(wait_s)
            # What is still charged would otherwise keep the kernel's half of a removed group alive.
            with contextlib.suppress(OSError):
                (self.folder / "memory.force_empty").write_text("0")
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                continue
            return


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Make a group for the time of a with statement."""
    group = MemoryGroup.create(limit_bytes)
    try:
        yield group
    finally:
        group.remove()


def find_controller() -> Controller:
    """Return where this process may make groups with a memory limit, found out by making one and moving a process.

    Looks in the group that this process is in, then in those above it.

    Raises
    ------
    UsageError
        It may do so nowhere; the text says why.
    """
    version, groups = _own_groups()
    why = ""
    for folder in groups:
        controller = Controller(version=version, parent=folder, home=groups[0])
        refusal = _try(controller)
        if not refusal:
            return controller
        why = why or refusal
    raise _not_permitted(why)


def remove_stale(parent: Path) -> list[str]:
    """Remove groups of storebench in `parent` whose makers have gone, and return their names."""
    removed = []
    for folder in sorted(parent.glob("storebench-*")):
        match = _NAME.fullmatch(folder.name)
        if match and not _lives(int(match["pid"]), match["start"]):
            with contextlib.suppress(OSError):  # its processes live, or it is somebody else's
                folder.rmdir()
                removed.append(folder.name)
    return removed


def sweep_groups() -> None:
    """Remove the groups of killed processes wherever this process could make one."""
    with contextlib.suppress(UsageError):
        for folder in _own_groups()[1]:
            remove_stale(folder)


def oom_kills(folder: Path | None = None) -> int | None:
    """Return how many processes of a group the kernel has killed because memory ran out; None where it does not say.

    Parameters
    ----------
    folder
        The group; None is the one that this process is in.
    """
    if folder is None:
        try:
            folder = _own_groups()[1][0]
        except UsageError:
            return None
    counts = (_numbers(folder / name).get("oom_kill") for name in _OOM.values())
    return next((count for count in counts if count is not None), None)


def _lives(pid: int, start: str | None) -> bool:
    ticks = started_ticks(pid)
    return ticks is not None and start in (None, str(ticks))


def _own_groups() -> tuple[int, list[Path]]:
    """Return the version that has the memory controller, and our groups, innermost first."""
    for version, point, root in sorted(_hierarchies()):
        inner = next(
            (
                path
                for number, controllers, path in _memberships()
                if (number == "0" if version == 2 else "memory" in controllers.split(","))
            ),
            "/",
        )
        # A container may see a part of the hierarchy only, and its own group by a path from outside.
        inner = inner.removeprefix(root) if root != "/" else inner
        own = point / inner.lstrip("/")
        own = own if own.is_dir() else point
        depth = len(own.relative_to(point).parts)
        return version, [own, *own.parents][: depth + 1]
    raise _not_permitted("no control group hierarchy with a memory controller is mounted")


def _hierarchies() -> Iterator[tuple[int, Path, str]]:
    for line in (read_text(MOUNTINFO) or "").splitlines():
        fields = line.split(" ")
        kind, _, options = fields[fields.index("-") + 1 :][:3]
        if kind == "cgroup" and "memory" in options.split(","):
            yield 1, Path(fields[4]), fields[3]
        elif kind == "cgroup2" and "memory" in (read_text(Path(fields[4], "cgroup.controllers")) or ""):
            yield 2, Path(fields[4]), fields[3]


def _memberships() -> list[tuple[str, str, str]]:
    lines = (read_text(OWN_GROUPS) or "").splitlines()
    return [(number, names, path) for number, names, path in (line.split(":", 2) for line in lines)]


def _try(controller: Controller) -> str:
    """Make a group there and move a process into it; return why that does not work, or ""."""
    if controller.version == 2 and "memory" not in (
        read_text(controller.parent / "cgroup.subtree_control") or ""
    ):
        return f"{controller.parent} delegates no memory controller"
    try:
        group = MemoryGroup.create(_TRIAL_BYTES, controller)
    except UsageError as error:
        return error.what.removeprefix(_REFUSAL)
    try:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            group.enter([process.pid])
    except UsageError as error:
        return error.what.removeprefix(_REFUSAL)
    finally:
        group.remove()
    return ""


_REFUSAL = "the page cache cannot be limited here: "


def _not_permitted(why: str) -> UsageError:
    return UsageError(
        f"{_REFUSAL}{why}",
        hint="Run as root, or in a control group with a delegated memory controller; 'storebench doctor' checks it.",
    )


def _number(path: Path) -> int | None:
    text = read_text(path) or ""
    return int(text) if text.isdigit() else None


def _numbers(path: Path) -> dict[str, int]:
    return {
        name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", read_text(path) or "", re.MULTILINE)
    }
