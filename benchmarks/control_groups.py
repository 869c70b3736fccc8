"""Control groups of emulated machines and nodes, version 1 or 2: created in a with statement."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class Group:
    """A control group."""

    folder: Path
    version: int


def hierarchy(*controllers: str) -> tuple[Path, int] | None:
    """Return the parent folder of groups with one of the controllers, and the version; None if there is none."""
    for name in controllers:
        if (ROOT / name / "tasks").is_file():
            return ROOT / name, 1
    available = ROOT / "cgroup.controllers"
    if available.is_file() and set(available.read_text().split()) & set(controllers):
        return ROOT, 2
    return None


@contextlib.contextmanager
def control_group(name: str, *controllers: str) -> Iterator[Group]:
    """Create a control group, and remove it at the end."""
    found = hierarchy(*controllers)
    if found is None:
        raise OSError(f"no control groups with {controllers[0]}")
    root, version = found
    if version == 2:
        delegate(root, *controllers)
    group = Group(folder=root / name, version=version)
    group.folder.mkdir()
    try:
        yield group
    finally:
        remove(group.folder)


def delegate(parent: Path, *controllers: str) -> None:
    """Enable controllers for the children of a group of version 2, as far as the kernel permits."""
    for name in controllers:
        with contextlib.suppress(OSError):
            (parent / "cgroup.subtree_control").write_text(f"+{name}")


def limit_reads(group: Group, device: str, bytes_per_s: float) -> None:
    """Limit the reads of a group's processes from a device."""
    if group.version == 2:
        (group.folder / "io.max").write_text(f"{device} rbps={bytes_per_s:.0f} riops=max")
    else:
        (group.folder / "blkio.throttle.read_bps_device").write_text(f"{device} {bytes_per_s:.0f}")


def joining(*folders: Path) -> tuple[str, ...]:
    """Return the prefix that makes a command run in some groups."""
    enter = "".join(f"echo $$ > {folder}/cgroup.procs && " for folder in dict.fromkeys(folders))
    return "sh", "-c", f'{enter}exec "$@"', "sh"


def remove(folder: Path, most_s: float = 10.0) -> None:
    """Remove a control group; its last process may take a moment to leave it."""
    deadline = time.monotonic() + most_s
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
