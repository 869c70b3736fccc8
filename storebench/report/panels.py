"""Panels: cells of one dataset and setting that may be compared with each other."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from storebench.report.cells import MEMORY_FORMAT, CellSummary, Work, ceiling_key, state_key, work_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """Cells of one dataset that differ in nothing but the backend, so that they may be compared.

    They may serve their samples in different numbers of passes.
    """

    cells: tuple[CellSummary, ...]
    null: CellSummary | None

    @property
    def first(self) -> CellSummary:
        """One of the cells, for the fields that they share."""
        return self.cells[0]

    @property
    def listed(self) -> tuple[CellSummary, ...]:
        """The cells, followed by the null cell if there is one."""
        return (*self.cells, self.null) if self.null else self.cells

    @property
    def work(self) -> Work:
        """What the loop of these cells does beside reading and decoding."""
        return work_of(self.first.cell)

    @property
    def alone(self) -> bool:
        """Whether only readers and decoders ran: no network, and no augmentation that all backends share."""
        return self.work is Work.READING

    @property
    def speaker(self) -> CellSummary:
        """The cell whose cache state is the panel's: one that reads its store, preferably with a proven state."""
        reading = [cell for cell in self.cells if cell.usable and cell.fact("cache_applies_to") != "open"]
        proven = (cell for cell in reading if not cell.whole_only)
        return next(proven, (reading or [self.first])[0])

    @functools.cached_property
    def measured(self) -> tuple[CellSummary, ...]:
        """The cells that have a rate in the requested state.

        If no store has one, there are none: arrays in memory, which read nothing, have nothing to be compared with.
        """
        if self.speaker.whole_only:
            return ()
        return tuple(cell for cell in self.cells if cell.median("samples_per_s"))

    def of(self, backend: str) -> CellSummary | None:
        """Return the measured cell of a backend."""
        return next((cell for cell in self.measured if cell.backend == backend), None)

    @functools.cached_property
    def stored(self) -> tuple[CellSummary, ...]:
        """The measured cells that read a store; those that hold their samples in memory are left out."""
        return tuple(cell for cell in self.measured if cell.cell.backend.format != MEMORY_FORMAT)

    @property
    def base(self) -> CellSummary | None:
        """The cell with which the others are compared: PNG files, else the files as they are, else the first in the paper's order.

        The choice does not depend on the measured rates, so comparing the others with it selects nothing.
        """
        return self.of("png") or self.of("original") or next(iter(self.stored or self.measured), None)

    @functools.cached_property
    def fastest(self) -> CellSummary | None:
        """The measured cell with the highest throughput."""
        return max(self.measured, key=lambda cell: cell.median("samples_per_s") or 0, default=None)


def panels(cells: Iterable[CellSummary]) -> list[Panel]:
    """Split cells into panels, each with its null cell."""
    grouped: dict[tuple[Any, ...], list[CellSummary]] = {}
    nulls: dict[tuple[Any, ...], CellSummary] = {}
    for cell in cells:
        if cell.is_null:
            nulls.setdefault(ceiling_key(cell), cell)
        else:
            grouped.setdefault((cell.dataset_key, cell.setting), []).append(cell)
    return [
        Panel(cells=tuple(group), null=nulls.get(ceiling_key(group[0])))
        for together in grouped.values()
        for group in _once_each(together)
    ]


def _once_each(cells: Sequence[CellSummary]) -> Iterable[Sequence[CellSummary]]:
    """Return the cells as one group, or grouped by their passes where these make a difference.

    They do where a backend has several numbers of them, and where the first batch, which waits for the loader to start,
    is timed: it is a larger share of one pass than of many.
    """
    if len({cell.backend for cell in cells}) == len(cells) and cells[0].cell.warmup_steps:
        return [cells]
    by_passes: dict[int | None, list[CellSummary]] = {}
    for cell in cells:
        by_passes.setdefault(cell.cell.passes, []).append(cell)
    return by_passes.values()


def fullest(found: Iterable[Panel]) -> list[Panel]:
    """Return one panel for each work and state of the store, in order: that with most replicates, then with most stores."""
    best: dict[tuple[Any, ...], tuple[int, int]] = {}
    chosen: dict[tuple[Any, ...], Panel] = {}
    for panel in found:
        key = state_key(panel.first)
        rounds = max((len(cell.values("samples_per_s")) for cell in panel.measured), default=0)
        size = (rounds, len(panel.stored))
        if key not in best or size > best[key]:
            best[key], chosen[key] = size, panel
    return list(chosen.values())
