"""The parts of a record of every cell: store, code, machine, page cache, conditions, counters, steady steps and proof."""

import enum
from dataclasses import dataclass, field
from typing import Any

from storebench.settings.words import CacheState


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """Description of the store, from its manifest."""

    count: int
    image_shape: tuple[int, int, int]
    payload_bytes: int
    file_bytes: int
    bytes_on_disk: int
    build_s: float
    samples_digest: str
    lossless: bool
    origin: str
    source: str
    derived_frac: float
    provenance_note: str = ""
    psnr_db: float | None = None  # Peak signal-to-noise ratio of lossy images, over all pixels of the store.
    skipped_files: int = 0  # Number of unreadable image files that were left out of its samples, as asked.


@dataclass(frozen=True, kw_only=True)
class CodeFacts:
    """The code that a cell ran."""

    digest: str  # Digest of the installed package's Python files.
    commit: str = ""
    """Git commit of the checkout of the package, with "+changes" if the tree differs; "" outside a checkout."""
    plugin: str = ""
    """Name, commit and digest of the package that registered the backend, "NAME COMMIT DIGEST" with "-" for a missing
    commit; "" for a built-in backend."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The machine and the libraries of a measurement."""

    key: str  # Digest of `match`: durations with equal keys can be compared.
    match: dict[str, Any]  # Facts that must be equal for two results to be compared.
    notes: dict[str, Any]  # Facts that need not be equal.


class CacheVerdict(enum.StrEnum):
    """Whether the page cache was in the requested state."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    """No state was requested, or the kernel cannot count resident pages."""
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class ResidencyPoint:
    """Resident share of the store at one moment of an epoch."""

    elapsed_s: float  # Seconds since the first request of the epoch.
    asked_frac: float  # Share of the samples of the store that had been requested by then.
    resident_frac: float  # Resident pages over all pages of the store's data files.


COLD_SHARES = (0.02, 0.05, 0.10, 0.25, 1.0)
"""Shares of a store up to which its rate from a cold start is given."""


@dataclass(frozen=True, kw_only=True)
class ColdRate:
    """Rate from a cold start up to the moment at which some share of the store had been read."""

    read_frac: float  # Share of the samples of the store, one of `COLD_SHARES`.
    samples_per_s: float
    """Samples up to the end of the step that reached this share, over the time since the first request."""
    resident_frac: float | None
    """Resident pages over all pages of the store at that moment; null if they were not counted."""
    excess_frac: float | None
    """Largest difference of the resident and the requested share up to then; null if pages were not counted."""


@dataclass(frozen=True, kw_only=True)
class CacheFacts:
    """State of the page cache for the store's files, requested and measured."""

    requested: CacheState
    method: str  # How the state was produced and counted ("fadvise+cachestat"), or "none".
    resident_frac_before: float | None
    """Resident pages over all pages of the store's data files just before the first timed step; null if nothing could
    count them."""
    resident_frac_after: float | None  # The same just after the last timed step.
    verdict: CacheVerdict
    applies_to: str = "epoch"
    """"epoch", or "open" if the epoch was served from memory: by a reader that holds all pixels after opening, or by the
    data store of the ranks."""
    reason: str = ""  # Why the verdict is not "verified", or "".
    curve: tuple[ResidencyPoint, ...] = ()
    """Residency as a function of the requested share, sampled during the epoch; empty if it was not sampled."""
    sampling_cpu_s: float | None = None  # CPU seconds of the sampler process; null without a curve.
    resident_max_frac: float | None = None  # Largest sampled residency; null without a curve.
    sampling_error_frac: float = 0.0
    """Sampling error of the curve's residency: 0 if all files were counted, 0.044 if a random 512 of them were."""
    recounts: int = 0
    """Counts during the epoch that were repeated because they were above the limit of the page cache."""
    metadata: str = "unknown"
    """State of the directory entries and inodes of the store at the first timed access: "hot", "cold" or "unknown"."""
    limit_bytes: int | None = None
    """Limit of the page cache plus the new memory of the processes of the cell; null without a limit."""
    limit_peak_bytes: int | None = None  # Peak use up to the end of this epoch, as counted by the kernel.
    limit_own_bytes: int | None = None
    """Memory of the processes themselves at the end of this epoch; the page cache can hold that much less than the
    limit."""


OTHERS_MOST_FRAC = 0.20
"""Share of its cores that other work may take while a replicate runs; above it, the replicate was disturbed. Threads of
the kernel that read and reclaim pages on behalf of a cell count as other work too, and stay below it."""

MOST_ATTEMPTS = 2
"""A disturbed replicate is repeated once. The second attempt counts, whatever the machine did."""


@dataclass(frozen=True, kw_only=True)
class PlaceFacts:
    """The place that a cell names: its server, what is emulated there, and what was achieved when the run began."""

    server: str
    emulated_first_byte_ms: float | None = None
    emulated_round_trip_ms: float | None = None
    emulated_mb_s: float | None = None
    first_byte_ms: float | None = None  # Median time of a request for one byte.
    mb_s: float | None = (
        None  # Megabytes per second of one large object in one request, after its first byte.
    )
    copy_s: float | None = None  # Seconds that this replicate took to copy the store to this disk.

    @property
    def title(self) -> str:
        """The server in words, with everything that is emulated."""
        words = {
            "a first byte of {:g} ms": self.emulated_first_byte_ms,
            "a round trip of {:g} ms": self.emulated_round_trip_ms,
            "{:g} MB/s": self.emulated_mb_s,
        }
        emulated = [word.format(value) for word, value in words.items() if value is not None]
        return f"{self.server} (emulated: {', '.join(emulated)})" if emulated else self.server

    @property
    def achieved(self) -> str:
        """What was measured there, in words; "" if nothing was."""
        if self.first_byte_ms is None or self.mb_s is None:
            return ""
        return f"measured there: first byte {self.first_byte_ms:g} ms, one request {self.mb_s:g} MB/s"


@dataclass(frozen=True, kw_only=True)
class RequestFacts:
    """The requests to an object store that ended during an epoch, those of all readers together."""

    count: int
    received_bytes: int
    p50_ms: float  # From the start of a request to its last byte.
    p99_ms: float
    in_flight: (
        float  # Mean number of requests under way, from the first request's start to the last one's end.
    )


@dataclass(frozen=True, kw_only=True)
class ServedFacts:
    """The answers of a run's own object store during an epoch, by its own counters: those to a library's own client, too."""

    count: int
    sent_bytes: int


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What else the machine did while the process of a replicate ran, from the start of its job to its end.

    A figure that could not be read is null.
    """

    wall_s: float  # Seconds from the start of the process to its end, preparation and proof included.
    cores: int  # CPUs that the process may use. The CPU seconds below are of these alone.
    load: float | None = None  # Load average of the last minute when it started.
    others_cpu_s: float | None = None
    """CPU seconds of processes and kernel threads that belong neither to the replicate nor to the runner."""
    steal_s: float | None = None  # CPU seconds that a hypervisor gave to other machines.
    throttled_s: float | None = None
    """Seconds for which a CPU quota stopped the processes of this control group, summed over CPUs."""
    clock_throttles: int | None = None  # How often CPUs lowered their clock because of heat or power.
    disturbed: str = ""  # Why the replicate counts as disturbed; "" if it does not.
    attempt: int = 1
    """1, or 2 if the first attempt was disturbed and the scenario repeats such replicates. The record of the first is
    then in `superseded.jsonl`."""

    @property
    def others_frac(self) -> float | None:
        """Share of the cores that other processes and other machines took; None if it was not counted."""
        if self.others_cpu_s is None or self.wall_s <= 0 or self.cores < 1:
            return None
        return (self.others_cpu_s + (self.steal_s or 0.0)) / (self.wall_s * self.cores)

    @property
    def repeats(self) -> bool:
        """Whether the rule asks for another attempt."""
        return bool(self.disturbed) and self.attempt < MOST_ATTEMPTS


def disturbance(conditions: Conditions) -> str:
    """Return why a replicate counts as disturbed, or "": other work took more than `OTHERS_MOST_FRAC` of its cores."""
    share = conditions.others_frac
    if share is None or share <= OTHERS_MOST_FRAC:
        return ""
    return f"other work took {share:.0%} of the cores ({OTHERS_MOST_FRAC:.0%} is tolerated)"


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counters of the kernel for the training process and its workers over the steps of the epoch.

    A counter that could not be read is null; `reasons` says why, by name.
    """

    device_read_bytes: int | None = None
    """Bytes that block devices delivered for these processes (/proc/PID/io read_bytes)."""
    block_device_read_bytes: int | None = None
    """Bytes that the block device of the store delivered to all processes in the same time (/sys/block stat); in a job on
    several nodes, the sum over their devices."""
    block_device_reads: int | None = (
        None  # Reads that the block device completed for them; merged requests count once.
    )
    major_faults: int | None = None  # Page faults with I/O.
    minor_faults: int | None = None  # Page faults without I/O.
    read_calls: int | None = None  # System calls that read (/proc/PID/io syscr).
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    cpu_user_s: float | None = None
    cpu_system_s: float | None = None
    peak_rss_bytes: int | None = None
    """Sum of the largest resident sets of the training process and of its workers."""
    read_amplification: float | None = None  # `device_read_bytes` over payload bytes.
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def cpu_s(self) -> float | None:
        """CPU seconds in user and kernel mode; None if either is unknown."""
        if self.cpu_user_s is None or self.cpu_system_s is None:
            return None
        return self.cpu_user_s + self.cpu_system_s


TIER_BURST_S = 0.5
"""The kernel may let this much of a second's allowance through at once."""


@dataclass(frozen=True, kw_only=True)
class TierFacts:
    """An emulated tier of storage: its limits, and the reads of the device that it let through in an epoch."""

    disk: str  # Number of the limited block device, such as "8:0".
    limit_bytes_per_s: float | None  # Null for no limit.
    limit_requests_per_s: float | None  # Null for no limit.
    read_bytes: int  # Bytes that the kernel counted for the control group of the cell.
    requests: int  # Requests that it counted.
    seconds: float  # From the start of the epoch to its end.

    @property
    def exceeded(self) -> str:
        """Why the limits were not in force, or ""."""
        for name, done, limit in (
            ("bytes", self.read_bytes, self.limit_bytes_per_s),
            ("requests", self.requests, self.limit_requests_per_s),
        ):
            if limit and done > 1.05 * limit * (self.seconds + TIER_BURST_S):
                return f"{done / self.seconds:,.0f} {name}/s passed a limit of {limit:,.0f}"
        return ""


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """Ceilings and yardsticks, measured in the same run; null if not measured.

    A correct reader cannot exceed a ceiling. It can exceed a yardstick, which is one simple way to do the same work.
    """

    gather_samples_per_s: float | None = None
    """A yardstick: numpy.take(..., out=) in its default mode, which copies each sample twice, from one array in memory,
    in the same process (`storebench.probes.rates`)."""
    copy_ceiling_samples_per_s: float | None = None
    """The ceiling of one copying thread: the fastest way found to gather such samples, shuffled or in order as the cell
    reads them."""
    copy_method: str = ""  # Name of that way.
    memory_bytes_per_s: float | None = None  # `copy_ceiling_samples_per_s` in bytes per second.
    device_random_1_bytes_per_s: float | None = None
    """A yardstick: O_DIRECT reads of one payload's size at random offsets, one at a time (`storebench.probes.rates`)."""
    device_random_4_bytes_per_s: float | None = None
    """The same with 4 requests in flight. A reader that merges requests can exceed these."""
    device_random_16_bytes_per_s: float | None = None  # With 16 requests in flight.
    device_random_32_bytes_per_s: float | None = None  # With 32 requests in flight.
    device_sequential_bytes_per_s: float | None = None  # A yardstick: O_DIRECT reads of 4 MiB in a row.
    device_best_bytes_per_s: float | None = None  # The device's ceiling: the highest of these rates.
    device_method: str = ""  # How the requests were kept in flight, and the file that was read.
    reasons: dict[str, str] = field(default_factory=dict)


STEADY_DRIFT = (0.8, 1.25)
"""A ratio of the rates of the two halves of a portion between these counts as steady."""


def steady(drift: float | None) -> bool | None:
    """Return whether `drift` is that of a steady rate; None if it is unknown."""
    return None if drift is None else STEADY_DRIFT[0] <= drift <= STEADY_DRIFT[1]


@dataclass(frozen=True, kw_only=True)
class Portion:
    """The timed steps of an epoch after a limited page cache had filled.

    Its sums are defined as in `Record`, over these steps only.
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
    """Rate of the second half of the portion over the rate of the first half; null for fewer than 4 steps."""
    edge_steps: int = 0
    """Steps at either end that `drift` leaves out, because a reader that is told the order of the epoch reads ahead in
    the first of them, and has nothing left to read in the last."""
    reason: str = ""  # Why the portion begins there.


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Distribution of a duration over the timed steps, in nanoseconds."""

    p50: int
    p95: int
    p99: int
    max: int


@dataclass(frozen=True, kw_only=True)
class Digests:
    """Hexadecimal digests that are equal for two cells that trained on the same samples in the same order."""

    order: str  # The order in which the indices were served.
    loss: str | None  # The loss of every step, bit by bit (float32). Null if nothing was computed.


KEPT_AT_LEAST = 64
"""At least this many samples of the timed batches are kept and checked; more as time allows."""

KEPT_BYTES = 64 << 20
"""At most this many bytes of pixels are kept, so fewer samples of large images are."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Samples that the epoch served, counted by the indices in the batches."""

    expected: int
    served: int
    unique: int
    duplicates: int  # Samples served more often than requested (once, or once per pass).
    missing: int  # Samples served less often than requested.
    timed_checked: int = 0  # Samples kept from the timed batches themselves and compared after the epoch.
    timed_wrong: int = 0  # Those of them that differed.
    proof_s: float = 0.0  # Seconds to keep them; in no span, and not in `timed_s`.

    @property
    def complete(self) -> bool:
        """Whether each sample was served as often as planned and no checked pixel was wrong."""
        return self.duplicates == 0 and self.missing == 0 and self.timed_wrong == 0


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Loss of the first and of the last step."""

    first: float
    last: float
