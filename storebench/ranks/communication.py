"""The cost of communication between the ranks of a job; `storebench.ranks.exposed` and `storebench.ranks.link` measure it."""

from dataclasses import dataclass

from storebench.results import LinkKind


@dataclass(frozen=True, kw_only=True)
class Link:
    """The link between the ranks of a job, measured while every rank sends to the next one and receives from the previous one."""

    kind: LinkKind
    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, kw_only=True)
class Communication:
    """The cost of communication of a job; None for what it does not have."""

    barrier_s: float | None = None
    gradient_bytes: int | None = None
    exposed_s: float | None = None
    step_s: float | None = None
    pairs: int = 0
    link: Link | None = None


def ideal_ring_s(size: int, ranks: int, bytes_per_s: float, latency_s: float) -> float:
    """Return the seconds of an ideal ring all-reduce."""
    return 2 * (ranks - 1) * (size / ranks / bytes_per_s + latency_s)
