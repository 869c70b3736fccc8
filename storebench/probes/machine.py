"""Facts about the machine and its mounts from /proc and /sys; None if the kernel does not say."""

import math
import os
import platform
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from storebench.filesystem import MOUNTINFO, mount_fields, unescape

OWN_GROUPS = Path("/proc/self/cgroup")

SYS_BLOCK = Path("/sys/dev/block")
_QUEUE = ("read_ahead_kb", "scheduler", "rotational", "nr_requests")

# Filesystems whose files are only in the page cache: none of their pages can be evicted to a device.
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "rootfs"})

# Filesystems whose reads the kernel does not attribute to the requesting process as block reads.
_UNCOUNTED = frozenset({"fuse", "fuseblk", "virtiofs", "9p", "zfs", "ceph"})


@dataclass(frozen=True, kw_only=True)
class Mount:
    """The mount of a path."""

    point: str
    fstype: str
    source: str
    options: tuple[str, ...]
    device: tuple[int, int] | None


def counts_reads(fstype: str) -> bool:
    """Return True if the kernel attributes reads of a filesystem to the process that asked for them."""
    return fstype.partition(".")[0] not in _UNCOUNTED


def mount_of(path: Path | str) -> Mount:
    fields, st_dev = mount_fields(path), Path(path).stat().st_dev
    if fields is None:
        return Mount(point="/", fstype="unknown", source="", options=(), device=_device(st_dev, ""))
    # After a variable number of optional fields and a dash: type, source, options of the superblock.
    fstype, source, super_options = fields[fields.index("-") + 1 :][:3]
    options = tuple(sorted({*fields[5].split(","), *super_options.split(",")}))
    return Mount(
        point=unescape(fields[4]),
        fstype=fstype,
        source=unescape(source),
        options=options,
        device=_device(st_dev, unescape(source)),
    )


def _device(st_dev: int, source: str) -> tuple[int, int] | None:
    if os.major(st_dev):
        return os.major(st_dev), os.minor(st_dev)
    # btrfs and others give files an anonymous device number, but name the mounted device.
    if not source.startswith("/dev/"):
        return None
    try:
        status = Path(source).stat()
    except OSError:
        return None
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISBLK(status.st_mode) else None


def read_text(path: Path | str) -> str | None:
    """Return the content of a small file of /proc or /sys, stripped; None if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def chosen(text: str | None) -> str | None:
    """Return the bracketed word of a kernel setting such as "always [madvise] never"."""
    match = re.search(r"\[(.*?)\]", text or "")
    return match.group(1) if match else text


def cpu_model() -> str:
    fields = dict(re.findall(r"^(.+?)\s*:[ \t]*(.*)$", read_text("/proc/cpuinfo") or "", re.MULTILINE))
    arm = " ".join(fields[name] for name in ("CPU implementer", "CPU part") if name in fields)
    return fields.get("model name") or arm or platform.machine()


def virtual_machine() -> bool | None:
    """Return True if the CPU reports a hypervisor; None if it has no such flag."""
    flags = re.search(r"^flags\s*:(.*)$", read_text("/proc/cpuinfo") or "", re.MULTILINE)
    return "hypervisor" in flags.group(1).split() if flags else None


def own_groups(controllers: Mapping[int, str]) -> tuple[int, list[Path]]:
    """Return the version of control groups that has a controller, named by version, and our groups, innermost first."""
    own_lines = (read_text(OWN_GROUPS) or "").splitlines()
    for version, point, root in sorted(_hierarchies(controllers)):
        inner = next(
            (
                path
                for number, names, path in (line.split(":", 2) for line in own_lines)
                if (number == "0" if version == 2 else controllers[1] in names.split(","))
            ),
            "/",
        )
        # A container may see only part of the hierarchy, and its own group under a path from outside.
        inner = inner.removeprefix(root) if root != "/" else inner
        folder = point / inner.lstrip("/")
        # A process outside of its namespace's root has a path with "..", which leads out of the hierarchy.
        folder = folder if ".." not in folder.parts and folder.is_dir() else point
        depth = len(folder.relative_to(point).parts)
        return version, [folder, *folder.parents][: depth + 1]
    return 0, []


def _hierarchies(controllers: Mapping[int, str]) -> Iterator[tuple[int, Path, str]]:
    for line in (read_text(MOUNTINFO) or "").splitlines():
        fields = line.split(" ")
        fstype, _, options = fields[fields.index("-") + 1 :][:3]
        point = Path(fields[4])
        if fstype == "cgroup" and controllers[1] in options.split(","):
            yield 1, point, fields[3]
        elif (
            fstype == "cgroup2" and controllers[2] in (read_text(point / "cgroup.controllers") or "").split()
        ):
            yield 2, point, fields[3]


def cpu_groups() -> list[Path]:
    """Return the control groups that share the CPU of this process, innermost first."""
    return own_groups({1: "cpu", 2: "cpu"})[1]


def cpu_quota() -> float | None:
    """Return the number of CPUs that the tightest control group allows; None if there is no limit."""
    quotas = []
    for folder in cpu_groups():
        text = read_text(folder / "cpu.max") or " ".join(
            read_text(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")
        )
        match = re.fullmatch(r"(\d+) (\d+)", text)
        if match:
            quotas.append(int(match.group(1)) / int(match.group(2)))
    return min(quotas, default=None)


def usable_cores() -> int:
    """Return the number of cores that this process can keep busy: those that it may use, within its CPU quota."""
    return math.ceil(min(len(os.sched_getaffinity(0)), cpu_quota() or math.inf))


def scheduling() -> dict[str, int]:
    """Return the numbers by which the kernel schedules the calling thread, and the process's I/O."""
    io = psutil.Process().ionice()
    return {
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "scheduling class": os.sched_getscheduler(0),
        "real-time priority": os.sched_getparam(0).sched_priority,
        "I/O class": int(io.ioclass),
        "I/O priority": io.value,
    }


def block_device(mount: Mount) -> dict[str, str | None]:
    """Return name, model and queue settings of the disk below a mount; empty if there is none."""
    if mount.device is None:
        return {}
    disk = _disk(mount.device)
    if not disk.is_dir():
        return {}
    settings = {name: chosen(read_text(disk / "queue" / name)) for name in _QUEUE}
    driver = (disk / "device" / "driver").resolve().name if (disk / "device" / "driver").exists() else None
    model = (
        read_text(disk / "device" / "model") or read_text(disk / "dm" / "name") or _loop_model(disk) or driver
    )
    return {"name": disk.name, "model": model, **settings}


def _disk(device: tuple[int, int]) -> Path:
    """Return the kernel's folder of a disk, or of the disk of a partition."""
    folder = (SYS_BLOCK / "{}:{}".format(*device)).resolve()
    return folder.parent if (folder / "partition").exists() else folder


def disk_number(folder: Path) -> str | None:
    """Return the number of the disk below a folder ("8:0"), not of its partition; None without one."""
    device = mount_of(folder).device
    return read_text(_disk(device) / "dev") if device else None


def loop_image(device: tuple[int, int] | None) -> tuple[Path | None, bool] | None:
    """Return the image of a loop device, or of a partition of one, and whether it is read past the page cache."""
    return _image_of(_disk(device)) if device else None


def _image_of(disk: Path) -> tuple[Path | None, bool] | None:
    folder = disk / "loop"
    if not folder.is_dir():
        return None
    image = Path(read_text(folder / "backing_file") or "")
    return (image if image.is_file() else None), read_text(folder / "dio") == "1"


def _loop_model(disk: Path) -> str | None:
    """Return where the image of a loop device is, and how it is read; None for any other disk."""
    loop = _image_of(disk)
    if loop is None:
        return None
    image, direct = loop
    how = "with direct I/O" if direct else "through the page cache"
    if image is None:
        return f"loop {how}"
    below = mount_of(image)
    return f"loop over {below.fstype} on {block_device(below).get('model') or 'no device'} {how}"


def damon() -> str | None:
    """Return the way in which DAMON reclaims idle pages ("pageout", "damon_reclaim"), "off", or None if unknown."""
    if read_text("/sys/module/damon_reclaim/parameters/enabled") == "Y":
        return "damon_reclaim"
    admin = Path("/sys/kernel/mm/damon/admin/kdamonds")
    for kdamond in sorted(admin.glob("[0-9]*")):
        state = read_text(kdamond / "state")
        if state is None:
            return None
        actions = [read_text(path) for path in sorted(kdamond.glob("contexts/*/schemes/*/action"))]
        reclaiming = [action for action in actions if action in ("pageout", "cold", "lru_deprio")]
        if state == "on" and reclaiming:
            return reclaiming[0]
    return "off"


def governor() -> str | None:
    """Return the frequency governor of the first usable CPU; None if there is none."""
    cpu = min(os.sched_getaffinity(0))
    return read_text(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor")


def transparent_hugepages() -> str | None:
    """Return the kernel's setting for huge pages: "always", "madvise" or "never"."""
    return chosen(read_text("/sys/kernel/mm/transparent_hugepage/enabled"))
