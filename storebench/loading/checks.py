"""Prove, outside every timer, what an epoch served: each sample exactly once, and the right pixels."""

from collections.abc import Iterable, Sequence

import numpy as np

from storebench.digests import DigestTable, array_digest, set_digest
from storebench.formats.base import Indices
from storebench.loading.batch import Batch
from storebench.results import Coverage


def check_pixels(batches: Iterable[Batch], table: DigestTable) -> tuple[int, int, str]:
    """Compare the digests that the batches carry with a store's table of them, uint8 [N, 16].

    Returns
    -------
    checked, wrong, digest
        Samples compared, samples that differ, and the digest of what was served, by index.
    """
    indices, digests = [], []
    for batch in batches:
        assert batch.digests is not None
        indices.append(batch.indices)
        digests.append(batch.digests)
    if not indices:
        return 0, 0, set_digest([])
    where, served = np.concatenate(indices), np.concatenate(digests)
    wrong = int((served != table[where]).any(axis=1).sum())
    return len(where), wrong, set_digest(served[np.argsort(where, kind="stable")])


def coverage(
    planned: Sequence[Indices], served: Sequence[Indices], *, checked: int = 0, wrong: int = 0
) -> Coverage:
    """Count what was served against what was planned."""
    wanted, got = _joined(planned), _joined(served)
    unique = np.unique(got)
    return Coverage(
        expected=len(wanted),
        served=len(got),
        unique=len(unique),
        duplicates=len(got) - len(unique),
        missing=len(np.setdiff1d(wanted, unique)),
        pixels_checked=checked,
        pixels_wrong=wrong,
    )


def order_digest(served: Sequence[Indices]) -> str:
    """Return the digest of the order in which the samples came."""
    return array_digest(_joined(served))


def _joined(batches: Sequence[Indices]) -> Indices:
    return np.concatenate(batches) if len(batches) else np.empty(0, dtype=np.int64)
