"""The storage roofline as a formula: the delivered rate as a function of the accelerator's ingestion rate."""

from dataclasses import dataclass

BUSY_FRAC = 0.9
"""Below this share of its time, an accelerator is starving."""


@dataclass(frozen=True, kw_only=True)
class RooflineModel:
    """The rate at which a loop trains, from the rates of its loader and of its accelerator.

    Attributes
    ----------
    supply
        Samples per second that the loader delivers if nothing is computed.
    constant_s
        Seconds per sample that a step takes in addition: the handoff of its batch, and the loop itself.
    overlap
        Whether producers make batches while the accelerator computes.
    """

    supply: float
    constant_s: float
    overlap: bool

    def delivered(self, ingestion: float) -> float:
        """Return the samples per second that reach an accelerator that can ingest `ingestion` of them per second."""
        step_s = 1 / ingestion + self.constant_s
        return min(self.supply, 1 / step_s) if self.overlap else 1 / (step_s + 1 / self.supply)

    @property
    def starving(self) -> float:
        """The ingestion rate, in samples per second, above which the accelerator is busy less than `BUSY_FRAC`."""
        idle_frac = 1 / BUSY_FRAC - 1
        if not self.overlap:
            return idle_frac / (1 / self.supply + self.constant_s)
        full = self.supply / BUSY_FRAC
        return min(full, idle_frac / self.constant_s) if self.constant_s > 0 else full
