"""The trainers of a job: the ranks, the samples and the seed of each, and its partner in each tournament."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from storebench.formats.base import Indices
from storebench.ranks.membership import Membership
from storebench.settings.words import TrainerData

# Share of a trainer's samples that is held out of training, for scoring networks.
HELD_OUT_FRAC = 0.1

# Words that separate the random streams of one seed. The order of an epoch uses the epoch's number in their place.
_SEEDS, _PARTS, _PAIRS = 0x4C544601, 0x4C544602, 0x4C544603


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The trainer of a rank; by default the only trainer, with one rank."""

    number: int = 0
    trainers: int = 1
    rank: int = 0
    ranks: int = 1

    @classmethod
    def of(cls, membership: Membership, trainers: int) -> Self:
        """Return the trainer of a rank: consecutive ranks form one; `trainers` divides the number of ranks."""
        ranks = membership.ranks // trainers
        number, rank = divmod(membership.rank, ranks)
        return cls(number=number, trainers=trainers, rank=rank, ranks=ranks)

    @property
    def leads(self) -> bool:
        """Whether this is the rank that tests the network for its trainer."""
        return self.rank == 0

    def members(self, number: int) -> range:
        """Return the ranks of a trainer, by their numbers in the job."""
        return range(number * self.ranks, (number + 1) * self.ranks)

    def peer(self, partner: int) -> int:
        """Return the number in the job of the rank that has this rank's place in another trainer."""
        return self.members(partner)[self.rank]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainerSamples:
    training: Indices
    held_out: Indices


def parts_of(count: int, *, trainers: int, data: TrainerData, seed: int) -> list[TrainerSamples]:
    """Return the part of each trainer, drawn at random from the seed."""
    order = _stream(seed, _PARTS).permutation(count).astype(np.int64)
    pieces = [order] * trainers if data is TrainerData.REPLICATED else np.array_split(order, trainers)
    training, _ = part_sizes(count, trainers=trainers, data=data)[-1]
    return [
        TrainerSamples(training=np.sort(piece[:training]), held_out=np.sort(piece[training:]))
        for piece in pieces
    ]


def part_sizes(count: int, *, trainers: int, data: TrainerData) -> list[tuple[int, int]]:
    """Return the number of samples that each trainer trains on, and the number that it holds out."""
    each, more = (count, 0) if data is TrainerData.REPLICATED else divmod(count, trainers)
    training = each - max(1, round(HELD_OUT_FRAC * each))
    return [(training, each + (number < more) - training) for number in range(trainers)]


def seed_of(seed: int, trainer: int) -> int:
    """Return a trainer's seed for its network and the order of its samples; below 2^63."""
    [word] = np.random.SeedSequence([seed, _SEEDS, trainer]).generate_state(1, np.uint64)
    return int(word) >> 1


def pairs(number: int, *, trainers: int, seed: int) -> list[tuple[int, int]]:
    """Return the pairs of trainers in a tournament. With an odd number of trainers, one rests."""
    order = _stream(seed, _PAIRS, number).permutation(trainers).tolist()
    return list(zip(order[::2], order[1::2], strict=False))


def partner_of(trainer: int, number: int, *, trainers: int, seed: int) -> int | None:
    """Return the partner of a trainer in a tournament; None if it rests."""
    for first, second in pairs(number, trainers=trainers, seed=seed):
        if trainer in (first, second):
            return second if trainer == first else first
    return None


def tournaments_in(epoch: int, steps: int, every: int) -> range:
    """Return the numbers of the tournaments in an epoch."""
    return range(epoch * steps // every, (epoch + 1) * steps // every) if every else range(0)


def _stream(*words: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(list(words)))
