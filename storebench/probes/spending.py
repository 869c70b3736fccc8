"""The resources of work between the steps of an epoch, which are subtracted from the counters of the epoch."""

import contextlib
import dataclasses
import resource
from collections.abc import Iterator
from typing import Any

from storebench.probes.batch_io import IO_COLUMNS, METER, BatchIo
from storebench.results import Counters

_USAGE = {
    "cpu_user_s": "ru_utime",
    "cpu_system_s": "ru_stime",
    "voluntary_switches": "ru_nvcsw",
    "involuntary_switches": "ru_nivcsw",
}
"""Field of `Counters` -> the kernel's counter of this process."""

_SHARED = "other work read from the device in the same time"


class Spending:
    """Sum of the resources that this process uses inside `counted`, while `storebench.probes.batch_io.METER` counts."""

    def __init__(self) -> None:
        self.own_reads = 0
        self._used: dict[str, float] | None = {}
        self._times = 0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count the resources used inside the with statement."""
        self._read()
        before = _usage()
        yield
        after, io = _usage(), self._read()
        self._times += 1
        if io is None or self._used is None:
            self._used = None
            return
        spent = {name: after[name] - before[name] for name in _USAGE}
        spent |= {name: getattr(io, name) for name in IO_COLUMNS}
        self._used = {name: self._used.get(name, 0) + value for name, value in spent.items()}

    @property
    def device_read_bytes(self) -> int | None:
        """Bytes that block devices delivered; None if the kernel does not show them."""
        return None if self._used is None else int(self._used.get("device_read_bytes", 0))

    def taken_out(self, counters: Counters, payload_bytes: int) -> Counters:
        """Return the counters of an epoch less the resources counted here."""
        if not self._times:
            return counters
        left: dict[str, Any] = {name: self._left(name, counters) for name in (*IO_COLUMNS, *_USAGE)}
        delivered = left["device_read_bytes"]
        amplification = delivered / payload_bytes if delivered is not None and payload_bytes else None
        return dataclasses.replace(
            counters,
            **left,
            block_device_read_bytes=None,
            read_amplification=amplification,
            reasons=counters.reasons | {"block_device_read_bytes": _SHARED},
        )

    def _left(self, name: str, counters: Counters) -> float | None:
        whole = getattr(counters, name)
        return None if whole is None or self._used is None else whole - self._used.get(name, 0)

    def _read(self) -> BatchIo | None:
        io = METER.read()
        self.own_reads += 0 if io is None else io.own_reads
        return io


def _usage() -> dict[str, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {name: getattr(usage, own) for name, own in _USAGE.items()}
