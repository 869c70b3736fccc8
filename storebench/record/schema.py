"""Results: the cell that was measured, and the record of one epoch of it with all its parts.

How records are written and read is in `storebench.record.lines`.
"""

import enum
import functools
import hashlib
import json
import operator
import typing
from dataclasses import dataclass, field
from typing import Any

from storebench.datasets.base import DatasetSpec
from storebench.settings.backend import Backend
from storebench.settings.loop_fields import SETTINGS, LoopSettings
from storebench.settings.words import CacheState, ComputeKind, Sync

# Field of a record -> attribute of `Cell.data`.
DATA_FIELDS = {
    "dataset": "name",
    "split": "split",
    "size": "size",
    "limit": "limit",
    "data_seed": "seed",
    "synthetic": "synthetic",
    "image_size": "image_size",
    "skip_unreadable": "skip_unreadable",
}

# Field of a record -> attribute of `Cell.backend`.
BACKEND_FIELDS = {
    "backend": "name",
    "format": "format",
    "codec": "codec",
    "reader": "reader",
    "reader_options": "options",
    "codec_options": "codec_options",
}

# Field that a record has of its cell -> attribute of `Cell`, in order.
CELL_FIELDS = {
    **{name: f"data.{part}" for name, part in DATA_FIELDS.items()},
    **{name: f"backend.{part}" for name, part in BACKEND_FIELDS.items()},
    **{row.name: row.name for row in SETTINGS},
}


@dataclass(frozen=True, kw_only=True)
class Cell(LoopSettings):
    """One point of a benchmark: the settings of the loop, and what it loads."""

    data: DatasetSpec
    backend: Backend

    @classmethod
    def of_fields(cls, **fields: Any) -> "Cell":
        """Return the cell that a record's fields describe; fields with a default may be left out."""
        parts = _nested(fields)
        data, backend = DatasetSpec(**parts.pop("data")), Backend(**parts.pop("backend"))
        return cls(data=data, backend=backend, **parts)

    def fields(self) -> dict[str, Any]:
        """Return the cell as a record has it: flat fields of plain values, in the order of `CELL_FIELDS`."""
        values = {name: operator.attrgetter(path)(self) for name, path in CELL_FIELDS.items()}
        return {name: str(value) if isinstance(value, str) else value for name, value in values.items()}

    @functools.cached_property
    def cell_id(self) -> str:
        """Twelve hexadecimal digits that identify this cell."""
        text = json.dumps(self.fields(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @functools.cached_property
    def compared_with(self) -> str:
        """Key that is equal for comparable cells: all fields except the backend's and the epochs."""
        left_out = {*BACKEND_FIELDS, "epochs"}
        return json.dumps({name: value for name, value in self.fields().items() if name not in left_out})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return the schema of a cell that is made of a record's flat fields."""
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(_nested, handler(source))


def _nested(fields: Any) -> Any:
    """Return the flat fields of a cell by part; anything else is returned for validation to refuse."""
    if not isinstance(fields, dict):
        return fields
    parts: dict[str, Any] = {"data": {}, "backend": {}}
    for name, value in fields.items():
        if name not in CELL_FIELDS:
            raise ValueError(f"a cell has no field {name!r}")
        part, _, attribute = CELL_FIELDS[name].rpartition(".")
        (parts[part] if part else parts)[attribute] = value
    return parts


def cell_types() -> dict[str, Any]:
    """Return the type of each field that a record has of its cell."""
    hints = {"": LoopSettings, "data": DatasetSpec, "backend": Backend}
    types: dict[str, dict[str, Any]] = {part: typing.get_type_hints(kind) for part, kind in hints.items()}
    return {
        name: types[path.rpartition(".")[0]][path.rpartition(".")[2]] for name, path in CELL_FIELDS.items()
    }


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """Description of the store, from its manifest."""

    count: int  # Samples in the store.
    image_shape: tuple[int, int, int]  # Height, width, channels.
    payload_bytes: int  # Bytes that the codec made, without the container's own.
    file_bytes: int  # Sizes of the store's data files added up.
    bytes_on_disk: int  # Blocks allocated for the data files.
    build_s: float  # Writing the store, from the first sample to synced.
    samples_digest: str  # Digest of all decoded samples and labels, equal for every lossless store.
    lossless: bool  # Whether the codec gives back every pixel.
    origin: str  # "real", "derived" or "synthetic".
    source: str  # The layout that was read, in words.
    derived_frac: float  # Share of samples that are not images of the source as they are.
    provenance_note: str = ""  # Notes on the data.
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
    UNVERIFIED = "unverified"  # No state was requested, or the kernel cannot count resident pages.
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class ResidencyPoint:
    """Resident share of the store at one moment of an epoch."""

    elapsed_s: float  # Seconds since the first request of the epoch.
    asked_frac: float  # Share of the samples of the store that had been requested by then.
    resident_frac: float  # Resident pages over all pages of the store's data files.


# Shares of a store up to which its rate from a cold start is given.
COLD_SHARES = (0.02, 0.05, 0.10, 0.25, 1.0)


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

    requested: CacheState  # "cold", "warm", "limited" or "any".
    method: str  # How the state was produced and counted ("fadvise+cachestat"), or "none".
    resident_frac_before: float | None
    """Resident pages over all pages of the store's data files just before the first timed step; null if nothing could
    count them."""
    resident_frac_after: float | None  # The same just after the last timed step.
    verdict: CacheVerdict  # Whether the state was measured to be the one asked for.
    applies_to: str = "epoch"
    """"epoch", or "open" if the epoch was served from memory: by a reader that holds all pixels after opening, or by
    the data store of the ranks."""
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


# Share of its cores that other work may take while a replicate runs; above it, the replicate was disturbed. Threads of
# the kernel that read and reclaim pages on behalf of a cell count as other work too, and stay below it.
OTHERS_MOST_FRAC = 0.20


@dataclass(frozen=True, kw_only=True)
class PlaceFacts:
    """The place that a cell names: its server, what is emulated there, and what was achieved when the run began."""

    server: str
    emulated_first_byte_ms: float | None = None
    emulated_round_trip_ms: float | None = None
    emulated_mb_s: float | None = None
    first_byte_ms: float | None = None  # Median time of a request for one byte.
    mb_s: float | None = None
    """Megabytes per second of one large object in one request, after its first byte."""
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

    count: int  # Requests that ended.
    received_bytes: int
    p50_ms: float  # From the start of a request to its last byte.
    p99_ms: float
    in_flight: (
        float  # Mean number of requests under way, from the first request's start to the last one's end.
    )


@dataclass(frozen=True, kw_only=True)
class ServedFacts:
    """The answers of a run's object store during an epoch by its counters, including those to a library's client."""

    count: int  # Answers.
    sent_bytes: int


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What else the machine did while the process of a replicate ran, from the start of its job to its end.

    A figure that could not be read is null.
    """

    wall_s: float  # Seconds from the start of the process to its end, preparation and proof included.
    cores: int  # CPUs that the process can keep busy: those that it may use, within its CPU quota.
    load: float | None = None  # Load average of the last minute when it started.
    cpus: int | None = None
    """CPUs that it may use, where a quota allows fewer. The CPU seconds below are of all of them."""
    others_cpu_s: float | None = None
    """CPU seconds of processes and kernel threads that belong neither to the replicate nor to the runner."""
    steal_s: float | None = None  # CPU seconds that a hypervisor gave to other machines.
    throttled_s: float | None = None
    """Seconds for which a CPU quota stopped the processes of this control group, summed over CPUs."""
    disturbed: str = ""  # Why the replicate counts as disturbed; "" if it does not.
    attempt: int = 1
    """How often the replicate was measured: again, at most twice, if it was disturbed or did not hold its state. The
    soundest attempt stands; the others are in `superseded.jsonl`."""

    @property
    def others_frac(self) -> float | None:
        """Share of the cores that other processes and other machines took; None if it was not counted."""
        if self.others_cpu_s is None or self.wall_s <= 0 or self.cores < 1:
            return None
        return (self.others_cpu_s + (self.steal_s or 0.0)) / (self.wall_s * (self.cpus or self.cores))


def disturbance(conditions: Conditions) -> str:
    """Return the reason why a replicate counts as disturbed (other work took too much of its cores), or ""."""
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
    """Bytes that the block device of the store delivered to all processes in the same time (/sys/block stat); in a job
    on several nodes, the sum over their devices."""
    block_device_reads: int | None = None
    """Reads that the block device completed for them; merged requests count once."""
    major_faults: int | None = None  # Page faults with I/O.
    minor_faults: int | None = None  # Page faults without I/O.
    read_calls: int | None = None  # System calls that read (/proc/PID/io syscr).
    cpu_user_s: float | None = None  # Processor time in the processes' own code.
    cpu_system_s: float | None = None  # Processor time in the kernel for them.
    peak_rss_bytes: int | None = None
    """Sum of the largest resident sets of the training process and of its workers."""
    read_amplification: float | None = None  # `device_read_bytes` over payload bytes.
    reasons: dict[str, str] = field(default_factory=dict)  # Why a figure is null, by its name.

    @property
    def cpu_s(self) -> float | None:
        """CPU seconds in user and kernel mode; None if either is unknown."""
        if self.cpu_user_s is None or self.cpu_system_s is None:
            return None
        return self.cpu_user_s + self.cpu_system_s


# The kernel may let this much of a second's allowance through at once.
TIER_BURST_S = 0.5


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
    """A yardstick: O_DIRECT reads of one payload's size at random offsets, one at a time
    (`storebench.probes.rates`)."""
    device_random_4_bytes_per_s: float | None = None
    """The same with 4 requests in flight. A reader that merges requests can exceed these."""
    device_random_16_bytes_per_s: float | None = None  # With 16 requests in flight.
    device_random_32_bytes_per_s: float | None = None  # With 32 requests in flight.
    device_sequential_bytes_per_s: float | None = None  # A yardstick: O_DIRECT reads of 4 MiB in a row.
    device_best_bytes_per_s: float | None = None  # The device's ceiling: the highest of these rates.
    device_method: str = ""  # How the requests were kept in flight, and the file that was read.
    single_requests: dict[str, float] = field(default_factory=dict)
    """What single requests to the store's file system took, apart from the cell: "read_N_p50_s" and "read_N_p99_s" of
    the O_DIRECT reads above with N in flight, wherever they were answered; "open_N_per_s" for a store of many files,
    opened, asked for their size and closed by N threads."""
    reasons: dict[str, str] = field(default_factory=dict)  # Why a figure is null, by its name.


# A ratio of the rates of the two halves of a portion between these counts as steady.
STEADY_DRIFT = (0.8, 1.25)


def steady(drift: float | None) -> bool | None:
    """Whether `drift` is that of a steady rate; None if it is unknown."""
    return None if drift is None else STEADY_DRIFT[0] <= drift <= STEADY_DRIFT[1]


@dataclass(frozen=True, kw_only=True)
class Portion:
    """The timed steps of an epoch after a limited page cache had filled.

    Its sums are defined as in `Record`, over these steps only.
    """

    first_step: int  # Number of the portion's first step.
    steps: int  # Steps of the portion.
    samples: int  # Samples of the portion.
    seconds: float  # Wall time of the portion.
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


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Distribution of a duration over the timed steps, in nanoseconds."""

    p50: int  # The median.
    p95: int  # The 95th percentile.
    p99: int  # The 99th percentile.
    max: int  # The longest.


@dataclass(frozen=True, kw_only=True)
class Digests:
    """Hexadecimal digests that are equal for two cells that trained on the same samples in the same order."""

    order: str  # The order in which the indices were served.
    loss: str | None  # The loss of every step, bit by bit (float32). Null if nothing was computed.


# At least this many samples of the timed batches are kept and checked; more as time allows.
KEPT_AT_LEAST = 64

# At most this many bytes of pixels are kept, so fewer samples of large images are.
KEPT_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Samples that the epoch served, counted by the indices in the batches."""

    expected: int  # Samples that the epoch should serve.
    served: int  # Samples that came.
    unique: int  # Different samples among them.
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

    first: float  # Of the first step.
    last: float  # Of the last step.


@dataclass(frozen=True, kw_only=True)
class Game:
    """One trainer's side of a game: it scores its own network and its partner's on its held-out samples.

    Each side of a game decides for itself, so both may continue with the same network.
    """

    number: int  # Number of the tournament in the process, from 0.
    step: int  # Number of steps trained in the epoch before the game.
    trainer: int  # The trainer of this side.
    partner: int  # The trainer that sent it a network.
    samples: int  # Samples on which both networks were scored.
    own_score: float  # Share of these samples that the trainer's network classified correctly.
    partner_score: float  # Share that the partner's network classified correctly.
    winner: int
    """The trainer whose network `trainer` continued with: its own unless the partner's score was higher."""
    sent_bytes: int
    """Bytes of weights, momentum and batch-norm statistics that the trainer's ranks sent to the partner."""
    seconds: float
    """Wall time of this side on its slowest rank: both scores, and the exchange, including the wait for the partner."""


@dataclass(frozen=True, kw_only=True)
class TrainerFacts:
    """One trainer of a job after an epoch."""

    training_samples: int  # Samples of its part for training.
    held_out_samples: int  # Samples of its part held out for scoring networks.
    held_out_score: float | None = None
    """Share of the held-out samples that its network classified correctly after the epoch; null if nothing was
    trained."""
    test_accuracy: float | None = None
    """Share of the test samples that its network classified correctly after the epoch; null if not measured."""


@dataclass(frozen=True, kw_only=True)
class TrainersFacts:
    """The trainers of a job in an epoch, and their tournaments.

    The record's spans, rates and counters leave tournaments out.
    """

    per_trainer: tuple[TrainerFacts, ...]  # One entry per trainer. Trainer 0 has the first ranks.
    best_trainer: int | None = None
    """The trainer with the highest `held_out_score`, the first one in a tie; null if nothing was trained. The record
    has its test accuracy."""
    tournaments: int = 0  # Number of tournaments in the epoch.
    games: tuple[Game, ...] = ()  # Both sides of every game, by tournament and trainer.
    tournament_s: float = 0.0
    """Wall time of all tournaments of the epoch, each from the arrival of the last rank until all ranks continue."""
    tournament_wait_s: float = 0.0
    """Time during which a rank waited for the others before tournaments; the mean over ranks."""
    tournament_samples: int = 0
    """Samples that games requested of the store's readers, which count them, over all ranks."""


class LinkKind(enum.StrEnum):
    """What connects the ranks of a job."""

    LOOPBACK = "loopback"  # The loopback device of one machine: memory and cores, not a network.
    DEVICES = "devices of one machine"  # GPUs of one machine, connected in any way.
    NETWORK = "network"
    """A network between several machines. Records do not distinguish an emulated network from a real one."""


@dataclass(frozen=True, kw_only=True)
class DataStoreFacts:
    """One rank's part of a data store in an epoch, warm-up steps included.

    `from_store`, `from_memory` and `from_ranks` add up to the samples that the rank served.
    """

    held_samples: int  # Samples that the rank owned at the end of the epoch.
    held_bytes: int
    """Their bytes: of pixels if the store is raw or its reader decodes, and of payloads otherwise."""
    table_bytes: int = 0  # Bytes of the rank's tables: owner, size and label of every sample.
    buffer_bytes: int = 0  # Most bytes of messages in flight at one time.
    from_store: int = 0
    """Samples that the rank requested from the reader of the store, which counts them: all of its samples in the epoch
    that fills the data store, and none later."""
    from_memory: int = 0  # Samples that the rank had in its own memory.
    from_ranks: int = 0  # Samples received from other ranks.
    sent_bytes: int = 0  # Bytes of samples in posted messages.
    received_bytes: int = 0  # Bytes of samples in messages that have arrived.
    exchange_s: float = 0.0  # Time spent packing, posting and waiting for messages.
    waited_s: float = 0.0
    """The part of `exchange_s` spent waiting for messages before a batch. It is part of the data wait."""
    after_last_s: float | None = None
    """The part of `exchange_s` after the last batch, until others had received this rank's messages. It is in no data
    wait and no rate."""
    preload_s: float | None = None
    """Time in which the rank read its part before the first epoch; null if the first epoch filled the data store."""
    preload_device_bytes: int | None = None
    """Bytes that block devices delivered to the rank while it opened the store and read its part; null if not
    counted."""


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """The part of one rank in an epoch, over the timed steps."""

    node: int = 0  # Number of the machine that it ran on, from 0.
    samples: int  # Samples that it served.
    seconds: float
    """Wall time from its request for the first batch to the end of its last step, without its own pauses."""
    samples_per_s: float  # `samples` over `seconds`.
    data_wait_s: float  # The sum of its waits for data.
    compute_s: float  # Its compute, with the exchange of gradients and the wait for other ranks in it.
    wait_for_slowest_s: float | None = None
    """Time during which it had its batch while another rank of its trainer was still waiting for data; null if ranks do
    not train together, or have no common clock."""
    device_read_bytes: int | None = None
    """Bytes that block devices delivered to it and its workers in the whole epoch; null if not counted."""
    requested_bytes: int | None = None
    """Bytes of payload that it requested from the store, or from the data store in memory. With one reader per node,
    the reading rank requests the payload of all ranks on its node, and the others request none."""
    data_store: DataStoreFacts | None = None  # Its part of the data store; null if the job has none.
    begin_s: float | None = None
    """When it requested the first timed batch: seconds since the first rank of its node left the barrier before the
    epoch, including pauses, by the clock of its machine."""
    end_s: float | None = None
    """When its last timed step ended, likewise. The job lasts from the least `begin_s` to the largest `end_s`, without
    its pauses."""
    resident_frac_before: float | None = None
    """Resident pages over all pages of the store's data files on its node just before the first timed step; null if
    they could not be counted."""
    resident_frac_after: float | None = None  # The same just after the last timed step.


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """The ranks of a job in an epoch; the figures of the record itself are those of the job as a whole."""

    ranks: int  # Training processes.
    nodes: int = 1  # Machines that they ran on.
    sync: Sync | None
    """When gradients were exchanged; null if nothing was trained. Trainers of one rank exchange none."""
    global_batch_size: int  # Samples per step of all ranks.
    per_rank: tuple[RankFacts, ...]  # One entry per rank, in rank order.
    samples_per_s_min: float  # The lowest rate of a rank.
    samples_per_s_median: float  # The median rate.
    samples_per_s_max: float  # The highest rate of a rank.
    skew: float  # Duration of the slowest rank less that of the fastest, over the median of all.
    samples_per_s_until_first_end: float
    """Rate of the job until its first rank ended its last step. Of a step in progress, the share counts that had
    passed."""
    barrier_exit_s: float | None = None
    """Seconds between the first and the last rank of a node leaving the barrier before the epoch, on the worst node."""
    wait_for_slowest_s: float | None = None  # Mean over ranks; null if a rank has none.
    unique_samples: int  # Different samples that the epoch served.
    total_samples: int  # All samples that it served.
    duplicates: int = 0  # Samples that were served again within a pass, as padding makes them.
    barrier_s: float | None = None
    """Median duration of a barrier that all ranks enter at once, measured after the last epoch; null if not
    measured."""
    gradient_bytes: int | None = None
    """Bytes of gradients that each rank contributes to a step; null if nothing was trained."""
    exposed_communication_s: float | None = None
    """Per step: the median, over pairs of steps on the same batch, of the duration with synchronised gradients less the
    duration without. All ranks begin each of these steps at a barrier, and the slowest rank counts, so no wait for data
    is in it. It may be negative where it is smaller than the noise. Measured after the last epoch of the replicate;
    null if no gradients are synchronised."""
    step_without_sync_s: float | None = None  # Median duration of the same steps without synchronisation.
    exposed_pairs: int = 0  # Number of these pairs.
    link: LinkKind | None = None
    """The connection between ranks: "loopback" (memory and cores of one machine, not a network), "devices of one
    machine" (GPUs), or "network" (several machines, real or emulated). Null if not measured."""
    link_bytes_per_s: float | None = None
    """Bytes per second in each direction of the link, measured before the first epoch while each rank sends to the next
    one and receives from the previous one."""
    link_latency_s: float | None = None
    """Seconds per message of 8 bytes, including its call, measured likewise."""
    ring_bound_s: float | None = None
    """The time in which an ideal ring all-reduce would exchange the gradients of a step over that link: 2 (ranks - 1)
    (gradient_bytes / ranks / link_bytes_per_s + link_latency_s), with the ranks of a trainer. It is not a lower bound:
    the link is measured with noise, and gloo has other algorithms."""
    exposed_over_bound: float | None = None
    """`exposed_communication_s` over `ring_bound_s`. It is below 1 where the exchange is hidden behind computing, or is
    faster than an ideal ring."""
    trainers: TrainersFacts | None = None
    """The trainers and their tournaments; null if all ranks train one network."""


# Followed by the time limit in seconds.
NO_ANSWER_AFTER = "no answer after"


def ran_out_of_time(failure: str) -> bool:
    """Return True if a failure means that the process was killed at its time limit."""
    return NO_ANSWER_AFTER in failure


SCHEMA_VERSION = 2

# Rates and shares of an epoch, which a record that failed does not have.
_RATES = ("samples_per_s", "payload_bytes_per_s", "data_wait_frac", "accelerator_util_frac")


class Status(enum.StrEnum):
    """Whether a record may be used."""

    OK = "ok"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One epoch of one replicate of one cell.

    Sums of time are over the timed steps (all but the flagged warm-up steps) of
    this epoch. Producer times (`fetch_s`, `decode_s`, `prep_s`) are summed over
    all workers, so they may exceed the wall time. In a job of several ranks, samples, bytes and counters are sums over
    its ranks, and times are means over them; the wall times are those of the job: from its first rank's request for a
    batch to the end of its last rank's last step.
    """

    schema_version: int = SCHEMA_VERSION  # The version of this schema.
    storebench_version: str  # The version that measured.
    run_id: str  # The run.
    cell: Cell
    replicate: int
    """Number of the fresh process of the cell, from 0, which is also the round in which it ran."""
    epoch: int  # From 0, in one process.
    status: Status = Status.OK  # Whether the record may be used.
    failure: str | None = None  # Why it failed, in one line.
    started_utc: str  # When the epoch began.
    samples: int = 0  # Samples of the epoch, including warm-up steps.
    steps: int = 0  # Steps of the epoch, including warm-up steps.
    epoch_s: float = 0.0  # Wall time from the request for the first batch to the end of the last step.
    timed_samples: int = 0  # Samples of the timed steps.
    timed_steps: int = 0  # Steps that are not flagged as warm-up.
    timed_s: float = 0.0  # Wall time from the first timed step to the last.
    samples_per_s: float | None = 0.0  # `timed_samples` over `timed_s`; null in a failed record.
    payload_bytes: int = 0  # Bytes that the codec made, without the container's own.
    payload_bytes_per_s: float | None = 0.0  # Payload bytes over wall time.
    data_wait_s: float = 0.0  # Sum of the waits for data.
    h2d_s: float = 0.0  # Sum of the copies to the device.
    compute_s: float = 0.0  # Sum of forward, backward and optimizer.
    overhead_s: float = 0.0  # The rest of `timed_s` that waits, copies and compute leave.
    data_wait_frac: float | None = 0.0  # `data_wait_s` over the sum of waits, copies and compute.
    accelerator_util_frac: float | None = None
    """`compute_s` over `timed_s`; `au_kind` says whether the compute was "real" or "emulated"."""
    au_kind: ComputeKind = ComputeKind.NONE  # What the utilization is of.
    fetch_s: float = 0.0  # Bytes from the store into private memory, of all producers.
    decode_s: float = 0.0  # Bytes into pixels, of all producers.
    prep_s: float = 0.0  # Augmenting and collating, of all producers.
    handover_s: float = 0.0
    """Cost of moving batches: the time from the end of producing a batch to its arrival in the loop, less the time that
    it waited in the queue."""
    data_wait_ns: Percentiles | None = None
    time_to_first_batch_s: float = 0.0  # First wait of the epoch; the readers are open by then.
    open_s: float = 0.0  # Time to open the reader, the longest of all producers.
    digests: Digests | None = None
    coverage: Coverage | None = None
    loss: Loss | None = None
    test_accuracy: float | None = None  # Share of test samples classified correctly.
    test_samples: int = 0  # Test images that the accuracy is taken over.
    store: StoreFacts | None = None
    cache: CacheFacts | None = None
    counters: Counters = field(default_factory=Counters)
    tier: TierFacts | None = None  # The emulated tier of storage; null in cells on the device as it is.
    ceilings: Ceilings = field(default_factory=Ceilings)
    reader_notes: dict[str, str] = field(default_factory=dict)  # Notes on how the store was read.
    steps_file: str | None = None  # Its steps, as a path from the run's folder.
    environment: Environment | None = None
    portion: Portion | None = None  # The steps after a limited page cache had filled; null in other cells.
    cold_rates: tuple[ColdRate, ...] = ()
    """Rates from a cold start, by the share of the store that had been read; shares that the epoch does not reach, or
    that one batch passes over, are left out. Empty in cells that are not cold."""
    prefetched_samples: int = 0
    """Samples of timed steps whose batch a producer began before the first timed step requested its own. At most this
    many of `timed_samples` were produced outside of `timed_s`. Without warm-up steps there are none."""
    code: CodeFacts | None = None  # The code that ran.
    conditions: Conditions | None = None
    """What else the machine did while the replicate ran; the same in the records of all its epochs."""
    job: JobFacts | None = None  # The ranks of a job; null for one process.
    requests: RequestFacts | None = None  # To a server, as this client saw them; null where it made none.
    served: ServedFacts | None = None  # null where no server counted.
    place: PlaceFacts | None = None  # The place that the cell names; null for the folder of the stores.

    def __post_init__(self) -> None:
        for name in _RATES if self.failed else ():
            object.__setattr__(self, name, None)

    @property
    def failed(self) -> bool:
        """Whether it may not be used."""
        return self.status is Status.FAILED

    @property
    def cpu_s_per_sample(self) -> float | None:
        """CPU seconds of all processes and threads of the cell per sample; None if they were not counted."""
        cpu_s = self.counters.cpu_s
        return None if cpu_s is None or not self.samples else cpu_s / self.samples

    @property
    def cores_used(self) -> float | None:
        """Mean number of cores that the cell kept busy during the epoch; None if it was not counted."""
        cpu_s = self.counters.cpu_s
        return None if cpu_s is None or not self.epoch_s else cpu_s / self.epoch_s
