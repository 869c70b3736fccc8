"""The emulated tier of a cell: its processes enter a control group that limits and counts their reads."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from storebench.errors import CellFailedError
from storebench.probes.cgroup import ThrottledGroup
from storebench.probes.machine import disk_number
from storebench.record.schema import TierFacts
from storebench.settings.tiers import Tier


class EmulatedTier:
    """The limits of a tier on the reads of this process and of those that it starts."""

    def __init__(self, tier: Tier, disk: str, groups: Sequence[ThrottledGroup]) -> None:
        self._tier = tier
        self._disk = disk
        self._groups = groups
        self._begun = (0.0, 0, 0)

    @classmethod
    def enter(cls, tier: Tier, store: Path, folder: Path, memory: Path | None = None) -> Self:
        """Move this process into the group at `folder`, limited for the disk of the store."""
        disk = disk_number(store)
        if disk is None:
            raise CellFailedError(
                "the store is on no block device, so its reads cannot be limited", where=store
            )
        groups = [ThrottledGroup.at(folder)]
        if memory is not None and groups[0].version == 2:
            # A process is in one group of version 2, so that with a memory limit gets these limits, too.
            groups.append(ThrottledGroup.at(memory))
        for group in groups:
            group.throttle(disk, tier)
        groups[0].enter([os.getpid()])
        return cls(tier, disk, groups)

    def begin(self) -> None:
        self._begun = self._counted()

    def end(self) -> TierFacts:
        seconds, read, requests = (
            after - before for after, before in zip(self._counted(), self._begun, strict=True)
        )
        return TierFacts(
            disk=self._disk,
            limit_bytes_per_s=self._tier.bytes_per_s,
            limit_requests_per_s=self._tier.requests_per_s,
            read_bytes=int(read),
            requests=int(requests),
            seconds=seconds,
        )

    def _counted(self) -> tuple[float, int, int]:
        counts = [group.reads(self._disk) for group in self._groups]
        return time.perf_counter(), sum(read for read, _ in counts), sum(number for _, number in counts)
