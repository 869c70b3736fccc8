"""Limit the page cache that the processes of a cell fill, with a control group."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from storebench.probes.cgroup import MemoryGroup
from storebench.probes.page_cache import cache_facts, evict
from storebench.probes.page_count import PAGE_BYTES, Residency, resident
from storebench.probes.residency import settled
from storebench.record.schema import CacheFacts, CacheVerdict
from storebench.settings.words import CacheState

# Most that may be resident, in units of the limit: pages are counted whole, and reclaim lags a little.
LIMIT_HEADROOM = 1.02


class LimitedCache:
    """The limit on the page cache of one cell."""

    def __init__(self, group: MemoryGroup, limit_bytes: int, files: Sequence[Path]) -> None:
        self.group = group
        self.limit_bytes = limit_bytes
        self.files = files
        self._inside: set[int] = set()

    def prepare(self, pids: Collection[int]) -> CacheFacts:
        """Begin an epoch and return the count; the first time, evict the store and let the processes enter."""
        how = f"cgroup-v{self.group.version}"
        if self._inside:
            facts = cache_facts(CacheState.LIMITED, self.count(), how=how)
            return dataclasses.replace(facts, limit_bytes=self.limit_bytes)
        evicted = evict(self.files)
        cold = cache_facts(CacheState.COLD, resident(self.files), paths=self.files, how=f"{how}+{evicted}")
        if cold.verdict is not CacheVerdict.FAILED:
            self.group.enter(pids)
            self._inside = set(pids)
        return dataclasses.replace(cold, requested=CacheState.LIMITED, limit_bytes=self.limit_bytes)

    def enter(self, pids: Collection[int]) -> None:
        """Move processes into the group that another process of the cell has prepared; the first time only."""
        if not self._inside:
            self.group.enter(pids)
            self._inside = set(pids)

    def count(self) -> Residency:
        """Count the store's resident pages between two epochs; a count above the limit is repeated."""
        return settled(lambda: resident(self.files), self.limit_bytes)[0]

    def judged(self, facts: CacheFacts, after: Residency) -> CacheFacts:
        """Return the facts after an epoch: failed if more was resident at any time than the limit allows."""
        usage = self.group.usage()
        facts = dataclasses.replace(
            facts,
            resident_frac_after=after.frac,
            limit_peak_bytes=usage.peak_bytes,
            limit_own_bytes=usage.own_bytes,
        )
        allowed = (
            LIMIT_HEADROOM * self.limit_bytes / (after.pages_total * PAGE_BYTES) if after.pages_total else 1.0
        )
        sampled = facts.resident_max_frac or 0.0
        most = max(facts.resident_frac_before or 0.0, facts.resident_frac_after or 0.0)
        if most <= allowed and sampled <= allowed + facts.sampling_error_frac:
            return facts
        reason = f"{max(most, sampled):.1%} of the store was resident and the limit allows {allowed:.1%}"
        reason += "; does another process read it, too?"
        return dataclasses.replace(facts, verdict=CacheVerdict.FAILED, reason=reason)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Move the processes out of the limit for the duration of a with statement."""
        self.leave()
        try:
            yield
        finally:
            self.group.enter(self._inside)

    def leave(self) -> None:
        self.group.leave(self._inside)
