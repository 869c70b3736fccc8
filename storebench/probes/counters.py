"""Kernel counters of a training process and its workers between two moments."""

import contextlib
import dataclasses
import itertools
import os
import re
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from storebench.probes.machine import Mount, counts_reads, cpu_groups, mount_of, read_text, usable_cores

if TYPE_CHECKING:
    from storebench.record.schema import Conditions, Counters

SECTOR_BYTES = 512

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")

_IO = ("device_read_bytes", "read_calls")
_FAULTS = ("minor_faults", "major_faults")
_CPU = ("cpu_user_s", "cpu_system_s")
_DEVICE = ("block_device_read_bytes", "block_device_reads")
_FLOATS = {*_CPU, "read_amplification"}
_ADDED = (*_IO, *_FAULTS, *_CPU)

_Values = dict[str, float]


# Counters of one process at one moment; in place of one that cannot be read, the reason.
_Snapshot = dict[str, float | str]


class CounterProbe:
    """Count the events of some processes between `start` and `stop`."""

    def __init__(self, pids: Iterable[int], store: Path | str) -> None:
        self._pids = sorted(set(pids))
        self._mount = mount_of(store)
        self._first: dict[int, _Snapshot] = {}
        self._first_device: tuple[int, int] | str = ""

    def start(self) -> None:
        """Store the state of every counter, and reset the peak memory."""
        for pid in self._pids:
            # If this is not permitted, the peak since the process started is reported.
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
        self._first_device = _block_device(self._mount)
        self._first = self._samples(io_last=True)

    def stop(self, payload_bytes: int | None = None, *, own_reads: int = 0) -> "Counters":
        from storebench.record.schema import Counters  # slow to import, and imports numpy

        last = self._samples(io_last=False)
        device = _block_device(self._mount)
        values, reasons = self._differences(last)
        if "read_calls" in values:
            values["read_calls"] -= own_reads
        values |= _peak(self._pids, reasons)
        if not counts_reads(self._mount.fstype) and values.pop("device_read_bytes", None) is not None:
            reasons["device_read_bytes"] = (
                f"reads of a {self._mount.fstype} filesystem are not attributed to processes"
            )
        if isinstance(device, str) or isinstance(self._first_device, str):
            reasons |= dict.fromkeys(_DEVICE, str(device))
        else:
            values |= {
                name: end - start
                for name, start, end in zip(_DEVICE, self._first_device, device, strict=True)
            }
        if "device_read_bytes" not in values:
            reasons["read_amplification"] = reasons["device_read_bytes"]
        elif not payload_bytes:
            reasons["read_amplification"] = "no payload was requested"
        else:
            values["read_amplification"] = values["device_read_bytes"] / payload_bytes
        typed = {name: value if name in _FLOATS else int(value) for name, value in values.items()}
        return Counters(**typed, reasons=reasons)  # type: ignore[arg-type]

    def _samples(self, *, io_last: bool) -> dict[int, _Snapshot]:
        """Read every process; our own read calls come last at the start and first at the end."""
        samples: dict[int, _Snapshot] = {pid: {} for pid in self._pids}
        own_last = sorted(self._pids, key=lambda pid: pid == os.getpid())
        readings = list(itertools.product(_READERS, own_last))
        for (read, names), pid in readings if io_last else reversed(readings):
            try:
                samples[pid] |= read(pid)
            except OSError as error:
                samples[pid] |= dict.fromkeys(names, _unreadable(error))
        return samples

    def _differences(self, last: dict[int, _Snapshot]) -> tuple[_Values, dict[str, str]]:
        values: _Values = {}
        reasons: dict[str, str] = {}
        for name in _ADDED:
            starts, ends = ([sample[name] for sample in side.values()] for side in (self._first, last))
            missing = [value for value in (*starts, *ends) if isinstance(value, str)]
            if missing or not starts:
                reasons[name] = missing[0] if missing else "the probe was not started"
            else:
                values[name] = sum(map(float, ends)) - sum(map(float, starts))
        if "read_calls" in values and os.getpid() in self._pids:
            values["read_calls"] -= 1  # our own read of /proc/self/io at the start
        return values, reasons


def _read_io(pid: int) -> _Values:
    # Exactly one system call, so that the probe's own read calls can be subtracted.
    fields = dict(line.split(": ") for line in _slurp(f"/proc/{pid}/io").splitlines())
    return {"device_read_bytes": int(fields["read_bytes"]), "read_calls": int(fields["syscr"])}


def _read_stat(pid: int) -> _Values:
    # The command's name may contain spaces and brackets, so fields are counted after it, from field 3.
    rest = _slurp(f"/proc/{pid}/stat").rpartition(")")[2].split()
    minor, minor_children, major, major_children, user, system, user_children, system_children = (
        int(value) for value in rest[7:15]
    )
    user_s, system_s = (user + user_children) * TICK_S, (system + system_children) * TICK_S
    if pid == os.getpid():
        usage, children = _own_usage()
        user_s, system_s = usage.ru_utime + children.ru_utime, usage.ru_stime + children.ru_stime
    return {
        "minor_faults": minor + minor_children,
        "major_faults": major + major_children,
        "cpu_user_s": user_s,
        "cpu_system_s": system_s,
    }


def _own_usage() -> tuple[resource.struct_rusage, resource.struct_rusage]:
    return resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)


_READERS = ((_read_stat, (*_FAULTS, *_CPU)), (_read_io, _IO))


def _status(text: str, name: str) -> int | None:
    match = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None


def _slurp(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 16).decode("utf-8", "surrogateescape")
    finally:
        os.close(fd)


def _unreadable(error: OSError) -> str:
    return f"{error.filename or '/proc'}: {error.strerror}"


def _peak(pids: Iterable[int], reasons: dict[str, str]) -> _Values:
    total = 0
    for pid in pids:
        try:
            kib = _status(_slurp(f"/proc/{pid}/status"), "VmHWM")
        except OSError as error:
            reasons["peak_rss_bytes"] = _unreadable(error)
            return {}
        if kib is None:
            reasons["peak_rss_bytes"] = f"pid {pid} had ended"
            return {}
        total += kib * 1024
    return {"peak_rss_bytes": total}


def _block_device(mount: Mount) -> tuple[int, int] | str:
    """Return the bytes and the reads that the device has completed since boot, or the reason why they are unknown."""
    if mount.device is None:
        return f"{mount.fstype} on {mount.point} has no block device of its own"
    major, minor = mount.device
    try:
        fields = _slurp(f"/sys/dev/block/{major}:{minor}/stat").split()
    except OSError as error:
        return _unreadable(error)
    return int(fields[2]) * SECTOR_BYTES, int(fields[0])


# Running totals at one moment, in seconds; without those that are unknown.
_Totals = dict[str, float]


class OtherWork:
    """Count the work of others from the moment it is made until `conditions`.

    Children must have been waited for by then; `running_s` returns the CPU seconds of one that goes on.
    """

    def __init__(self, running_s: Callable[[], float] = float) -> None:
        self._cpus = sorted(os.sched_getaffinity(0))
        self._load = os.getloadavg()[0]
        self._running_s = running_s
        self._before = _totals(self._cpus, running_s())

    def conditions(self, attempt: int = 1) -> "Conditions":
        """Return the other work since this probe was made, with the verdict of the rule for disturbed replicates."""
        from storebench.record.schema import Conditions, disturbance  # as above

        before, after = self._before, _totals(self._cpus, self._running_s())
        grown = {name: max(0.0, after[name] - before[name]) for name in before.keys() & after.keys()}
        cores = usable_cores()
        conditions = Conditions(
            wall_s=grown["wall"],
            cores=cores,
            cpus=len(self._cpus) if cores < len(self._cpus) else None,
            load=self._load,
            # The kernel counts in ticks, so a quiet machine may come out just below zero.
            others_cpu_s=max(0.0, grown["busy"] - grown["own"]) if "busy" in grown else None,
            steal_s=grown.get("steal"),
            throttled_s=grown.get("throttled"),
            attempt=attempt,
        )
        return dataclasses.replace(conditions, disturbed=disturbance(conditions))


def _totals(cpus: list[int], running_s: float) -> _Totals:
    own_s = running_s + sum(usage.ru_utime + usage.ru_stime for usage in _own_usage())
    totals = {"wall": time.monotonic(), "own": own_s}
    lines = dict(re.findall(r"^cpu(\d+) (.*)$", read_text("/proc/stat") or "", re.MULTILINE))
    if all(str(cpu) in lines for cpu in cpus):
        ticks = [[int(field) for field in lines[str(cpu)].split()] for cpu in cpus]
        # User, nice and system. Interrupts are left out: most of them serve the cell's own I/O.
        totals["busy"] = TICK_S * sum(sum(fields[:3]) for fields in ticks)
        totals["steal"] = TICK_S * sum(fields[7] for fields in ticks)
    throttled_s = []
    for folder in cpu_groups():
        match = re.search(
            r"^throttled_(usec|time) (\d+)$", read_text(folder / "cpu.stat") or "", re.MULTILINE
        )
        if match:
            throttled_s.append(int(match[2]) * (1e-6 if match[1] == "usec" else 1e-9))
    if throttled_s:
        totals["throttled"] = max(throttled_s)
    return totals
