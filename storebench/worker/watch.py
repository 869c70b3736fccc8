"""Watch residency during one epoch, and determine the steady steps of a limited page cache."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from storebench.formats.registry import get_format
from storebench.loading.batch import LoadedBatch
from storebench.manifest import Manifest
from storebench.probes.page_count import PAGE_BYTES, Residency
from storebench.probes.residency import ResidencyCurve, Sampler
from storebench.results import CacheFacts, Cell, Portion
from storebench.settings.words import BOUNDED_STATES, CacheState, Share
from storebench.training.step_table import StepTable, step_ends
from storebench.worker.portion import Judgement, residency_points, steady_portion

_IN_MEMORY = "the epoch is served from memory, so the cache state is one of the opening only"


def ahead_frac(cell: Cell, manifest: Manifest) -> float:
    """Return the share of a store that all readers of a cell read ahead, if they are told the order of the epoch."""
    reader = get_format(cell.backend.format).readers()[cell.backend.reader].reader
    options = reader.options_type.parse(cell.backend.options, cell.backend.name)
    # Only one node's cache is watched; one reader there may read for all ranks.
    readers = 1 if cell.share is Share.NODE else cell.ranks * max(1, cell.workers)
    return min(1.0, readers * reader.ahead_bytes(options, manifest) / max(1, manifest.payload_bytes))


class ResidencyWatch:
    """Sample the residency of a store's files during an epoch of a cold or limited cell."""

    def __init__(
        self, cell: Cell, manifest: Manifest, files: Sequence[Path], *, served_from_store: bool, late: bool
    ) -> None:
        self._cell = cell
        self._manifest = manifest
        self._late = late
        self._wanted = cell.cache in BOUNDED_STATES and served_from_store
        # Read-ahead never crosses files, so only requested data is read from such a store; and sampling it opens files.
        self._by_counts = late and len(files) >= manifest.count
        sampled = self._wanted and not self._by_counts
        self._sampler = Sampler(files, late=late, limit_bytes=cell.memory_bytes) if sampled else None
        self._curve = ResidencyCurve(reason="residency was not sampled")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sampler is not None:
            self._sampler.close()

    def begin(self) -> None:
        """Begin to sample, unless files must stay unopened until the first batch; call it before any rank begins to read."""
        if self._sampler is not None and not self._late:
            self._sampler.begin()

    def over(self, batches: Iterator[LoadedBatch]) -> Iterator[LoadedBatch]:
        """Return the batches; sampling begins with the first one if `begin` was too early for it."""
        if self._sampler is None or not self._late:
            return batches
        return _with_call_after_first(batches, self._sampler)

    def stop(self) -> None:
        """End the sampling; call it right after the epoch."""
        if self._sampler is not None:
            self._curve = self._sampler.stop()

    def judge(
        self, cache: CacheFacts, after: Residency, table: StepTable, epoch: int
    ) -> tuple[CacheFacts, Portion | None]:
        """Return `cache` with the sampled residency, and the steady steps of a limited cell."""
        cache = dataclasses.replace(cache, resident_frac_after=after.frac)
        if not self._wanted or not len(table["step"]):
            reason = cache.reason or (_IN_MEMORY if self._cell.cache in BOUNDED_STATES else "")
            return dataclasses.replace(cache, reason=reason), None
        if self._by_counts:
            self._curve = _two_points(table, cache, after)
        judged = Judgement() if self._cell.cache == CacheState.COLD else self._steady(after, table, epoch)
        cache = dataclasses.replace(
            cache,
            curve=residency_points(table, self._curve, self._manifest.count),
            sampling_cpu_s=self._curve.cpu_s,
            resident_max_frac=max(self._curve.resident_frac, default=None),
            sampling_error_frac=self._curve.error_frac,
            recounts=self._curve.recounts,
            reason=cache.reason or judged.reason,
        )
        return cache, judged.portion

    def _steady(self, after: Residency, table: StepTable, epoch: int) -> Judgement:
        return steady_portion(
            table,
            self._curve,
            self._manifest.count,
            after.pages_total * PAGE_BYTES,
            epoch=epoch,
            memory_bytes=self._cell.memory_bytes or 0,
            ahead_frac=ahead_frac(self._cell, self._manifest),
        )


def _with_call_after_first(batches: Iterator[LoadedBatch], sampler: Sampler) -> Iterator[LoadedBatch]:
    for batch in batches:
        sampler.begin()
        yield batch
        break
    yield from batches


def _two_points(table: StepTable, cache: CacheFacts, after: Residency) -> ResidencyCurve:
    if cache.resident_frac_before is None or after.frac is None:
        return ResidencyCurve(reason=after.reason or "resident pages cannot be counted")
    return ResidencyCurve(
        at_ns=(int(table["start_ns"][0]) - 1, int(step_ends(table)[-1])),
        resident_frac=(cache.resident_frac_before, after.frac),
    )
