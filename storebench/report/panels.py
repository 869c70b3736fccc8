"""Panels: cells of one dataset and setting that may be compared with each other."""

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from storebench.report.cells import MEMORY_FORMAT, CellSummary, LoopWork, ceiling_key, state_key, work_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """Cells of one dataset that differ only in the backend, so they may be compared.

    Their numbers of epochs may differ.
    """

    cells: tuple[CellSummary, ...]
    null: CellSummary | None

    @property
    def first(self) -> CellSummary:
        """One of the cells, for the fields that all of them share."""
        return self.cells[0]

    @property
    def listed(self) -> tuple[CellSummary, ...]:
        """The cells, followed by the null cell if there is one."""
        return (*self.cells, self.null) if self.null else self.cells

    @property
    def work(self) -> LoopWork:
        """The work of the loop besides reading and decoding."""
        return work_of(self.first.cell)

    @property
    def alone(self) -> bool:
        """Whether only readers and decoders ran, without a network or an augmentation that all backends share."""
        return self.work is LoopWork.READING

    @property
    def speaker(self) -> CellSummary:
        """The cell that stands for the panel's cache state: one that reads its store, preferably with a proven state."""
        reading = [cell for cell in self.cells if cell.usable and cell.fact("cache_applies_to") != "open"]
        proven = (cell for cell in reading if not cell.whole_only)
        return next(proven, (reading or [self.first])[0])

    @functools.cached_property
    def measured(self) -> tuple[CellSummary, ...]:
        """The cells that have a rate in the requested state.

        There are none if no store has such a rate: arrays in memory read nothing, so there is nothing to compare them with.
        """
        if self.speaker.whole_only:
            return ()
        return tuple(cell for cell in self.cells if cell.median("samples_per_s"))

    def of(self, backend: str) -> CellSummary | None:
        """Return the measured cell of a backend."""
        return next((cell for cell in self.measured if cell.backend == backend), None)

    @functools.cached_property
    def stored(self) -> tuple[CellSummary, ...]:
        """The measured cells that read a store; backends that hold samples in memory are left out."""
        return tuple(cell for cell in self.measured if cell.cell.backend.format != MEMORY_FORMAT)

    @property
    def base(self) -> CellSummary | None:
        """The base of the comparisons: PNG files, else the original files, else the first backend in the paper's order.

        The choice does not depend on the measured rates, so the comparisons have no selection bias.
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


def without(panels: Iterable[Panel], keys: Collection[tuple[str, str]]) -> list[Panel]:
    """Return the panels without the cells of these keys, as far as others are left."""
    kept = ((panel, tuple(cell for cell in panel.cells if cell.key not in keys)) for panel in panels)
    return [replace(panel, cells=cells) for panel, cells in kept if cells]


def _once_each(cells: Sequence[CellSummary]) -> Iterable[Sequence[CellSummary]]:
    """Return the cells as one group, or grouped by their number of epochs if a backend was measured with several."""
    if len({cell.backend for cell in cells}) == len(cells):
        return [cells]
    by_epochs: dict[int, list[CellSummary]] = {}
    for cell in cells:
        by_epochs.setdefault(cell.cell.epochs, []).append(cell)
    return by_epochs.values()


def fullest(panels: Iterable[Panel]) -> list[Panel]:
    """Return one panel per kind of work and state of the store: the one with most replicates, then with most stores."""
    best: dict[tuple[Any, ...], tuple[int, int]] = {}
    chosen: dict[tuple[Any, ...], Panel] = {}
    for panel in panels:
        key = state_key(panel.first)
        rounds = max((len(cell.values("samples_per_s")) for cell in panel.measured), default=0)
        size = (rounds, len(panel.stored))
        if key not in best or size > best[key]:
            best[key], chosen[key] = size, panel
    return list(chosen.values())
