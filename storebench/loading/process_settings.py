"""Settings of a process that a reader must leave alone, because they change how fast everything else in it runs."""

import os
from dataclasses import dataclass
from typing import Self

import torch

from storebench.errors import CellFailedError


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """The settings of this process and of the calling thread."""

    threads: int
    cores: frozenset[int]
    priority: int

    @classmethod
    def now(cls) -> Self:
        """Return the settings as they are now."""
        return cls(
            threads=torch.get_num_threads(),
            cores=frozenset(os.sched_getaffinity(0)),
            priority=os.getpriority(os.PRIO_PROCESS, 0),
        )

    def require_unchanged(self, backend: str) -> None:
        """Raise `CellFailedError` if a setting is no longer as it was: the cell would compute under other conditions."""
        now = type(self).now()
        changes = {
            "torch's threads": (self.threads, now.threads),
            "the cores that it may use": (sorted(self.cores), sorted(now.cores)),
            "its priority": (self.priority, now.priority),
        }
        for name, (before, after) in changes.items():
            if before != after:
                raise CellFailedError(
                    f"the reader of {backend} changed {name} from {before} to {after} in the process that is measured",
                    hint="A reader may set these in processes and threads of its own only.",
                )
