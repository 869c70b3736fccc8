"""Loaders of ranks that read a store together: their base class, and the loader for each way of sharing.

A shared loader serves one rank, as every loader does. It knows the other ranks, because they may have read its batches. All
ranks of a job open, serve and close their loaders together and in the same order.
"""

import importlib
from typing import ClassVar, cast

from storebench.errors import UsageError
from storebench.loading.batch import LoadJob
from storebench.loading.loader import Loader
from storebench.ranks.group import Group
from storebench.ranks.progress import NO_PROGRESS, RankProgress
from storebench.settings.words import Share

SHARED_LOADERS: dict[Share, str] = {
    Share.NODE: "storebench.ranks.node_loader:NodeLoader",
    Share.STORE: "storebench.ranks.store_loader:StoreLoader",
}
"""Way of sharing -> "module:Class" of its loader, a `SharedLoader`."""


class SharedLoader(Loader):
    """Serve the batches of one rank of a job whose ranks read together.

    `epoch` gets every batch of the rank's shard, including empty ones. So all ranks have the same number of batches, and
    the k-th batch of each rank belongs to the same step.

    Parameters
    ----------
    job
        The store, the reader and the augmentation; its `batch_size` is that of one rank.
    group
        All ranks of the job. Its operations may be used while the loader opens, but never inside a timed step.
    progress
        Is told when this rank waits for another one, so this rank is not reported as the hanging one.
    workers
        Number of reading threads beside the loop.
    pin
        Whether to put batches into page-locked memory, for a GPU.
    """

    serves_empty: ClassVar[bool] = True

    def __init__(
        self,
        job: LoadJob,
        *,
        group: Group,
        progress: RankProgress = NO_PROGRESS,
        workers: int = 0,
        pin: bool = False,
    ) -> None:
        super().__init__(job, workers=workers, pin=pin)
        self.group = group
        self.progress = progress


def shared_loader(
    share: Share, job: LoadJob, *, group: Group, progress: RankProgress, workers: int = 0, pin: bool = False
) -> Loader:
    """Return the loader of one rank of a job whose ranks read together.

    Parameters
    ----------
    share
        How they share: "node" or "store".
    job, group, progress, workers, pin
        As for `SharedLoader`.

    Raises
    ------
    UsageError
        This way of sharing has no loader.
    """
    if share not in SHARED_LOADERS:
        raise UsageError(f"share '{share}' has no loader", hint="Use share 'none', 'node' or 'store'.")
    module, _, name = SHARED_LOADERS[share].partition(":")
    loader = cast("type[SharedLoader]", getattr(importlib.import_module(module), name))
    return loader(job, group=group, progress=progress, workers=workers, pin=pin)
