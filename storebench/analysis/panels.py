"""Panels: cells of one dataset and setting that differ in the backend only, and how they compare."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storebench.analysis.comparison import Ratio, Verdict, compare
from storebench.analysis.frame import Round
from storebench.analysis.summary import (
    MEMORY_FORMAT,
    CellSummary,
    LoopWork,
    ceiling_key,
    work_of,
)
from storebench.codecs import any_size
from storebench.datasets.base import PATH_PREFIXES
from storebench.settings.words import CacheState, ComputeKind, Share, Sync
from storebench.units import Better

# That of Linux.
_DEFAULT_READAHEAD_KIB = 128

# Backends that read a container where it is.
IN_PLACE = ("container", "container:stream", "container+raw")

# Up to this rank of a base, the samples are read from the user's own files.
USERS_OWN = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """Cells that may be compared with each other, and the null cell of the same work."""

    cells: tuple[CellSummary, ...]
    null: CellSummary | None = None

    @property
    def first(self) -> CellSummary:
        return self.cells[0]

    @property
    def speaker(self) -> CellSummary:
        """The cell that stands for the cache state: one that reads its store, preferably with a proven state."""
        reading = [cell for cell in self.cells if cell.usable and cell.fact("cache_applies_to") != "open"]
        return next((cell for cell in reading if not cell.whole_only), (reading or [self.first])[0])

    @property
    def listed(self) -> tuple[CellSummary, ...]:
        return (*self.cells, self.null) if self.null else self.cells

    @functools.cached_property
    def measured(self) -> tuple[CellSummary, ...]:
        if self.speaker.whole_only:
            return ()
        return tuple(cell for cell in self.cells if cell.median("samples_per_s"))

    @functools.cached_property
    def stored(self) -> tuple[CellSummary, ...]:
        """The measured cells that read a store; backends that hold samples in memory are left out."""
        return tuple(cell for cell in self.measured if cell.cell.backend.format != MEMORY_FORMAT)

    @property
    def base(self) -> CellSummary | None:
        """The measured cell that others are compared with: what the user has, whatever its rate."""
        return min(self.measured, key=base_rank, default=None)

    def fastest(self) -> CellSummary | None:
        """Return the stored cell with the highest rate among those that may be ranked."""
        sound = [cell for cell in self.stored if not cell.doubt and not cell.at_most]
        return max(sound, key=lambda cell: cell.median("samples_per_s") or 0.0, default=None)

    def ratio(self, cell: CellSummary) -> Ratio | None:
        """Return a cell's rate over the base's; None for the base, the null cell, and cells without common rounds."""
        if self.base is None or cell is self.base or cell.is_null:
            return None
        return rate_ratio(cell, self.base)


def base_rank(cell: CellSummary) -> int:
    """Return the distance of a cell from what the user has: a container, original files, files; then stores."""
    backend, codec = cell.cell.backend, cell.cell.backend.codec.partition(":")[0]
    if backend.name in IN_PLACE:
        return 0
    if backend.format == MEMORY_FORMAT:
        return 7
    if backend.format != "files":
        return 6
    if any_size(codec):
        return 1 if cell.cell.data.name.startswith(PATH_PREFIXES) else 4
    return {"png": 2, "jpeg": 3}.get(codec, 5)


def rate_ratio(cell: CellSummary, base: CellSummary) -> Ratio | None:
    """Return one cell's rate over another's, paired by round; rates that rank nothing are undecided."""
    ratio = paired(cell.values("samples_per_s"), base.values("samples_per_s"))
    if ratio is None:
        return None
    at_most = (cell.at_most and ratio.verdict is not Verdict.SLOWER) or (
        base.at_most and ratio.verdict is not Verdict.FASTER
    )
    doubtful = cell.doubt or base.doubt or at_most
    return dataclasses.replace(ratio, verdict=Verdict.UNDECIDED) if doubtful else ratio


def paired(
    top: Mapping[Round, float], bottom: Mapping[Round, float], better: Better = Better.HIGHER
) -> Ratio | None:
    """Return the ratio of two sides over the rounds that both have; None if no round has both."""
    shared = [key for key in top if key in bottom]
    if not shared:
        return None
    ratio = compare([bottom[key] for key in shared], [top[key] for key in shared], better=better)
    return None if ratio.mid is None else ratio


def panels(cells: Iterable[CellSummary]) -> list[Panel]:
    grouped: dict[tuple[Any, ...], list[CellSummary]] = {}
    nulls: dict[tuple[Any, ...], CellSummary] = {}
    for cell in cells:
        if cell.is_null:
            nulls.setdefault(ceiling_key(cell), cell)
        else:
            grouped.setdefault((cell.dataset_key, cell.setting), []).append(cell)
    made = []
    for together in grouped.values():
        # Of a backend that was measured with several numbers of epochs, each has its panel.
        by_epochs: dict[int, list[CellSummary]] = {}
        several = len({cell.backend for cell in together}) < len(together)
        for cell in together:
            by_epochs.setdefault(cell.cell.epochs if several else 0, []).append(cell)
        made += [
            Panel(cells=tuple(group), null=nulls.get(ceiling_key(group[0]))) for group in by_epochs.values()
        ]
    return made


def ordered(every: Sequence[Panel]) -> list[Panel]:
    """Return the panels that have a rate, the one that the answer rests on first; settings decide, never results."""
    return sorted((panel for panel in every if panel.measured), key=_rank, reverse=True)


def _rank(panel: Panel) -> tuple[float, ...]:
    cell = panel.first.cell
    return (
        min(len(panel.measured), 2),
        not any(summary.short_training for summary in panel.measured),
        not panel.speaker.cold_start,
        pixels(panel.measured[0]),
        state_rank(panel.speaker),
        readahead_rank(panel.first),
        (ComputeKind.NONE, ComputeKind.EMULATED, ComputeKind.REAL).index(cell.compute.kind),
        work_of(cell) is LoopWork.READING,
        # A server of this machine is as far as what is emulated; the fewer values, the plainer.
        bool(cell.place.emulated),
        -len(cell.place.emulated),
        len(panel.measured),
        len(panel.measured[0].values("samples_per_s")),
        -cell.ranks,
        cell.share is Share.NONE,
        cell.sync is Sync.OVERLAPPED,
        -cell.workers,
    )


def pixels(cell: CellSummary) -> int:
    return math.prod(map(int, str(cell.fact("store_image_shape") or 0).split("x")))


def readahead_rank(cell: CellSummary) -> int:
    """Return the importance of a read-ahead: others than Linux's default come first only if it was not measured."""
    kib = cell.cell.readahead_kib
    return 2 if kib == _DEFAULT_READAHEAD_KIB else 1 if kib is None else 0


def state_rank(cell: CellSummary) -> int:
    """Return the importance of a cell's cache state; if the whole dataset fits into memory, warm comes first."""
    fits = cell.whole is not None and cell.whole.fits
    if cell.whole_only:
        return 0
    order = (CacheState.COLD, CacheState.LIMITED, CacheState.WARM)
    order = order if fits else (CacheState.COLD, CacheState.WARM, CacheState.LIMITED)
    return order.index(cell.cell.cache) + 1 if cell.cell.cache in order else 0
