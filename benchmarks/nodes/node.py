"""One emulated node: its namespaces, its disk, and its control groups."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.control_groups import (
    ROOT,
    Group,
    control_group,
    delegate,
    hierarchy,
    joining,
    limit_reads,
    remove,
)
from benchmarks.nodes.network import INTERFACE, address_of
from benchmarks.nodes.tools import GROUP_PREFIX
from storebench.errors import CellFailedError
from storebench.probes.cgroup import MemoryGroup, memory_group, remove_stale
from storebench.run.cell_process import end
from storebench.system.processes import started_ticks

READAHEAD_KIB = 128
"""Read-ahead of the disks: Linux's default."""

STORES = "stores"
PROBE = "probe"
"""On each disk: the folder of all stores, and the file for measuring the disk's rate."""

_ROOT = Path(__file__).resolve().parents[2]
_GROUP_NAME = re.compile(rf"{GROUP_PREFIX}(?P<pid>\d+)-(?P<start>\d+)-\w+")
_NAMESPACES = ("unshare", "--mount", "--net", "--propagation", "private", "--")
_ENDED_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The control groups of a node; with version 2, processes enter one below the limits, as limited cells need."""

    memory: MemoryGroup
    reads: Group
    entered: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One emulated node."""

    number: int
    pid: int
    disk: Path
    device: str
    groups: Groups
    variables: Mapping[str, str]

    @property
    def address(self) -> str:
        """Its address."""
        return address_of(self.number)

    @property
    def stores(self) -> Path:
        """The folder of all stores on its disk."""
        return self.disk / STORES

    def command(self, *command: str) -> list[str]:
        """Return a command line for this node; the command ends with the process that starts it."""
        namespaces = (f"--mount=/proc/{self.pid}/ns/mnt", f"--net=/proc/{self.pid}/ns/net")
        return [
            *("setpriv", "--pdeathsig", "TERM", "--"),
            *joining(*self.groups.entered),
            *("nsenter", *namespaces, "--", *command),
        ]

    def python(self, *arguments: str) -> list[str]:
        """Return the command of an interpreter on this node."""
        return self.command(sys.executable, "-P", *arguments)

    def limit_reads(self, bytes_per_s: float) -> None:
        """Limit the reads of its processes from its disk."""
        try:
            limit_reads(self.groups.reads, self.device, bytes_per_s)
        except OSError as error:
            raise CellFailedError(f"reads of its disk cannot be limited ({error})", where=self.name) from None

    @property
    def name(self) -> str:
        """The name of the node in messages."""
        return f"node {self.number}"


@contextlib.contextmanager
def held(arguments: Sequence[str], variables: Mapping[str, str], name: str) -> Iterator[tuple[int, str]]:
    """Hold new namespaces (`benchmarks.nodes.holder`); yield the process that holds them, and its output."""
    command = [*_NAMESPACES, sys.executable, "-P", "-m", "benchmarks.nodes.holder", *arguments]
    with subprocess.Popen(
        command,
        env=dict(variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                _, errors = process.communicate()
                last = (errors.strip().splitlines() or ["its process has ended"])[-1]
                raise CellFailedError(last, where=name)
            yield process.pid, line.strip()
        finally:
            end(process)


@contextlib.contextmanager
def node_groups(number: int, memory_bytes: int) -> Iterator[Groups]:
    """Create the control groups of a node, and remove them at the end."""
    with memory_group(memory_bytes) as memory:
        try:
            if memory.version == 2:
                with _below(memory.folder) as inner:
                    reads = Group(folder=memory.folder, version=2)
                    yield Groups(memory=memory, reads=reads, entered=(inner,))
            else:
                name = f"{GROUP_PREFIX}{os.getpid()}-{started_ticks(os.getpid())}-{number}"
                with control_group(name, "blkio", "io") as reads:
                    yield Groups(memory=memory, reads=reads, entered=(memory.folder, reads.folder))
        finally:
            remove_stale(memory.folder)  # groups of killed cells


@contextlib.contextmanager
def _below(folder: Path) -> Iterator[Path]:
    """Create a group of version 2 for the processes below one with limits, and remove it at the end."""
    for parent in (*reversed(folder.relative_to(ROOT).parents), folder.relative_to(ROOT)):
        delegate(ROOT / parent, "io")
    delegate(folder, "memory")
    inner = folder / "processes"
    inner.mkdir()
    try:
        yield inner
    finally:
        remove(inner)


def sweep_groups() -> None:
    """Remove the groups for reads that killed starts left."""
    found = hierarchy("blkio", "io")
    for folder in [] if found is None else found[0].glob(f"{GROUP_PREFIX}*"):
        match = _GROUP_NAME.fullmatch(folder.name)
        if match and str(started_ticks(int(match["pid"]))) != match["start"]:
            with contextlib.suppress(OSError):  # it has live members
                folder.rmdir()


def wait_until_free(devices: Sequence[str]) -> None:
    """Wait until the kernel has freed loop devices, soon after their last process has ended."""
    folders = [Path("/sys/dev/block", device, "loop") for device in devices]
    deadline = time.monotonic() + _ENDED_S
    while any(folder.exists() for folder in folders) and time.monotonic() < deadline:
        time.sleep(0.02)


def variables_of(marked_variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a node's processes: torch's device, and the path of the benchmarks."""
    path = os.pathsep.join(filter(None, (str(_ROOT), marked_variables.get("PYTHONPATH"))))
    return {**marked_variables, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": INTERFACE}
