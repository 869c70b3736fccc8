"""Run the system's programs, and check that this machine has everything that emulated nodes need."""

import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.control_groups import control_group
from storebench.errors import CellFailedError, UsageError
from storebench.probes import loop_mount
from storebench.probes.cgroup import find_controller
from storebench.system.processes import started_ticks

PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
"""Program -> the package that contains it."""

GROUP_PREFIX = "storebench-nodes-"
"""Beginning of the names of control groups that limit reads."""

_TRIAL = """
ip link add trial0 type bridge
ip link add trial1 type veth peer name trial2
tc qdisc add dev trial1 root tbf rate 8mbit burst 65536 latency 50ms
"""


def called(*command: str) -> str:
    """Run a program and return its output."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CellFailedError(f"{command[0]} cannot be run ({error.strerror})") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        # The program that runs, inside a namespace or not.
        program = command[command.index("--") + 1] if command[0] == "nsenter" else command[0]
        raise CellFailedError(f"{program}: {lines[-1]}")
    return done.stdout


def in_network(pid: int, *command: str) -> tuple[str, ...]:
    """Return a command line for the network namespace of a process."""
    return "nsenter", f"--net=/proc/{pid}/ns/net", "--", *command


def require(folder: Path) -> None:
    """Refuse a machine that cannot emulate nodes with their disks in `folder`."""
    reason = why_not(folder)
    if reason:
        raise UsageError(f"they cannot be set up here: {reason}")


def why_not(folder: Path) -> str:
    """Return why nodes cannot be emulated with their disks in `folder`, or ""; each part is tried."""
    if os.geteuid():
        return "it needs root"
    missing = {tool: package for tool, package in PACKAGES.items() if shutil.which(tool) is None}
    if missing:
        packages = " and ".join(sorted(set(missing.values())))
        return f"it needs {', '.join(missing)} (Debian: apt-get install {packages})"
    if reason := loop_mount.why_not(folder):
        return f"a disk of its own {reason}"
    try:
        find_controller()
    except UsageError as error:
        return error.what
    name = f"{GROUP_PREFIX}{os.getpid()}-{started_ticks(os.getpid())}-trial"
    try:
        with control_group(name, "blkio", "io") as group:
            limits = "io.max" if group.version == 2 else "blkio.throttle.read_bps_device"
            if not (group.folder / limits).exists():
                return f"the kernel has no {limits}"
    except OSError as error:
        return f"reads cannot be limited ({error})"
    command = ["unshare", "--net", "sh", "-ec", _TRIAL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return ""
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"the kernel lacks bridges, virtual Ethernet devices or token buckets ({last})"
