"""The cost of communication between the ranks of a job; `storebench.ranks.exposed` and `storebench.ranks.link` measure it."""

from dataclasses import dataclass

from storebench.results import LinkKind


@dataclass(frozen=True, kw_only=True)
class Link:
    """The link between the ranks of a job, measured while every rank sends to the next one and receives from the previous one.

    Attributes
    ----------
    kind
        What connects the ranks.
    bytes_per_s
        Bytes per second that every rank sends while it receives as many.
    latency_s
        Seconds per message of a few bytes, including the call that sends it.
    """

    kind: LinkKind
    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, kw_only=True)
class Communication:
    """The cost of communication of a job; None for what it does not have.

    Attributes
    ----------
    barrier_s
        Median duration of a barrier that all ranks enter at once.
    gradient_bytes
        Bytes of gradients that each rank contributes to a step.
    exposed_s
        Median over pairs of the duration of a step with exchange less that of one without; the slowest rank counts.
    step_s
        Median duration of the steps without exchange.
    pairs
        Number of pairs.
    link
        The link between the ranks; None if nothing is exchanged.
    """

    barrier_s: float | None = None
    gradient_bytes: int | None = None
    exposed_s: float | None = None
    step_s: float | None = None
    pairs: int = 0
    link: Link | None = None


def ideal_ring_s(size: int, ranks: int, bytes_per_s: float, latency_s: float) -> float:
    """Return the seconds of an ideal ring all-reduce.

    Every rank sends 2 (ranks - 1) messages of 1 / ranks of the bytes, one after the other. Adding up the gradients takes no
    time. A measured all-reduce may be faster: the link is measured with noise, and libraries have other algorithms.

    Parameters
    ----------
    size
        Bytes that each rank contributes.
    ranks
        Ranks of the ring.
    bytes_per_s, latency_s
        Bandwidth and latency of the link from each rank to the next one.
    """
    return 2 * (ranks - 1) * (size / ranks / bytes_per_s + latency_s)
