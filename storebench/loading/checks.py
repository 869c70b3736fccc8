"""Prove, outside every timer, that an epoch served each sample as often as planned, with the right pixels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from storebench.digests import DIGEST_BYTES, DigestTable, set_digest
from storebench.formats.base import Indices
from storebench.loading.batch import LoadedBatch
from storebench.loading.order import joined
from storebench.results import Coverage


@dataclass(frozen=True, kw_only=True)
class PixelCheck:
    """Result of comparing an epoch's decoded samples with the store's digests."""

    checked: int = 0
    wrong: int = 0
    first_wrong: int | None = None
    digest: str | None = None
    prepared: str | None = None
    difference: int | None = None


@dataclass(frozen=True, kw_only=True)
class ServedPixels:
    """Digests of the samples that a replay served, in the order in which they came."""

    indices: Indices
    digests: DigestTable
    prepared: DigestTable | None = None
    difference: int | None = None


def served_pixels(batches: Iterable[LoadedBatch]) -> ServedPixels:
    """Collect the digests that the batches of a replay carry."""
    indices, digests = [np.empty(0, np.int64)], [np.empty((0, DIGEST_BYTES), np.uint8)]
    prepared: list[DigestTable] = []
    differences: list[int] = []
    for batch in batches:
        assert batch.digests is not None
        indices.append(batch.indices)
        digests.append(batch.digests)
        prepared += [] if batch.prepared is None else [batch.prepared]
        differences += [] if batch.difference is None else [batch.difference]
    return ServedPixels(
        indices=np.concatenate(indices),
        digests=np.concatenate(digests),
        prepared=np.concatenate(prepared) if prepared else None,
        difference=max(differences, default=None),
    )


def joined_pixels(parts: Sequence[ServedPixels]) -> ServedPixels:
    """Return the samples served by the ranks of a job, by index. Identical copies of a sample count once."""
    full = [part for part in parts if len(part.indices)]
    if not full:
        return parts[0]
    indices = np.concatenate([part.indices for part in full])
    digests = np.concatenate([part.digests for part in full])
    prepared = [part.prepared for part in full if part.prepared is not None]
    once = _different(indices, digests)
    return ServedPixels(
        indices=indices[once],
        digests=digests[once],
        prepared=np.concatenate(prepared)[once] if prepared else None,
        difference=max((part.difference for part in full if part.difference is not None), default=None),
    )


def _different(indices: Indices, digests: DigestTable) -> Indices:
    """Return the positions of the different pairs of an index and a digest, each pair once, in their order."""
    if len(np.unique(indices)) == len(indices):
        return np.arange(len(indices))
    pairs = np.concatenate([indices[:, None].view(np.uint8), digests], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    return np.sort(first)


def check_pixels(served: ServedPixels, table: DigestTable) -> PixelCheck:
    """Compare the digests of served samples with a store's table of them, uint8 [N, 16]."""
    where, prepared = served.indices, served.prepared
    by_index = np.argsort(where, kind="stable")
    differing = np.flatnonzero((served.digests != table[where]).any(axis=1))
    return PixelCheck(
        checked=len(where),
        wrong=len(differing),
        first_wrong=int(where[differing[0]]) if len(differing) else None,
        digest=set_digest(served.digests[by_index]),
        prepared=None if prepared is None else set_digest(prepared[by_index]),
        difference=served.difference,
    )


def coverage(planned: Sequence[Indices], served: Sequence[Indices], pixels: PixelCheck) -> Coverage:
    """Compare the served samples with the planned ones, and count the differences."""
    wanted, got = joined(planned), joined(served)
    every = np.union1d(wanted, got)
    wanted_counts, got_counts = (
        np.bincount(np.searchsorted(every, indices), minlength=len(every)) for indices in (wanted, got)
    )
    return Coverage(
        expected=len(wanted),
        served=len(got),
        unique=int(np.count_nonzero(got_counts)),
        duplicates=int(np.maximum(got_counts - np.maximum(wanted_counts, 1), 0).sum()),
        missing=int(np.maximum(wanted_counts - got_counts, 0).sum()),
        pixels_checked=pixels.checked,
        pixels_wrong=pixels.wrong,
    )


def same_order(planned: Sequence[Indices], served: Sequence[Indices]) -> bool:
    """Whether the planned samples were served in the planned order."""
    return bool(np.array_equal(joined(planned), joined(served)))
