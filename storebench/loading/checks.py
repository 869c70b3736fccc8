"""Prove, outside every timer, that an epoch served each sample exactly once, with the right pixels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storebench.digests import DigestTable, array_digest, set_digest
from storebench.formats.base import Indices
from storebench.loading.batch import Batch
from storebench.results import Coverage


@dataclass(frozen=True, kw_only=True)
class PixelCheck:
    """Result of comparing an epoch's decoded samples with the store's digests.

    Attributes
    ----------
    checked
        Samples compared.
    wrong
        Samples that differ.
    first_wrong
        Index of the first of them in the order of the epoch.
    digest
        Digest of what was served, by index; None where nothing was compared.
    prepared
        Digest of the pixels that were served, by index, where `digest` does not cover them; None otherwise.
    difference
        Largest absolute difference from the default decoder's pixels; None for the default decoder.
    """

    checked: int = 0
    wrong: int = 0
    first_wrong: int | None = None
    digest: str | None = None
    prepared: str | None = None
    difference: int | None = None


def check_pixels(batches: Iterable[Batch], table: DigestTable) -> PixelCheck:
    """Compare the digests that the batches carry with a store's table of them, uint8 [N, 16]."""
    indices, digests = [], []
    prepared: list[npt.NDArray[np.uint8]] = []
    differences: list[int] = []
    for batch in batches:
        assert batch.digests is not None
        indices.append(batch.indices)
        digests.append(batch.digests)
        prepared += [] if batch.prepared is None else [batch.prepared]
        differences += [] if batch.difference is None else [batch.difference]
    if not indices:
        return PixelCheck(digest=set_digest([]))
    where, served = np.concatenate(indices), np.concatenate(digests)
    differing = np.flatnonzero((served != table[where]).any(axis=1))
    return PixelCheck(
        checked=len(where),
        wrong=len(differing),
        first_wrong=int(where[differing[0]]) if len(differing) else None,
        digest=set_digest(served[np.argsort(where, kind="stable")]),
        prepared=set_digest(np.concatenate(prepared)[np.argsort(where, kind="stable")]) if prepared else None,
        difference=max(differences, default=None),
    )


def coverage(planned: Sequence[Indices], served: Sequence[Indices], pixels: PixelCheck) -> Coverage:
    """Compare the served samples with the planned ones, and count the differences."""
    wanted, got = _joined(planned), _joined(served)
    every = np.union1d(wanted, got)
    asked, came = (np.bincount(np.searchsorted(every, one), minlength=len(every)) for one in (wanted, got))
    return Coverage(
        expected=len(wanted),
        served=len(got),
        unique=int(np.count_nonzero(came)),
        duplicates=int(np.maximum(came - np.maximum(asked, 1), 0).sum()),
        missing=int(np.maximum(asked - came, 0).sum()),
        pixels_checked=pixels.checked,
        pixels_wrong=pixels.wrong,
    )


def order_digest(served: Sequence[Indices]) -> str:
    """Return the digest of the order in which the samples were served."""
    return array_digest(_joined(served))


def _joined(batches: Sequence[Indices]) -> Indices:
    return np.concatenate(batches) if len(batches) else np.empty(0, dtype=np.int64)
