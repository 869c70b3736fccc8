"""The facts of a job of several ranks: each rank's share of an epoch, and the cost of training together."""

from dataclasses import dataclass

from storebench.settings.words import Sync


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """The part of one rank in an epoch, over the timed steps.

    Attributes
    ----------
    node
        Number of the machine that it ran on, from 0.
    samples
        Samples that it served.
    seconds
        Wall time from its request for the first batch to the end of its last step, without its own pauses.
    samples_per_s
        `samples` over `seconds`.
    data_wait_s, compute_s
        Its sums. Its compute includes the exchange of gradients and the wait for other ranks in it.
    wait_for_slowest_s
        Time for which it had its batch while another rank was still waiting for data; null where ranks do not
        train together, and where they have no common clock.
    device_read_bytes
        Bytes that block devices delivered to it and its workers in the whole epoch; null if not counted.
    requested_bytes
        Bytes of payload that it requested from the store. With one reader per node, that rank requests those of all ranks
        there, and the others none. Older records have null.
    """

    node: int = 0
    samples: int
    seconds: float
    samples_per_s: float
    data_wait_s: float
    compute_s: float
    wait_for_slowest_s: float | None = None
    device_read_bytes: int | None = None
    requested_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """The ranks of a job in an epoch; the figures of the record itself are those of the job as a whole.

    Attributes
    ----------
    ranks, nodes
        Training processes, and machines that they ran on.
    sync
        When gradients were added up; null where nothing was trained.
    global_batch_size
        Samples per step of all ranks.
    per_rank
        One entry per rank, in rank order.
    samples_per_s_min, samples_per_s_median, samples_per_s_max
        Over the rates of the ranks.
    skew
        Duration of the slowest rank less that of the fastest, over the median of all.
    samples_per_s_until_first_end
        Rate of the job until its first rank ended its last step. Of a step in progress, the share counts that had passed.
    wait_for_slowest_s
        Mean over ranks; null where a rank has none.
    unique_samples, total_samples
        Different samples that the epoch served, and all of them.
    duplicates
        Samples that were served again within a pass, as padding makes them.
    barrier_s
        Median duration of a barrier that all ranks enter at once, measured after the last epoch; null if not measured.
    gradient_bytes
        Bytes of gradients that each rank contributes to a step; null where nothing was trained.
    exposed_communication_s
        Per step: the median, over pairs of steps on the same batch, of the duration with synchronised gradients less
        the duration without. All ranks begin each of these steps at a barrier, and the slowest rank counts, so no wait
        for data is in it. It may be negative where it is smaller than the noise. Measured after the last epoch of the
        replicate; null where no gradients are synchronised.
    step_without_sync_s
        Median duration of the same steps without synchronisation.
    exposed_pairs
        Number of these pairs.
    restarts
        How often the launcher started the ranks again. A job that was restarted has failed.
    """

    ranks: int
    nodes: int = 1
    sync: Sync | None
    global_batch_size: int
    per_rank: tuple[RankFacts, ...]
    samples_per_s_min: float
    samples_per_s_median: float
    samples_per_s_max: float
    skew: float
    samples_per_s_until_first_end: float
    wait_for_slowest_s: float | None = None
    unique_samples: int
    total_samples: int
    duplicates: int = 0
    barrier_s: float | None = None
    gradient_bytes: int | None = None
    exposed_communication_s: float | None = None
    step_without_sync_s: float | None = None
    exposed_pairs: int = 0
    restarts: int = 0
