"""The base class of loaders of ranks that read a store together."""

from typing import ClassVar

from storebench.loading.batch import LoadJob
from storebench.loading.loader import BatchLoader
from storebench.ranks.group import Group
from storebench.ranks.heartbeat import NO_PROGRESS, RankProgress


class SharedLoader(BatchLoader):
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
