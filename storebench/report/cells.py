"""Records of one cell brought together: medians over replicates, labels, and which cells are siblings."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from storebench.formats.registry import PAPER_BACKENDS
from storebench.report.frame import BACKEND_COLUMNS, CELL_COLUMNS
from storebench.report.intervals import Interval, Ratio, Round, median_interval, ratio
from storebench.results import Cell, PortionKind

NULL_FORMAT = "null"
"""The backend that hands out one batch from memory: its rate is the compute ceiling."""

WHOLE_COLD = "cold start, whole epoch"
"""What a cold cell is called whose records do not say for how long it was cold."""

WHOLE_LIMITED = "limited memory, not shown to be steady"

_PORTIONS = {"cold": PortionKind.COLD, "limited": PortionKind.STEADY}
"""Requested cache state -> the part of an epoch during which it holds."""

_PORTION_NAMES = {"timed_s": "seconds", "timed_steps": "steps", "timed_samples": "samples"}
_PORTION_RATES = {
    "samples_per_s": ("samples", "seconds"),
    "payload_bytes_per_s": ("payload_bytes", "seconds"),
}

Row = Mapping[str, Any]
DATASET_COLUMNS = ("dataset", "split", "size", "limit", "data_seed", "synthetic")
SETTING_COLUMNS = tuple(
    name for name in CELL_COLUMNS if name not in BACKEND_COLUMNS and name not in DATASET_COLUMNS
)


@dataclass(frozen=True, kw_only=True, eq=False)
class CellSummary:
    """All records of one cell on one machine.

    Attributes
    ----------
    cell
        What was measured.
    environment_key
        On which machine.
    rows
        One mapping a record, in the columns of `storebench.load_results`; null is None.
    invalid
        What `storebench validate` found in its records, or "".
    """

    cell: Cell
    environment_key: str
    rows: tuple[Row, ...]
    invalid: str = ""

    def fact(self, name: str) -> Any:
        """Return a column that is the same in every record (the store's size), from the first that has it."""
        return next((row[name] for row in self.rows if row[name] is not None), None)

    @property
    def backend(self) -> str:
        """The backend's full name."""
        return self.cell.backend

    @functools.cached_property
    def usable(self) -> tuple[Row, ...]:
        """The records that may be used."""
        return tuple(row for row in self.rows if row["status"] == "ok")

    @property
    def failure(self) -> str:
        """Why the first failed record failed, or "" where none did."""
        failed = (row for row in self.rows if row["status"] != "ok")
        return next((str(row["failure"] or "failed") for row in failed), "")

    @functools.cached_property
    def portion_kind(self) -> PortionKind | None:
        """The part of an epoch that this cell's figures rest on; None where it is the whole epoch."""
        if self.fact("cache_applies_to") == "open" or self.is_null:
            return None
        kind = _PORTIONS.get(self.cell.cache)
        return kind if any(row["portion_kind"] == kind for row in self.usable) else None

    @property
    def state(self) -> str:
        """The cache state that its figures stand for, in words."""
        if self.cell.cache not in _PORTIONS or self.portion_kind or self.fact("cache_applies_to") == "open":
            return self.cell.cache
        return WHOLE_COLD if self.cell.cache == "cold" else WHOLE_LIMITED

    @property
    def upper_bound(self) -> bool:
        """Whether its rate is an upper bound: more was resident than had been asked for from the first step on."""
        return any(bool(row["portion_upper_bound"]) for row in self._counted)

    @functools.cached_property
    def _counted(self) -> tuple[Row, ...]:
        """The records that its figures rest on: a limited cell's last epochs, else all usable ones."""
        kind = self.portion_kind
        if kind is None:
            return self.usable
        rows = [row for row in self.usable if row["portion_kind"] == kind]
        if kind is PortionKind.COLD:
            return tuple(rows)
        last: dict[Round, int] = {}
        for row in self.usable:
            last[_round(row)] = max(last.get(_round(row), 0), row["epoch"])
        return tuple(row for row in rows if row["epoch"] == last[_round(row)])

    def values(self, metric: str) -> dict[Round, float]:
        """Return a metric for each replicate in which it was measured, the median over its epochs.

        The rate of a cold cell is that of its cold steps, the rate of a limited cell that of its steady
        steps; "whole_samples_per_s" is the rate of the whole epoch.
        """
        found: dict[Round, list[float]] = {}
        for row in self.usable if metric.startswith("whole_") else self._counted:
            value = self._value(row, metric)
            if value is not None:
                found.setdefault(_round(row), []).append(value)
        return {key: _middle(epochs) for key, epochs in found.items()}

    def _value(self, row: Row, metric: str) -> float | None:
        if self.portion_kind is not None and not metric.startswith("whole_"):
            if metric == "data_wait_frac":
                parts = [float(row[f"portion_{name}_s"]) for name in ("data_wait", "h2d", "compute")]
                return parts[0] / sum(parts) if sum(parts) else None
            if metric in _PORTION_RATES:
                top, bottom = (float(row[f"portion_{name}"]) for name in _PORTION_RATES[metric])
                return top / bottom if bottom else None
        value = row[metric.removeprefix("whole_")]
        return None if value is None else float(value)

    def interval(self, metric: str) -> Interval | None:
        """Return the median over replicates with its interval, or None where nothing was measured."""
        values = list(self.values(metric).values())
        return median_interval(values) if values else None

    def median(self, metric: str) -> float | None:
        """Return the median over replicates, or None where nothing was measured."""
        values = list(self.values(metric).values())
        return _middle(values) if values else None

    def per_step(self, metric: str) -> float:
        """Return a sum of time as seconds a timed step, the median over replicates; 0 where it is null."""
        return self._per(metric, "timed_steps")

    def per_sample(self, metric: str) -> float:
        """Return a sum of time as seconds a timed sample, the median over replicates; 0 where it is null."""
        return self._per(metric, "timed_samples")

    def rounds_per_sample(self, metric: str) -> dict[Round, float]:
        """Return a sum of time as seconds per timed sample for each replicate, the median over its epochs."""
        return self._rounds_per(metric, "timed_samples")

    def _per(self, metric: str, counter: str) -> float:
        values = list(self._rounds_per(metric, counter).values())
        return _middle(values) if values else 0.0

    def _rounds_per(self, metric: str, counter: str) -> dict[Round, float]:
        top, bottom = self._column(metric), self._column(counter)
        found: dict[Round, list[float]] = {}
        for row in self._counted:
            if row[top] is not None and row[bottom]:
                found.setdefault(_round(row), []).append(float(row[top]) / row[bottom])
        return {key: _middle(epochs) for key, epochs in found.items()}

    def _column(self, metric: str) -> str:
        return metric if self.portion_kind is None else f"portion_{_PORTION_NAMES.get(metric, metric)}"

    @property
    def key(self) -> tuple[str, str]:
        """What tells this cell on this machine from all others."""
        return self.environment_key, self.cell.cell_id

    @property
    def dataset_key(self) -> tuple[Any, ...]:
        """What decides the samples, and the machine."""
        return (self.environment_key, *(getattr(self.cell, name) for name in DATASET_COLUMNS))

    @property
    def setting(self) -> tuple[Any, ...]:
        """Everything of the cell but its backend and its samples."""
        return tuple(getattr(self.cell, name) for name in SETTING_COLUMNS)

    @property
    def is_null(self) -> bool:
        """Whether this is the compute ceiling and no storage format."""
        return self.cell.format == NULL_FORMAT


def _round(row: Row) -> Round:
    return row["run_id"], row["replicate"]


def _middle(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def summarise(results: pd.DataFrame, findings: Mapping[str, str] | None = None) -> list[CellSummary]:
    """Return one summary a cell, in the order of `backend_rank`.

    Parameters
    ----------
    results
        What `storebench.load_results` returned.
    findings
        cell_id -> what validation found.
    """
    grouped: dict[tuple[str, str], list[Row]] = {}
    clean = results.astype(object).where(results.notna(), None)
    for row in clean.to_dict("records"):
        grouped.setdefault((row["environment_key"], row["cell_id"]), []).append(
            {str(k): v for k, v in row.items()}
        )
    found = findings or {}
    cells = [
        CellSummary(
            cell=_cell(rows[0]), environment_key=key, rows=tuple(rows), invalid=found.get(cell_id, "")
        )
        for (key, cell_id), rows in grouped.items()
    ]
    return sorted(cells, key=lambda cell: (backend_rank(cell.backend), str(cell.setting)))


def as_cells(results: pd.DataFrame | Sequence[CellSummary]) -> list[CellSummary]:
    """Return summaries, of a table of records or as they are."""
    return summarise(results) if isinstance(results, pd.DataFrame) else list(results)


def _cell(row: Row) -> Cell:
    return Cell(**{name: row[name] for name in CELL_COLUMNS})


def backend_rank(backend: str) -> tuple[int, str]:
    """Return a key that sorts backends as the paper lists them, then the others by name."""
    known = PAPER_BACKENDS.index(backend) if backend in PAPER_BACKENDS else len(PAPER_BACKENDS)
    return known, backend


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """Cells of one dataset that differ in nothing but the backend: what may be compared."""

    cells: tuple[CellSummary, ...]
    null: CellSummary | None

    @property
    def first(self) -> CellSummary:
        """Any of the cells, for what they have in common."""
        return self.cells[0]

    @functools.cached_property
    def measured(self) -> tuple[CellSummary, ...]:
        """The cells that have a throughput."""
        return tuple(cell for cell in self.cells if cell.median("samples_per_s"))

    def of(self, backend: str) -> CellSummary | None:
        """Return the measured cell of a backend."""
        return next((cell for cell in self.measured if cell.backend == backend), None)

    @functools.cached_property
    def fastest(self) -> CellSummary | None:
        """The measured cell with the highest throughput."""
        return max(self.measured, key=lambda cell: cell.median("samples_per_s") or 0, default=None)


def panels(cells: Iterable[CellSummary]) -> list[Panel]:
    """Split cells into panels; the null cell of each is set beside the others."""
    grouped: dict[tuple[Any, ...], list[CellSummary]] = {}
    nulls: dict[tuple[Any, ...], CellSummary] = {}
    for cell in cells:
        if cell.is_null:
            nulls.setdefault(ceiling_key(cell), cell)
        else:
            grouped.setdefault((cell.dataset_key, cell.setting), []).append(cell)
    return [Panel(cells=tuple(group), null=nulls.get(ceiling_key(group[0]))) for group in grouped.values()]


def ceiling_key(cell: CellSummary) -> tuple[Any, ...]:
    """Return what a cell and its null cell have in common: all but the backend and the cache state."""
    fields = (getattr(cell.cell, name) for name in SETTING_COLUMNS if name != "cache")
    return (cell.dataset_key, *fields)


def by_dataset(cells: Iterable[CellSummary]) -> dict[tuple[Any, ...], list[CellSummary]]:
    """Split cells by what they read and on which machine."""
    grouped: dict[tuple[Any, ...], list[CellSummary]] = {}
    for cell in cells:
        grouped.setdefault(cell.dataset_key, []).append(cell)
    return grouped


def time_ratio(slow: CellSummary, fast: CellSummary) -> Ratio | None:
    """Return time per sample of `slow` over that of `fast`, paired by round; None where no round has both."""
    return ratio(fast.values("samples_per_s"), slow.values("samples_per_s"))
