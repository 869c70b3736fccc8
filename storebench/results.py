"""The record: one per replicate and epoch.

How records are written and read stands in `storebench.runs.records`.

Schema versions
---------------
1. The first. Fields are added within a version, never taken away; what an older record lacks has its default.
"""

import dataclasses
import enum
import functools
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1


class CacheVerdict(enum.StrEnum):
    """Whether the page cache was in the state that the cell asked for."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    """Nothing was asked for, or the kernel cannot be asked."""
    FAILED = "failed"


class Status(enum.StrEnum):
    """Whether a record may be used."""

    OK = "ok"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of a benchmark. Everything that decides what is measured, and nothing else.

    Attributes
    ----------
    dataset
        "mnist", "cifar10", "imagenet" or "folder:PATH".
    size, limit
        As in `storebench.datasets.base.DatasetSpec`.
    data_seed
        Seed of derived and synthetic samples.
    synthetic
        True where the stand-in was asked for; null takes real files where there are any.
    backend
        The backend's full name; `format`, `codec`, `reader`, `reader_options` are its parts.
    loader
        How batches reach the loop: "processes" (the DataLoader), "threads", "ring".
    workers
        Producers beside the loop; 0 loads in the loop's own process.
    model
        Network, or "none" where nothing is computed.
    compute
        "real", "none", or "emulated:MILLISECONDS" (a sleep that stands for an accelerator).
    cache
        Requested page-cache state: "cold" or "warm" at the start of each epoch, "limited" (the page cache may hold
        at most `memory_bytes`, so a store larger than memory is emulated), or "any".
    memory_bytes
        Limit of the page cache in a "limited" cell; None in every other.
    readahead_kib
        Read-ahead of the block device that the store is put on for this cell, in KiB; None leaves the store where
        it is, with the machine's own setting.
    max_steps
        Stop an epoch after so many steps; null runs it whole.
    passes
        How often an epoch serves the samples, each time in an order of its own; None for once. It makes the
        timed part of a fast reader long enough to be compared.
    warmup_steps
        First steps of an epoch that are recorded and flagged, and left out of rates on both sides. With workers
        the steps whose batches were begun during them are left out, too.
    seed
        Of the order, the augmentation and the network.
    threads
        Threads that compute in one process: torch's in the training process, and those of a reader that decodes in
        several, unless its own options name a number; None leaves the libraries' defaults. Worker processes and
        loader threads always compute with one thread of torch.
    """

    dataset: str
    split: str = "train"
    size: int | None = None
    limit: int | None = None
    data_seed: int = 0
    synthetic: bool | None = None
    backend: str
    format: str
    codec: str
    reader: str
    reader_options: tuple[tuple[str, str], ...] = ()
    loader: str = "processes"
    workers: int = 0
    batch_size: int
    model: str
    compute: str = "real"
    device: str = "cpu"
    seed: int = 0
    shuffle: bool = True
    epochs: int = 1
    max_steps: int | None = None
    warmup_steps: int = 0
    cache: str = "any"
    threads: int | None = None
    memory_bytes: int | None = None
    readahead_kib: int | None = None
    passes: int | None = None

    @functools.cached_property
    def cell_id(self) -> str:
        """Twelve hexadecimal digits that identify this cell."""
        fields = dataclasses.asdict(self)
        # Settings that were added later count only where they are set, so that older cells keep their ids.
        fields = {name: value for name, value in fields.items() if name not in _ADDED or value is not None}
        text = json.dumps(fields, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


_ADDED = ("memory_bytes", "readahead_kib", "passes")


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Distribution of a duration over the timed steps, in nanoseconds."""

    p50: int
    p95: int
    p99: int
    max: int


@dataclass(frozen=True, kw_only=True)
class Digests:
    """Proof that two cells trained on the same thing; hexadecimal, equal where the thing is equal.

    Attributes
    ----------
    samples
        Decoded pixels and labels of all samples that the epoch served, by index,
        before augmentation (`storebench.digests`). Null where pixels were not checked.
    order
        The order in which the indices were served.
    loss
        The loss of every step, bit by bit (float32). Null where nothing was computed.
    """

    samples: str | None
    order: str
    loss: str | None


KEPT_AT_LEAST = 64
"""So many samples of the timed batches are kept and proven whatever that takes; of more, those for which there is time."""

KEPT_BYTES = 64 << 20
"""At most so many bytes of pixels are kept, so that fewer samples are kept of large images."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What the epoch served, counted from the indices that the batches carried.

    Attributes
    ----------
    duplicates, missing
        Samples served more often, and less often, than the epoch asked for them (once, or once per pass).
    pixels_checked, pixels_wrong
        Samples compared in the replay after the epoch, and those that differed.
    timed_checked, timed_wrong
        Samples kept from the timed batches themselves and compared after the epoch, and those that differed.
    proof_s
        Seconds that keeping them took, outside every span and left out of `timed_s`.
    """

    expected: int
    served: int
    unique: int
    duplicates: int
    missing: int
    pixels_checked: int
    pixels_wrong: int
    timed_checked: int = 0
    timed_wrong: int = 0
    proof_s: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether each expected sample came exactly once and no checked pixel was wrong."""
        wrong = self.pixels_wrong + self.timed_wrong
        return self.duplicates == 0 and self.missing == 0 and wrong == 0


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Loss of the first and of the last step."""

    first: float
    last: float


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """What the store is, as its manifest says."""

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


class BelowCache(enum.StrEnum):
    """Whether a cache below this kernel (a hypervisor's, a controller's) answers reads that are cold here."""

    SEEN = "seen"
    NOT_SEEN = "not seen"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class ResidencyPoint:
    """How much of the store the page cache held at one moment of an epoch.

    Attributes
    ----------
    elapsed_s
        Since the epoch's first request.
    asked_frac
        Samples that had been asked for by then, over all samples of the store.
    resident_frac
        Resident pages over all pages of the store's data files.
    """

    elapsed_s: float
    asked_frac: float
    resident_frac: float


class PortionKind(enum.StrEnum):
    """Which part of an epoch a `Portion` is."""

    COLD = "cold"
    """The first steps, while no more is resident than was asked for."""
    STEADY = "steady"
    """The steps after a limited page cache had filled."""


STEADY_DRIFT = (0.8, 1.25)
"""Between these, the rates of the two halves of a portion count as the same."""


COLD_DRIFT_MOST = 2.5
"""Above this drift, a cold rate is an upper bound: the device does not become so much faster within an epoch.

Honest short portions were seen up to 1.9."""


def steady(drift: float | None) -> bool | None:
    """Return whether a portion's `drift` is that of a steady rate; None where it is not known."""
    return None if drift is None else STEADY_DRIFT[0] <= drift <= STEADY_DRIFT[1]


@dataclass(frozen=True, kw_only=True)
class Portion:
    """The consecutive timed steps of an epoch during which the requested cache state held.

    Its sums have the meaning that they have in `Record`, over these steps only.

    Attributes
    ----------
    upper_bound
        True where `samples_per_s` is at most too high: more was resident than was asked for even at the end of the
        first step, which is then the portion; or its `drift` is so large that something else than the device may have
        served its later steps.
    asked_frac
        Share of the store's samples that had been asked for at the portion's end.
    excess_frac
        Share of the store's pages that were resident at its end without having been asked for.
    drift
        Rate of the second half of the portion over the rate of the first half; None for fewer than 4 steps.
    reason
        Why the portion ended where it did.
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
    reason: str = ""

    @property
    def is_steady(self) -> bool | None:
        """Whether its two halves were served at the same rate, within 0.8 and 1.25; None where that is not known."""
        return steady(self.drift)


@dataclass(frozen=True, kw_only=True)
class CacheFacts:
    """State of the page cache for the store's files, requested and measured.

    Attributes
    ----------
    method
        How it was brought about and counted ("fadvise+cachestat"), or "none".
    resident_frac_before, resident_frac_after
        Resident pages over all pages of the store's data files, just before the
        first timed step and just after the last; null where nothing could count them.
    applies_to
        "epoch", or "open" for a reader that holds everything in memory from its opening on.
    reason
        Why the verdict is not "verified", or "".
    curve
        Residency as a function of what was asked for, sampled during the epoch; empty where it was not sampled.
    sampling_cpu_s
        CPU seconds that sampling the curve cost, all of them outside the loop's process; None without a curve.
    resident_max_frac
        The largest residency that was sampled; None without a curve.
    metadata
        Directory entries and inodes of the store at the first timed access: "hot", "cold" or "unknown".
    below
        Whether a cache below this kernel answers what is cold here (`storebench.probes.below`).
    below_ratio, below_low, below_high
        Duration of the first read of bytes that had not been read since boot over that of their second read, past
        this kernel's page cache, and its 95% interval; None where it was not measured.
    below_reason
        What was measured, or why the verdict is "unknown", in words; "" where it was not looked for.
    limit_bytes
        What the page cache and the new memory of the cell's processes may hold together; None without a limit.
    limit_peak_bytes
        The most that they held at any time up to this epoch's end, as the kernel counted it.
    limit_own_bytes
        The part of it that was the processes' own memory at this epoch's end: the page cache can hold so much
        less than the limit.
    """

    requested: str
    method: str
    resident_frac_before: float | None
    resident_frac_after: float | None
    verdict: CacheVerdict
    applies_to: str = "epoch"
    reason: str = ""
    curve: tuple[ResidencyPoint, ...] = ()
    sampling_cpu_s: float | None = None
    resident_max_frac: float | None = None
    metadata: str = "unknown"
    below: BelowCache = BelowCache.UNKNOWN
    below_ratio: float | None = None
    below_low: float | None = None
    below_high: float | None = None
    below_reason: str = ""
    limit_bytes: int | None = None
    limit_peak_bytes: int | None = None
    limit_own_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What the kernel counted for the training process and its workers over the epoch's steps.

    Null means that it could not be read; `reasons` says why, by name.

    Attributes
    ----------
    device_read_bytes
        Bytes that block devices delivered for these processes (/proc/PID/io read_bytes).
    block_device_read_bytes
        What the store's block device delivered to anybody in the same time (/sys/block stat).
    major_faults, minor_faults
        Page faults that waited for I/O, and that did not.
    read_calls
        read-like system calls (/proc/PID/io syscr).
    peak_rss_bytes
        Largest resident set of the training process and of its workers, added up.
    read_amplification
        device_read_bytes over payload bytes.
    """

    device_read_bytes: int | None = None
    block_device_read_bytes: int | None = None
    major_faults: int | None = None
    minor_faults: int | None = None
    read_calls: int | None = None
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    cpu_user_s: float | None = None
    cpu_system_s: float | None = None
    peak_rss_bytes: int | None = None
    read_amplification: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def cpu_s(self) -> float | None:
        """Processor seconds in the processes' own code and in the kernel for them; None where either is missing."""
        if self.cpu_user_s is None or self.cpu_system_s is None:
            return None
        return self.cpu_user_s + self.cpu_system_s


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """Ceilings and yardsticks, measured in the same run; None where not measured.

    A correct reader cannot exceed a ceiling. It can exceed a yardstick, which is one plain way to do the same work.

    Attributes
    ----------
    gather_samples_per_s
        A yardstick: numpy.take(..., out=) in its default mode, which copies each sample twice, from one array
        in memory, in the same process (`storebench.probes.gather`).
    copy_ceiling_samples_per_s
        The ceiling of one copying thread: the fastest way found to gather the same samples.
    copy_method
        Which way that was; "" in records of earlier releases.
    memory_bytes_per_s
        `copy_ceiling_samples_per_s` in bytes per second.
    device_random_1_bytes_per_s, device_random_4_bytes_per_s, device_random_16_bytes_per_s, device_random_32_bytes_per_s
        Yardsticks: O_DIRECT reads of one payload's size at random offsets, with so many requests in flight
        (`storebench.probes.device_rate`). A reader that merges requests can exceed them.
    device_sequential_bytes_per_s
        A yardstick: O_DIRECT reads of 4 MiB in a row.
    device_best_bytes_per_s
        The device's ceiling: the highest of these rates.
    device_method
        How requests were kept in flight, and which file was read; "" in records of earlier releases.
    matrix_products_per_s
        Products of two float32 [1024, 1024] matrices by torch, after real training in the same process:
        no ceiling, but what relates the training of two machines (`storebench.training.calibration`).
    """

    gather_samples_per_s: float | None = None
    copy_ceiling_samples_per_s: float | None = None
    copy_method: str = ""
    memory_bytes_per_s: float | None = None
    device_random_1_bytes_per_s: float | None = None
    device_random_4_bytes_per_s: float | None = None
    device_random_16_bytes_per_s: float | None = None
    device_random_32_bytes_per_s: float | None = None
    device_sequential_bytes_per_s: float | None = None
    device_best_bytes_per_s: float | None = None
    device_method: str = ""
    matrix_products_per_s: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CodeFacts:
    """Which code a cell ran.

    Attributes
    ----------
    digest
        Digest of the installed package's Python files.
    commit
        Git commit of the checkout that it was imported from, with "+changes" where the tree differs; "" outside one.
    plugin
        The same two of the package that registered the backend, "NAME COMMIT DIGEST" with "-" where there is
        no commit; "" for a built-in one.
    """

    digest: str
    commit: str = ""
    plugin: str = ""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where it was measured.

    Attributes
    ----------
    key
        Digest of `match`: equal keys mean comparable seconds.
    match
        What must be equal for two results to be compared.
    notes
        What a reader may want to know beside it.
    """

    key: str
    match: dict[str, Any]
    notes: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One epoch of one replicate of one cell.

    Sums of time are over the timed steps (all but the flagged warm-up steps) of
    this epoch; producer times (`fetch_s`, `decode_s`, `prep_s`) are summed over
    all workers, so they may exceed the wall time.

    Attributes
    ----------
    replicate
        Which fresh process of the cell, from 0; also the round in which it ran.
    samples, steps
        Served in the epoch, warm-up steps included.
    epoch_s
        Wall time from asking for the first batch to the end of the last step.
    timed_samples, timed_s
        Samples of the timed steps, and the wall time from the first timed step to the last.
    samples_per_s
        timed_samples / timed_s.
    data_wait_s, h2d_s, compute_s, overhead_s
        Their sum is timed_s: overhead is what the other three leave unexplained.
    accelerator_util_frac
        compute_s / timed_s; `au_kind` says whether the compute was "real" or "emulated".
    handover_s
        From a producer finishing a batch to the loop having it, less the time that the
        batch lay ready in the queue: what moving it cost.
    time_to_first_batch_s
        The first wait of the epoch (readers are open by then).
    open_s
        Opening the reader, the longest of the producers.
    prefetched_samples
        Samples of timed steps whose batch a producer had begun before the first timed step asked for its own: at
        most so many of `timed_samples` were made outside of `timed_s`. Without warm-up steps there are none.
    portion
        The steps during which the requested state of the cache held, of a cold or limited cell; None elsewhere.
    code
        Which code ran; None in records of earlier releases.
    """

    schema_version: int = SCHEMA_VERSION
    storebench_version: str
    run_id: str
    cell: Cell
    replicate: int
    epoch: int
    status: Status = Status.OK
    failure: str | None = None
    started_utc: str
    samples: int = 0
    steps: int = 0
    epoch_s: float = 0.0
    timed_samples: int = 0
    timed_steps: int = 0
    timed_s: float = 0.0
    samples_per_s: float = 0.0
    payload_bytes: int = 0
    payload_bytes_per_s: float = 0.0
    data_wait_s: float = 0.0
    h2d_s: float = 0.0
    compute_s: float = 0.0
    overhead_s: float = 0.0
    data_wait_frac: float = 0.0
    accelerator_util_frac: float | None = None
    au_kind: str = "none"
    fetch_s: float = 0.0
    decode_s: float = 0.0
    prep_s: float = 0.0
    handover_s: float = 0.0
    data_wait_ns: Percentiles | None = None
    time_to_first_batch_s: float = 0.0
    open_s: float = 0.0
    digests: Digests | None = None
    coverage: Coverage | None = None
    loss: Loss | None = None
    test_accuracy: float | None = None
    test_samples: int = 0
    store: StoreFacts | None = None
    cache: CacheFacts | None = None
    counters: Counters = field(default_factory=Counters)
    ceilings: Ceilings = field(default_factory=Ceilings)
    reader_notes: dict[str, str] = field(default_factory=dict)
    steps_file: str | None = None
    environment: Environment | None = None
    portion: Portion | None = None
    prefetched_samples: int = 0
    code: CodeFacts | None = None

    @property
    def cpu_s_per_sample(self) -> float | None:
        """Processor seconds of all processes and threads of the cell per sample; None where they were not counted."""
        cpu_s = self.counters.cpu_s
        return None if cpu_s is None or not self.samples else cpu_s / self.samples

    @property
    def cores_used(self) -> float | None:
        """Mean number of cores that the cell kept busy during the epoch; None where that was not counted."""
        cpu_s = self.counters.cpu_s
        return None if cpu_s is None or not self.epoch_s else cpu_s / self.epoch_s
