"""The cost of communication between the ranks of a job, as `storebench.ranks.exposed` measures it."""

from dataclasses import dataclass


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
    """

    barrier_s: float | None = None
    gradient_bytes: int | None = None
    exposed_s: float | None = None
    step_s: float | None = None
    pairs: int = 0
