"""The page cache during an epoch: the requested state and the measured residency."""

import enum
from dataclasses import dataclass

from storebench.settings.words import CacheState


class CacheVerdict(enum.StrEnum):
    """Whether the page cache was in the requested state."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    """No state was requested, or the kernel cannot count resident pages."""
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class ResidencyPoint:
    """Resident share of the store at one moment of an epoch.

    Attributes
    ----------
    elapsed_s
        Seconds since the first request of the epoch.
    asked_frac
        Share of the samples of the store that had been requested by then.
    resident_frac
        Resident pages over all pages of the store's data files.
    """

    elapsed_s: float
    asked_frac: float
    resident_frac: float


COLD_SHARES = (0.02, 0.05, 0.10, 0.25, 1.0)
"""Shares of a store up to which its rate from a cold start is given."""


@dataclass(frozen=True, kw_only=True)
class ColdRate:
    """Rate from a cold start up to the moment at which some share of the store had been read.

    Attributes
    ----------
    read_frac
        Share of the samples of the store, one of `COLD_SHARES`.
    samples_per_s
        Samples up to the end of the step that reached this share, over the time since the first request.
    resident_frac
        Resident pages over all pages of the store at that moment; null if they were not counted.
    excess_frac
        Largest difference of the resident and the requested share up to then; null if pages were not counted.
    """

    read_frac: float
    samples_per_s: float
    resident_frac: float | None
    excess_frac: float | None


@dataclass(frozen=True, kw_only=True)
class CacheFacts:
    """State of the page cache for the store's files, requested and measured.

    Attributes
    ----------
    method
        How the state was produced and counted ("fadvise+cachestat"), or "none".
    resident_frac_before, resident_frac_after
        Resident pages over all pages of the store's data files, just before the
        first timed step and just after the last; null if nothing could count them.
    applies_to
        "epoch", or "open" if the epoch was served from memory: by a reader that holds all pixels after opening, or by the
        data store of the ranks.
    reason
        Why the verdict is not "verified", or "".
    curve
        Residency as a function of the requested share, sampled during the epoch; empty if it was not sampled.
    sampling_cpu_s
        CPU seconds of the sampler process; null without a curve.
    resident_max_frac
        Largest sampled residency; null without a curve.
    sampling_error_frac
        Sampling error of the curve's residency: 0 if all files were counted, 0.044 if a random 512 of them were.
    recounts
        Counts during the epoch that were repeated because they were above the limit of the page cache.
    metadata
        State of the directory entries and inodes of the store at the first timed access: "hot", "cold" or "unknown".
    limit_bytes
        Limit of the page cache plus the new memory of the processes of the cell; null without a limit.
    limit_peak_bytes
        Peak use up to the end of this epoch, as counted by the kernel.
    limit_own_bytes
        Memory of the processes themselves at the end of this epoch; the page cache can hold that much less than
        the limit.
    """

    requested: CacheState
    method: str
    resident_frac_before: float | None
    resident_frac_after: float | None
    verdict: CacheVerdict
    applies_to: str = "epoch"
    reason: str = ""
    curve: tuple[ResidencyPoint, ...] = ()
    sampling_cpu_s: float | None = None
    resident_max_frac: float | None = None
    sampling_error_frac: float = 0.0
    recounts: int = 0
    metadata: str = "unknown"
    limit_bytes: int | None = None
    limit_peak_bytes: int | None = None
    limit_own_bytes: int | None = None
