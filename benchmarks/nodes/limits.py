"""The limits of emulated nodes, and the rates that they reach."""

from collections.abc import Sequence
from dataclasses import dataclass

MB = 1e6
TOLERATED_FRAC = 0.05
# A probe that reaches less of a limit than this is limited by something else.
REACHED_LEAST_FRAC = 0.85


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of emulated nodes; memory includes the page cache."""

    link_bytes_per_s: float
    device_bytes_per_s: tuple[float, ...]
    memory_bytes: int = 2 << 30

    def __str__(self) -> str:
        """Return the limits in words."""
        disks = ", ".join(f"{rate / MB:g}" for rate in self.device_bytes_per_s)
        return (
            f"links of {self.link_bytes_per_s / MB:g} MB/s in each direction, disks of {disks} MB/s, "
            f"{self.memory_bytes / 2**20:,.0f} MiB of memory each"
        )


@dataclass(frozen=True, kw_only=True)
class Probed:
    """Rates before a run: TCP from each node to the next, and reads of 256 KiB from each disk."""

    sent_bytes_per_s: tuple[float, ...]
    device_bytes_per_s: tuple[float, ...]

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


def _unreached(what: str, rates: Sequence[float], limits: Sequence[float]) -> list[str]:
    return [
        f"{what} node {node} reaches {rate / MB:.1f} MB/s, and its limit is {limit / MB:.1f}"
        for node, (rate, limit) in enumerate(zip(rates, limits, strict=True))
        if not REACHED_LEAST_FRAC * limit <= rate <= (1 + TOLERATED_FRAC) * limit
    ]


def _listed(rates: Sequence[float]) -> str:
    return "/".join(f"{rate / MB:.1f}" for rate in rates)
