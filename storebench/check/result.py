"""The result of a check for one cell: its state, the figures behind it and the reason."""

import enum
from dataclasses import dataclass

from storebench.check.counters import CounterResult
from storebench.check.pairs import UNCALIBRATED


class CellState(enum.StrEnum):
    """The verdict on one cell."""

    BETTER = "better"
    WORSE = "worse"
    WITHIN_NOISE = "within noise"
    INCONCLUSIVE = "inconclusive"
    NOT_GATED = "not gated"
    """Its counters are as good; the policy leaves its time uncompared."""
    NOT_COMPARABLE = "not comparable"
    MISSING = "missing"
    """The baseline has it and the contender does not."""
    NEW = "new"
    """The contender has it and the baseline does not."""
    FAILED = "failed"
    """The contender's cell could not be measured as requested."""


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The verdict on one cell, with figures and reason.

    Attributes
    ----------
    ratio
        Time of the contender over time of the baseline; above 1 is slower. None if not compared. Where `basis` is
        adjusted, what the sides' calibrations explain of it is removed.
    low, high
        Interval of `ratio` for this cell alone.
    p_adjusted
        p-value of "the ratio is 1", corrected for the number of cells.
    floor_frac
        The cell's own noise floor: the smallest difference that its spread allows to call.
    threshold_frac
        The larger of the policy's threshold and the floor, which the ratio had to exceed.
    practical_frac
        The policy's threshold for this cell.
    basis
        Basis of the comparison ("seconds", "seconds, adjusted by the calibration", "seconds, not calibrated",
        "seconds, interleaved", "ratio to memory"), or "".
    replicates
        (baseline's, contender's).
    confirmed
        Whether a second run of a suspected cell was slow again; None if there was none.
    seconds
        (baseline's, contender's) seconds per sample, the median of the replicates; None if not compared.
    samples
        Samples that one round serves; None if unknown.
    calibrated_ratio
        `ratio` with each side divided by its own calibration; None if one side has none.
    machine_ratio
        Time of the calibration on the contender's side over that on the baseline's; None likewise.
    tail_of
        What `tail_ratio` compares ("slowest tenth of the rounds", "p99 of the steps"), or "".
    tail_ratio, tail_low, tail_high
        Same as `ratio`, `low` and `high`, for the tail; None if it was not compared.
    rounds_ratio
        Median of the rounds' ratios if rounds were paired, else the ratio of the medians, in plain seconds where
        `basis` is adjusted; None if not compared.
    slowest_ratio
        Mean cost of the slowest tenth of the contender's replicates (at least one) over the baseline's; None if
        not compared.
    slowest_frac
        Amount by which `slowest_ratio` and `tail_ratio` may exceed 1; None if not compared.
    more_rounds
        Further replicates on each side that would decide an inconclusive cell; None if no practicable number
        would, or if none are needed.
    round_s
        Seconds for one replicate on both sides; 0 if unknown.
    """

    cell_id: str
    label: str
    state: CellState
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_adjusted: float | None = None
    floor_frac: float | None = None
    threshold_frac: float | None = None
    practical_frac: float | None = None
    basis: str = ""
    replicates: tuple[int, int] = (0, 0)
    counters: tuple[CounterResult, ...] = ()
    reason: str = ""
    confirmed: bool | None = None
    rerun: str = ""
    seconds: tuple[float, float] | None = None
    samples: int | None = None
    calibrated_ratio: float | None = None
    machine_ratio: float | None = None
    tail_of: str = ""
    tail_ratio: float | None = None
    tail_low: float | None = None
    tail_high: float | None = None
    rounds_ratio: float | None = None
    slowest_ratio: float | None = None
    slowest_frac: float | None = None
    more_rounds: int | None = None
    round_s: float = 0.0

    @property
    def worse_counters(self) -> tuple[CounterResult, ...]:
        """The counters that left their band in the wrong direction."""
        return tuple(counter for counter in self.counters if counter.worse)

    @property
    def above_threshold(self) -> str:
        """The first figure that exceeds its threshold in the wrong direction, proven or not, in words; "" if none does."""
        means, slow = self.practical_frac or 0.0, self.slowest_frac or 0.0
        figures = (
            ("it", self.ratio, means),
            ("the median of its rounds", self.rounds_ratio, means),
            (f"the {self.tail_of}", self.tail_ratio, slow),
            ("the slowest tenth of its replicates", self.slowest_ratio, slow),
        )
        above = (
            f"{subject} took {ratio:.2f} times as long"
            for subject, ratio, frac in figures
            if ratio is not None and ratio > 1 + frac
        )
        return next(above, "")

    @property
    def perhaps_slower(self) -> bool:
        """Whether nothing is proven, but a figure exceeds a threshold in the wrong direction."""
        return self.state is CellState.INCONCLUSIVE and bool(self.above_threshold)

    @property
    def suspected(self) -> bool:
        """Whether time alone is worse, or may be, and a second run can tell.

        Its own interval excludes "no difference", before any correction.
        """
        if self.worse_counters or self.basis == UNCALIBRATED:
            return False
        alone = self.low is not None and self.low > 1
        slower = self.ratio is not None and self.ratio > 1 + (self.practical_frac or 0.0)
        return self.state is CellState.WORSE or (self.state is CellState.INCONCLUSIVE and alone and slower)
