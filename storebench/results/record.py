"""The record: one per replicate and epoch. How records are written and read is in `storebench.runs.records`."""

import enum
from dataclasses import dataclass, field

from storebench.results.cell import Cell
from storebench.results.job import JobFacts
from storebench.results.parts import (
    CacheFacts,
    Ceilings,
    CodeFacts,
    ColdRate,
    Conditions,
    Counters,
    Coverage,
    Digests,
    Environment,
    Loss,
    Percentiles,
    PlaceFacts,
    Portion,
    RequestFacts,
    ServedFacts,
    StoreFacts,
    TierFacts,
)
from storebench.settings.words import ComputeKind

NO_ANSWER_AFTER = "no answer after"
"""Followed by the time limit in seconds."""


def ran_out_of_time(failure: str) -> bool:
    """Return True if a failure means that the process was killed at its time limit."""
    return NO_ANSWER_AFTER in failure


SCHEMA_VERSION = 2


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

    schema_version: int = SCHEMA_VERSION
    storebench_version: str
    run_id: str
    cell: Cell
    replicate: int
    """Number of the fresh process of the cell, from 0, which is also the round in which it ran."""
    epoch: int
    status: Status = Status.OK
    failure: str | None = None
    started_utc: str
    samples: int = 0  # Samples of the epoch, including warm-up steps.
    steps: int = 0  # Steps of the epoch, including warm-up steps.
    epoch_s: float = 0.0  # Wall time from the request for the first batch to the end of the last step.
    timed_samples: int = 0  # Samples of the timed steps.
    timed_steps: int = 0
    timed_s: float = 0.0  # Wall time from the first timed step to the last.
    samples_per_s: float = 0.0  # `timed_samples` over `timed_s`.
    payload_bytes: int = 0
    payload_bytes_per_s: float = 0.0
    data_wait_s: float = 0.0  # Sum of the waits for data.
    h2d_s: float = 0.0  # Sum of the copies to the device.
    compute_s: float = 0.0  # Sum of forward, backward and optimizer.
    overhead_s: float = 0.0  # The rest of `timed_s` that waits, copies and compute leave.
    data_wait_frac: float = 0.0
    accelerator_util_frac: float | None = None
    """`compute_s` over `timed_s`; `au_kind` says whether the compute was "real" or "emulated"."""
    au_kind: ComputeKind = ComputeKind.NONE
    fetch_s: float = 0.0
    decode_s: float = 0.0
    prep_s: float = 0.0
    handover_s: float = 0.0
    """Cost of moving batches: the time from the end of producing a batch to its arrival in the loop, less the time that
    it waited in the queue."""
    data_wait_ns: Percentiles | None = None
    time_to_first_batch_s: float = 0.0  # First wait of the epoch; the readers are open by then.
    open_s: float = 0.0  # Time to open the reader, the longest of all producers.
    digests: Digests | None = None
    coverage: Coverage | None = None
    loss: Loss | None = None
    test_accuracy: float | None = None
    test_samples: int = 0
    store: StoreFacts | None = None
    cache: CacheFacts | None = None
    counters: Counters = field(default_factory=Counters)
    tier: TierFacts | None = None  # The emulated tier of storage; null in cells on the device as it is.
    ceilings: Ceilings = field(default_factory=Ceilings)
    reader_notes: dict[str, str] = field(default_factory=dict)
    steps_file: str | None = None
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
