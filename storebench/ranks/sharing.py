"""Loaders of ranks that read a store together: their base class, and the loader for each way of sharing."""

import importlib
from typing import ClassVar, cast

from storebench.errors import UsageError
from storebench.loading.batch import LoadJob
from storebench.loading.loader import Loader
from storebench.ranks.group import Group
from storebench.ranks.heartbeat import NO_PROGRESS, RankProgress
from storebench.settings.words import Share

SHARED_LOADERS: dict[Share, str] = {
    Share.NODE: "storebench.ranks.node_loader:NodeLoader",
    Share.STORE: "storebench.ranks.data_store:StoreLoader",
}
"""Way of sharing -> "module:Class" of its loader, a `SharedLoader`."""


class SharedLoader(Loader):
    """Serve the batches of one rank of a job whose ranks read together."""

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
    """Return the loader of one rank of a job whose ranks read together."""
    if share not in SHARED_LOADERS:
        raise UsageError(f"share '{share}' has no loader", hint="Use share 'none', 'node' or 'store'.")
    module, _, name = SHARED_LOADERS[share].partition(":")
    loader = cast("type[SharedLoader]", getattr(importlib.import_module(module), name))
    return loader(job, group=group, progress=progress, workers=workers, pin=pin)
