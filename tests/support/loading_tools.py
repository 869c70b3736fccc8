"""What the tests of loaders share: types of their fixtures, and batches compared with the samples of a store."""

from collections.abc import Callable

import numpy as np

from storebench.loading.batch import EpochPlan, LoadedBatch, LoadJob
from storebench.loading.loader import BatchLoader
from storebench.testing.stores import SmallStore

MakeJob = Callable[..., LoadJob]
MakePlan = Callable[..., EpochPlan]
StoreOf = Callable[[str], SmallStore]


def copied(batch: LoadedBatch) -> LoadedBatch:
    """Keep a batch's pixels: the loader will overwrite them."""
    batch.pixels = batch.pixels.clone()
    return batch


def drained(loader: BatchLoader, plan: EpochPlan) -> list[LoadedBatch]:
    """Run an epoch; return its batches."""
    return [copied(batch) for batch in loader.epoch(plan)]


def assert_served(batches: list[LoadedBatch], plan: EpochPlan, small: SmallStore) -> None:
    """Hold batches to the plan's indices, and to the store's labels and pixels."""
    assert len(batches) == len(plan.batches)
    for batch, indices in zip(batches, plan.batches, strict=True):
        np.testing.assert_array_equal(batch.indices, indices)
        np.testing.assert_array_equal(batch.labels, small.labels[indices])
        np.testing.assert_array_equal(batch.pixels.numpy(), small.pixels[indices])
