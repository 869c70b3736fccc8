"""The part of an epoch during which the requested cache state held."""

import enum
from dataclasses import dataclass


class PortionKind(enum.StrEnum):
    """The part of an epoch that a `Portion` covers."""

    COLD = "cold"
    """The first steps, while only requested samples are resident."""
    STEADY = "steady"
    """The steps after a limited page cache was full."""


STEADY_DRIFT = (0.8, 1.25)
"""A ratio of the rates of the two halves of a portion between these counts as steady."""


COLD_DRIFT_MOST = 2.5
"""Above this drift, a cold rate is an upper bound: no device becomes that much faster within an epoch.

Where samples share pages, it is that many times `Portion.shared_drift`.

The drift of correct short portions reached 1.9.
"""


def steady(drift: float | None) -> bool | None:
    """Return whether `drift` is that of a steady rate; None if it is unknown."""
    return None if drift is None else STEADY_DRIFT[0] <= drift <= STEADY_DRIFT[1]


@dataclass(frozen=True, kw_only=True)
class Portion:
    """The consecutive timed steps of an epoch during which the requested cache state held.

    Its sums are defined as in `Record`, over these steps only.

    Attributes
    ----------
    upper_bound
        True if `samples_per_s` can only be too high: samples that had not been requested were resident even at the end
        of the first step, which is then the portion, or the `drift` is so large that a cache may have served the
        later steps.
    asked_frac
        Share of the samples of the store that had been requested by the end of the portion.
    excess_frac
        Share of the pages of the store that were resident at its end without having been requested.
    drift
        Rate of the second half of the portion over the rate of the first half; null for fewer than 4 steps.
    shared_drift
        What `drift` would be if every new page took the same time: late samples lie on pages that earlier ones have
        brought into memory. 1 where each sample has pages of its own, or residency does not show it.
    edge_steps
        Steps at either end of a steady portion that `drift` leaves out, because a reader that is told the order of the
        epoch reads ahead in the first of them, and has nothing left to read in the last.
    reason
        Why the portion ends there.
    """

    kind: PortionKind
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
    upper_bound: bool = False
    asked_frac: float = 0.0
    excess_frac: float = 0.0
    drift: float | None = None
    shared_drift: float = 1.0
    edge_steps: int = 0
    reason: str = ""
