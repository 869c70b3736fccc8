"""The steady part of an epoch with a limited page cache."""

from dataclasses import dataclass

STEADY_DRIFT = (0.8, 1.25)
"""A ratio of the rates of the two halves of a portion between these counts as steady."""


def steady(drift: float | None) -> bool | None:
    """Return whether `drift` is that of a steady rate; None if it is unknown."""
    return None if drift is None else STEADY_DRIFT[0] <= drift <= STEADY_DRIFT[1]


@dataclass(frozen=True, kw_only=True)
class Portion:
    """The timed steps of an epoch after a limited page cache had filled.

    Its sums are defined as in `Record`, over these steps only.

    Attributes
    ----------
    drift
        Rate of the second half of the portion over the rate of the first half; null for fewer than 4 steps.
    edge_steps
        Steps at either end that `drift` leaves out, because a reader that is told the order of the epoch reads ahead in
        the first of them, and has nothing left to read in the last.
    reason
        Why the portion begins there.
    """

    first_step: int
    steps: int
    samples: int
    seconds: float
    samples_per_s: float
    payload_bytes: int
    data_wait_s: float
    h2d_s: float
    compute_s: float
    fetch_s: float
    decode_s: float
    prep_s: float
    handover_s: float
    drift: float | None = None
    edge_steps: int = 0
    reason: str = ""
