"""The owner of each sample in a data store, and the messages of a step: pure functions of the order and the shards."""

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
    """Return the owners if each rank owns the samples that it is the first to serve."""
    owners = np.full(count, NOBODY, np.int32)
    for pieces in steps:
        for rank, samples in enumerate(pieces):
            owners[samples[owners[samples] == NOBODY]] = rank
    return owners


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The messages of one step that one rank sends and receives."""

    samples: Indices
    held: Positions
    receive: dict[int, Positions]
    send: dict[int, Indices]


def transfer_of(pieces: Sequence[Indices], owners: Owners, rank: int) -> Transfer:
    """Return the messages of a step for one rank."""
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
