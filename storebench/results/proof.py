"""Percentiles of a duration, the loss, and the proof that an epoch served the right samples."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Distribution of a duration over the timed steps, in nanoseconds."""

    p50: int
    p95: int
    p99: int
    max: int


@dataclass(frozen=True, kw_only=True)
class Digests:
    """Hexadecimal digests that are equal for two cells that trained on the same samples in the same order.

    Attributes
    ----------
    order
        The order in which the indices were served.
    loss
        The loss of every step, bit by bit (float32). Null if nothing was computed.
    """

    order: str
    loss: str | None


KEPT_AT_LEAST = 64
"""At least this many samples of the timed batches are kept and checked; more as time allows."""

KEPT_BYTES = 64 << 20
"""At most this many bytes of pixels are kept, so fewer samples of large images are."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Samples that the epoch served, counted by the indices in the batches.

    Attributes
    ----------
    duplicates, missing
        Samples served more often, and less often, than requested (once, or once per pass).
    timed_checked, timed_wrong
        Samples kept from the timed batches themselves and compared after the epoch, and those that differed.
    proof_s
        Seconds to keep them; in no span, and not in `timed_s`.
    """

    expected: int
    served: int
    unique: int
    duplicates: int
    missing: int
    timed_checked: int = 0
    timed_wrong: int = 0
    proof_s: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether each sample was served as often as planned and no checked pixel was wrong."""
        return self.duplicates == 0 and self.missing == 0 and self.timed_wrong == 0


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Loss of the first and of the last step."""

    first: float
    last: float
