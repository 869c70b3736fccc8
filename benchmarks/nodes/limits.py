"""The limits of emulated nodes, their measurements, and whether they held."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.nodes.network import burst_bytes

MB = 1e6
BUSY_MOST_FRAC = 0.8
"""Busy share of the cores above which nodes wait for cores that real nodes would have."""

WINDOW_S = 2.0
"""Window for the peak of a rate."""

TOLERATED_FRAC = 0.05
REACHED_LEAST_FRAC = 0.85
"""Share of a limit that a probe must reach. Below it, something else limits the node."""

_SLICES_S = 0.2
"""The kernel accounts for reads in slices of 0.1 s; a window partly covers two more."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of emulated nodes.

    Attributes
    ----------
    link_bytes_per_s
        Rate of each node's link in each direction, headers included.
    device_bytes_per_s
        Rate of each node's disk; infinity for no limit.
    memory_bytes
        Memory of each node, its page cache included.
    """

    link_bytes_per_s: float
    device_bytes_per_s: tuple[float, ...]
    memory_bytes: int = 2 << 30

    def __str__(self) -> str:
        """Return the limits in words."""
        disks = ", ".join(
            "unlimited" if rate == math.inf else f"{rate / MB:g}" for rate in self.device_bytes_per_s
        )
        return (
            f"links of {self.link_bytes_per_s / MB:g} MB/s in each direction, disks of {disks} MB/s, "
            f"{self.memory_bytes / 2**20:,.0f} MiB of memory each"
        )


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The rates of the nodes under their limits, measured before a run with nothing else running.

    Attributes
    ----------
    sent_bytes_per_s
        TCP from each node to the next, and from the last to the first, in turn; bytes of content.
    device_bytes_per_s
        Reads of 256 KiB, one at a time, from the disk of each node.
    """

    sent_bytes_per_s: tuple[float, ...]
    device_bytes_per_s: tuple[float, ...]

    @property
    def link_bytes_per_s(self) -> float:
        """The rate of the slowest link."""
        return min(self.sent_bytes_per_s)

    def __str__(self) -> str:
        """Return the rates in words."""
        return (
            f"links reach {_listed(self.sent_bytes_per_s)} MB/s from each node to the next, "
            f"and disks {_listed(self.device_bytes_per_s)} MB/s"
        )

    def marks(self, limits: Limits) -> list[str]:
        """Return one line per limit that a node does not reach or exceeds."""
        links = [limits.link_bytes_per_s] * len(self.sent_bytes_per_s)
        return [
            *_unreached("the link from", self.sent_bytes_per_s, links),
            *_unreached("the disk of", self.device_bytes_per_s, limits.device_bytes_per_s),
        ]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Traffic of the nodes during an epoch; one value per node.

    Attributes
    ----------
    seconds
        Duration of the epoch.
    received_bytes, sent_bytes, read_bytes
        Bytes over the link and from the disk of each node.
    received_peak, sent_peak, read_peak
        The largest bytes per second over `WINDOW_S`, or over the epoch if that is shorter.
    busy_frac
        Busy share of this machine's cores.
    """

    seconds: float
    received_bytes: tuple[float, ...]
    sent_bytes: tuple[float, ...]
    read_bytes: tuple[float, ...]
    received_peak: tuple[float, ...]
    sent_peak: tuple[float, ...]
    read_peak: tuple[float, ...]
    busy_frac: float

    def __str__(self) -> str:
        """Return the mean rates in words."""
        received, sent, read = (
            _listed([count / self.seconds for count in counts])
            for counts in (self.received_bytes, self.sent_bytes, self.read_bytes)
        )
        return f"received {received}, sent {sent}, read {read} MB/s, cores {self.busy_frac:.0%} busy"

    def marks(self, limits: Limits) -> list[str]:
        """Return one line per limit that did not hold, and one if the cores were too busy."""
        window_s = min(WINDOW_S, self.seconds)
        links = [_most(limits.link_bytes_per_s, window_s, burst_bytes(limits.link_bytes_per_s))] * len(
            self.sent_peak
        )
        disks = [_most(rate, window_s, rate * _SLICES_S) for rate in limits.device_bytes_per_s]
        found = [
            *_exceeded("the link from", self.sent_peak, links),
            *_exceeded("the link to", self.received_peak, links),
            *_exceeded("the disk of", self.read_peak, disks),
        ]
        if self.busy_frac > BUSY_MOST_FRAC:
            found.append(f"the cores were {self.busy_frac:.0%} busy ({BUSY_MOST_FRAC:.0%} is tolerated)")
        return found


def _most(rate: float, window_s: float, burst: float) -> float:
    """Return the highest rate over a window that a limit permits."""
    return rate * (1 + TOLERATED_FRAC) + burst / window_s


def _exceeded(what: str, peaks: Sequence[float], most: Sequence[float]) -> list[str]:
    return [
        f"{what} node {node} carried {peak / MB:.1f} MB/s, and its limit allows {allowed / MB:.1f}"
        for node, (peak, allowed) in enumerate(zip(peaks, most, strict=True))
        if peak > allowed
    ]


def _unreached(what: str, rates: Sequence[float], limits: Sequence[float]) -> list[str]:
    return [
        f"{what} node {node} reaches {rate / MB:.1f} MB/s, and its limit is {limit / MB:.1f}"
        for node, (rate, limit) in enumerate(zip(rates, limits, strict=True))
        if limit != math.inf and not REACHED_LEAST_FRAC * limit <= rate <= (1 + TOLERATED_FRAC) * limit
    ]


def _listed(rates: Sequence[float]) -> str:
    return "/".join(f"{rate / MB:.1f}" for rate in rates)
