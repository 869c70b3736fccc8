"""Keep the page cache of a cell below a limit, and check that it was: the cache state "limited"."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from storebench.probes.cgroup import MemoryGroup
from storebench.probes.page_cache import PAGE_BYTES, Residency, cache_facts, evict, resident
from storebench.probes.residency import settled
from storebench.results import CacheFacts, CacheVerdict
from storebench.settings.words import CacheState

LIMIT_HEADROOM = 1.02
"""At most so many times the limit may be resident: pages are counted whole, and reclaim, which keeps the limit, lags a little."""


class LimitedCache:
    """The limit on the page cache of one cell."""

    def __init__(self, group: MemoryGroup, limit_bytes: int, files: Sequence[Path]) -> None:
        self.group = group
        self.limit_bytes = limit_bytes
        self.files = files
        self._inside: set[int] = set()

    def prepare(self, pids: Collection[int]) -> CacheFacts:
        """Begin an epoch and return the count; the first time, evict the store and move the processes into the group."""
        how = f"cgroup-v{self.group.version}"
        if self._inside:
            return _continued(self.count(), self.limit_bytes, how)
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
        reason = f"{max(most, sampled):.1%} of the store was resident and the limit allows {allowed:.1%}; does another process read it, too?"
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
        """Move the processes back to their previous group."""
        self.group.leave(self._inside)


def _continued(before: Residency, limit_bytes: int, how: str) -> CacheFacts:
    unknown = before.frac is None
    return CacheFacts(
        requested=CacheState.LIMITED,
        method=f"{how}+{before.method}",
        resident_frac_before=before.frac,
        resident_frac_after=None,
        verdict=CacheVerdict.UNVERIFIED if unknown else CacheVerdict.VERIFIED,
        reason=f"resident pages cannot be counted: {before.reason}" if unknown else "",
        limit_bytes=limit_bytes,
    )
