"""The part of a record that a job of ranks has: its ranks, its data store, its trainers and their games."""

import enum
from dataclasses import dataclass

from storebench.settings.words import Sync


@dataclass(frozen=True, kw_only=True)
class Game:
    """One trainer's side of a game: it scores its own network and its partner's on its held-out samples.

    Each side of a game decides for itself, so both may continue with the same network.

    Attributes
    ----------
    number
        Number of the tournament in the process, from 0.
    step
        Number of steps trained in the epoch before the game.
    trainer, partner
        The trainer of this side, and the trainer that sent it a network.
    samples
        Samples on which both networks were scored.
    own_score, partner_score
        Share of these samples that the trainer's network and the partner's classified correctly.
    winner
        The trainer whose network `trainer` continued with: its own unless the partner's score was higher.
    sent_bytes
        Bytes of weights, momentum and batch-norm statistics that the trainer's ranks sent to the partner.
    seconds
        Wall time of this side on its slowest rank: both scores, and the exchange, including the wait for the partner.
    """

    number: int
    step: int
    trainer: int
    partner: int
    samples: int
    own_score: float
    partner_score: float
    winner: int
    sent_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TrainerFacts:
    """One trainer of a job after an epoch.

    Attributes
    ----------
    training_samples, held_out_samples
        Samples of its part for training, and samples held out for scoring networks.
    held_out_score
        Share of the held-out samples that its network classified correctly after the epoch; null if nothing was trained.
    test_accuracy
        Share of the test samples that its network classified correctly after the epoch; null if not measured.
    """

    training_samples: int
    held_out_samples: int
    held_out_score: float | None = None
    test_accuracy: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrainersFacts:
    """The trainers of a job in an epoch, and their tournaments.

    The record's spans, rates and counters leave tournaments out.

    Attributes
    ----------
    per_trainer
        One entry per trainer. Trainer 0 has the first ranks.
    best_trainer
        The trainer with the highest `held_out_score`, the first one in a tie; null if nothing was trained. The record has its
        test accuracy.
    tournaments
        Number of tournaments in the epoch.
    games
        Both sides of every game, by tournament and trainer.
    tournament_s
        Wall time of all tournaments of the epoch, each from the arrival of the last rank until all ranks continue.
    tournament_wait_s
        Time during which a rank waited for the others before tournaments; the mean over ranks.
    tournament_samples
        Samples that games requested of the store's readers, which count them, over all ranks.
    """

    per_trainer: tuple[TrainerFacts, ...]
    best_trainer: int | None = None
    tournaments: int = 0
    games: tuple[Game, ...] = ()
    tournament_s: float = 0.0
    tournament_wait_s: float = 0.0
    tournament_samples: int = 0


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

    Attributes
    ----------
    held_samples, held_bytes
        Samples that the rank owned at the end of the epoch, and their bytes. They are pixels if the store is raw or its
        reader decodes, and payloads otherwise.
    table_bytes
        Bytes of the rank's tables: owner, size and label of every sample.
    buffer_bytes
        Most bytes of messages in flight at one time.
    from_store
        Samples that the rank requested from the reader of the store, which counts them: all of its samples in the epoch that
        fills the data store, and none later.
    from_memory
        Samples that the rank had in its own memory.
    from_ranks
        Samples received from other ranks.
    sent_bytes, received_bytes
        Bytes of samples in posted messages, and in messages that have arrived.
    exchange_s
        Time spent packing, posting and waiting for messages.
    waited_s
        The part of `exchange_s` spent waiting for messages before a batch. It is part of the data wait.
    after_last_s
        The part of `exchange_s` after the last batch, until others had received this rank's messages. It is in no data wait
        and no rate.
    preload_s
        Time in which the rank read its part before the first epoch; null if the first epoch filled the data store.
    preload_device_bytes
        Bytes that block devices delivered to the rank while it opened the store and read its part; null if not counted.
    """

    held_samples: int
    held_bytes: int
    table_bytes: int = 0
    buffer_bytes: int = 0
    from_store: int = 0
    from_memory: int = 0
    from_ranks: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    exchange_s: float = 0.0
    waited_s: float = 0.0
    after_last_s: float | None = None
    preload_s: float | None = None
    preload_device_bytes: int | None = None


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
        Time during which it had its batch while another rank of its trainer was still waiting for data; null if ranks do
        not train together, or have no common clock.
    device_read_bytes
        Bytes that block devices delivered to it and its workers in the whole epoch; null if not counted.
    requested_bytes
        Bytes of payload that it requested from the store, or from the data store in memory. With one reader per node, the
        reading rank requests the payload of all ranks on its node, and the others request none.
    data_store
        Its part of the data store; null if the job has none.
    begin_s, end_s
        When it requested the first timed batch, and when its last timed step ended: seconds since the first rank of its
        node left the barrier before the epoch, including pauses, by the clock of its machine. The job lasts from the least
        `begin_s` to the largest `end_s`, without its pauses.
    resident_frac_before, resident_frac_after
        Resident pages over all pages of the store's data files on its node, just before the first timed step and just
        after the last; null if they could not be counted.
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
    data_store: DataStoreFacts | None = None
    begin_s: float | None = None
    end_s: float | None = None
    resident_frac_before: float | None = None
    resident_frac_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """The ranks of a job in an epoch; the figures of the record itself are those of the job as a whole.

    Attributes
    ----------
    ranks, nodes
        Training processes, and machines that they ran on.
    sync
        When gradients were exchanged; null if nothing was trained. Trainers of one rank exchange none.
    global_batch_size
        Samples per step of all ranks.
    per_rank
        One entry per rank, in rank order.
    samples_per_s_min, samples_per_s_median, samples_per_s_max
        Over the rates of the ranks.
    skew
        Duration of the slowest rank less that of the fastest, over the median of all.
    barrier_exit_s
        Seconds between the first and the last rank of a node leaving the barrier before the epoch, on the worst node.
    samples_per_s_until_first_end
        Rate of the job until its first rank ended its last step. Of a step in progress, the share counts that had passed.
    wait_for_slowest_s
        Mean over ranks; null if a rank has none.
    unique_samples, total_samples
        Different samples that the epoch served, and all of them.
    duplicates
        Samples that were served again within a pass, as padding makes them.
    barrier_s
        Median duration of a barrier that all ranks enter at once, measured after the last epoch; null if not measured.
    gradient_bytes
        Bytes of gradients that each rank contributes to a step; null if nothing was trained.
    exposed_communication_s
        Per step: the median, over pairs of steps on the same batch, of the duration with synchronised gradients less
        the duration without. All ranks begin each of these steps at a barrier, and the slowest rank counts, so no wait
        for data is in it. It may be negative where it is smaller than the noise. Measured after the last epoch of the
        replicate; null if no gradients are synchronised.
    step_without_sync_s
        Median duration of the same steps without synchronisation.
    exposed_pairs
        Number of these pairs.
    link
        The connection between ranks: "loopback" (memory and cores of one machine, not a network), "devices of one machine"
        (GPUs), or "network" (several machines, real or emulated). Null if not measured.
    link_bytes_per_s, link_latency_s
        The link, measured before the first epoch while each rank sends to the next one and receives from the previous one:
        bytes per second in each direction, and the seconds per message of 8 bytes, including its call.
    ring_bound_s
        The time in which an ideal ring all-reduce would exchange the gradients of a step over that link:
        2 (ranks - 1) (gradient_bytes / ranks / link_bytes_per_s + link_latency_s), with the ranks of a trainer. It is not a
        lower bound: the link is measured with noise, and gloo has other algorithms.
    exposed_over_bound
        `exposed_communication_s` over `ring_bound_s`. It is below 1 where the exchange is hidden behind computing, or is
        faster than an ideal ring.
    restarts
        How often the launcher started the ranks again. A job that was restarted has failed.
    trainers
        The trainers and their tournaments; null if all ranks train one network.
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
    barrier_exit_s: float | None = None
    wait_for_slowest_s: float | None = None
    unique_samples: int
    total_samples: int
    duplicates: int = 0
    barrier_s: float | None = None
    gradient_bytes: int | None = None
    exposed_communication_s: float | None = None
    step_without_sync_s: float | None = None
    exposed_pairs: int = 0
    link: LinkKind | None = None
    link_bytes_per_s: float | None = None
    link_latency_s: float | None = None
    ring_bound_s: float | None = None
    exposed_over_bound: float | None = None
    restarts: int = 0
    trainers: TrainersFacts | None = None
