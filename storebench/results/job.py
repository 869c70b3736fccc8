"""The part of a record that a job of ranks has: its ranks, its data store, its trainers and their games."""

import enum
from dataclasses import dataclass

from storebench.settings.words import Sync


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
    """The trainer with the highest `held_out_score`, the first one in a tie; null if nothing was trained. The record has
    its test accuracy."""
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

    LOOPBACK = "loopback"
    """The loopback device of one machine: memory and cores, not a network."""
    DEVICES = "devices of one machine"
    """GPUs of one machine, connected in any way."""
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
    """Bytes that block devices delivered to the rank while it opened the store and read its part; null if not counted."""


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
    """Bytes of payload that it requested from the store, or from the data store in memory. With one reader per node, the
    reading rank requests the payload of all ranks on its node, and the others request none."""
    data_store: DataStoreFacts | None = None  # Its part of the data store; null if the job has none.
    begin_s: float | None = None
    """When it requested the first timed batch: seconds since the first rank of its node left the barrier before the
    epoch, including pauses, by the clock of its machine."""
    end_s: float | None = None
    """When its last timed step ended, likewise. The job lasts from the least `begin_s` to the largest `end_s`, without
    its pauses."""
    resident_frac_before: float | None = None
    """Resident pages over all pages of the store's data files on its node just before the first timed step; null if they
    could not be counted."""
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
    """Median duration of a barrier that all ranks enter at once, measured after the last epoch; null if not measured."""
    gradient_bytes: int | None = None
    """Bytes of gradients that each rank contributes to a step; null if nothing was trained."""
    exposed_communication_s: float | None = None
    """Per step: the median, over pairs of steps on the same batch, of the duration with synchronised gradients less the
    duration without. All ranks begin each of these steps at a barrier, and the slowest rank counts, so no wait for data
    is in it. It may be negative where it is smaller than the noise. Measured after the last epoch of the replicate; null
    if no gradients are synchronised."""
    step_without_sync_s: float | None = None  # Median duration of the same steps without synchronisation.
    exposed_pairs: int = 0  # Number of these pairs.
    link: LinkKind | None = None
    """The connection between ranks: "loopback" (memory and cores of one machine, not a network), "devices of one machine"
    (GPUs), or "network" (several machines, real or emulated). Null if not measured."""
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
    restarts: int = 0  # How often the launcher started the ranks again. A job that was restarted has failed.
    trainers: TrainersFacts | None = None
    """The trainers and their tournaments; null if all ranks train one network."""
