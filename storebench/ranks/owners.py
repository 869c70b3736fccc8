"""The owner of each sample in a data store, and the messages of a step: pure functions of the order and the shards.

Every rank computes both, so no messages are needed to agree on them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storebench.formats.base import Indices

Owners = npt.NDArray[np.int32]
"""The rank that holds each sample in memory, int32 [count]."""

Positions = npt.NDArray[np.intp]
"""Positions in an array, int64 [n]."""

NOBODY = -1
"""Stands for the owner of a sample that no rank holds."""


def block_owners(count: int, ranks: int) -> Owners:
    """Return the owners if each rank owns a contiguous part. Parts differ by at most one sample."""
    each, more = divmod(count, ranks)
    sizes = [each + (rank < more) for rank in range(ranks)]
    return np.repeat(np.arange(ranks, dtype=np.int32), sizes)


def first_owners(count: int, steps: Iterable[Sequence[Indices]]) -> Owners:
    """Return the owners if each rank owns the samples that it is the first to serve.

    If padding gives a sample to several ranks in one step, the lowest rank owns it.

    Parameters
    ----------
    count
        Number of samples in the store. Samples that no step serves have the owner `NOBODY`.
    steps
        The batches of all ranks, step by step (`storebench.ranks.shards.dealt`).
    """
    owners = np.full(count, NOBODY, np.int32)
    for pieces in steps:
        for rank, samples in enumerate(pieces):
            owners[samples[owners[samples] == NOBODY]] = rank
    return owners


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The messages of one step that one rank sends and receives.

    Attributes
    ----------
    samples
        The rank's own batch, int64 [n].
    held
        Rows of that batch whose samples the rank holds, int64.
    receive
        Sending rank -> rows of the batch that its message fills, int64, in the order of the message.
    send
        Receiving rank -> samples in the message, int64, in the order of that rank's batch.
    """

    samples: Indices
    held: Positions
    receive: dict[int, Positions]
    send: dict[int, Indices]


def transfer_of(pieces: Sequence[Indices], owners: Owners, rank: int) -> Transfer:
    """Return the messages of a step for one rank.

    Parameters
    ----------
    pieces
        The batches of all ranks in this step, in rank order, int64.
    owners
        The owner of each sample.
    """
    mine = pieces[rank]
    by = owners[mine]
    requested = {
        other: samples[owners[samples] == rank] for other, samples in enumerate(pieces) if other != rank
    }
    return Transfer(
        samples=mine,
        held=np.flatnonzero(by == rank),
        receive={int(owner): np.flatnonzero(by == owner) for owner in np.unique(by) if owner != rank},
        send={other: samples for other, samples in requested.items() if len(samples)},
    )
