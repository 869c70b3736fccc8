"""Summaries of cells: the records of one cell with medians over replicates, and keys that match cells with each other."""

import enum
import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from storebench.codecs import any_size
from storebench.errors import NotComparableError, StorebenchError
from storebench.formats.registry import PAPER_BACKENDS, get_format
from storebench.matrix import MODEL_CROPS
from storebench.report import states
from storebench.report.frame import BACKEND_COLUMNS, CELL_COLUMNS
from storebench.report.intervals import Estimate, Round, median_interval
from storebench.report.places import DATASET_COLUMNS, data_key, distinctions
from storebench.report.states import EpochRow
from storebench.results import Cell, steady
from storebench.results.record import ran_out_of_time
from storebench.runs.manifest import Whole, agreed
from storebench.settings.words import CacheState, ComputeKind


class LoopWork(enum.StrEnum):
    """The work of the loop besides reading and decoding. Cells of different work are never compared with each other."""

    READING = "reading"
    """Nothing: the reader and the decoder run alone."""
    AUGMENTING = "augmenting"
    """It cuts and mirrors images for a network, and computes nothing."""
    EMULATED = "emulated"
    """It sleeps for as long as an accelerator would compute."""
    TRAINING = "training"
    """It trains the network."""


def work_of(cell: Cell) -> LoopWork:
    """Return the work of a cell's loop besides reading and decoding."""
    if cell.compute.kind is ComputeKind.REAL:
        return LoopWork.TRAINING
    if cell.compute.kind is ComputeKind.EMULATED:
        return LoopWork.EMULATED
    return LoopWork.AUGMENTING if cell.model in MODEL_CROPS else LoopWork.READING


WHOLE_LIMITED = "limited memory, not shown to be steady"

MEMORY_FORMAT = "memory"
"""Format of backends that hold their samples in memory: a yardstick, not a way to store them."""

EPOCHS = "epochs"
"""Field that belongs to no setting: fast readers are timed for longer by more epochs of the same length."""

SETTING_COLUMNS = tuple(
    name
    for name in CELL_COLUMNS
    if name not in BACKEND_COLUMNS and name not in DATASET_COLUMNS and name != EPOCHS
)


_BACKEND_PARTS = tuple(name for name in BACKEND_COLUMNS if name != "backend")

SHARE_COLUMNS = ("share", "store_fill", "store_memory_bytes")
"""Fields that describe how the ranks of a job share reading."""

RANK_COLUMNS = ("ranks", "batch_size", "global_batch_size", "pad", "sync", *SHARE_COLUMNS)
"""Fields in which a job of ranks may differ from the process that it is compared with."""

STATE_COLUMNS = ("cache", "memory_bytes", "readahead_kib")
"""Fields that describe the state in which the store is read."""

WORK_COLUMNS = ("fetch_s", "decode_s", "prep_s")
"""The sums of time that make up the work of the producers."""

FEWEST_TRAINING_STEPS = 20
"""With fewer timed steps of real training, compute decides the rate: such cells rank no backends."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CellSummary:
    """All records of one cell on one machine.

    Rates and sums of time are those of the timed steps; those of a limited cell are of the steady state of the last epoch.
    The figures of the whole epoch have the prefix ``whole_``, as in ``whole_samples_per_s``.

    Attributes
    ----------
    cell
        The setting that was measured.
    environment_key
        The machine.
    place
        Words that distinguish its samples, and where they were read, from others of the same name; "" if none are needed.
    rows
        One mapping per record, in the columns of `storebench.load_results`; missing values are None.
    invalid
        The first finding about its records, or "".
    """

    cell: Cell
    environment_key: str
    rows: tuple[EpochRow, ...]
    invalid: str = ""
    place: str = ""

    def fact(self, name: str) -> Any:
        """Return a column that is equal in all records (the store's size), from the first usable record that has it."""
        rows = itertools.chain(self.counted, self.rows)
        return next((row[name] for row in rows if row[name] is not None), None)

    @functools.cached_property
    def fields(self) -> dict[str, Any]:
        """The fields of its cell, with the names that records use."""
        return self.cell.fields()

    @property
    def backend(self) -> str:
        """The backend's full name."""
        return self.cell.backend.name

    @functools.cached_property
    def usable(self) -> tuple[EpochRow, ...]:
        """The records that did not fail."""
        return tuple(row for row in self.rows if row["status"] == "ok")

    @property
    def failure(self) -> str:
        """The failure of the first failed record, or "" if none failed."""
        failed = (row for row in self.rows if row["status"] != "ok")
        return next((str(row["failure"] or "failed") for row in failed), "")

    @functools.cached_property
    def whole(self) -> Whole | None:
        """The whole dataset, if runs that agree on it chose to measure a part of it; None otherwise."""
        return agreed(row["whole"] for row in self.rows if row.get("whole") is not None)

    @property
    def state(self) -> str:
        """The cache state for which its figures hold, in words."""
        return WHOLE_LIMITED if self.whole_only else self.cell.cache

    @property
    def whole_only(self) -> bool:
        """Whether no record has steady steps with a limited page cache, so that there is no rate for that state."""
        return bool(self.usable) and not self.counted

    @functools.cached_property
    def cut_off(self) -> int:
        """Number of replicates that were killed at their time limit; those with a rate are the faster ones."""
        return sum(ran_out_of_time(str(row["failure"] or "")) for row in self.rows)

    @property
    def at_most(self) -> bool:
        """Whether its rate is an upper bound: it can only prove that the cell is slower than another one."""
        return self.cut_off > 0

    @property
    def cold_start(self) -> bool:
        """Whether its epochs fill the page cache from a cold start: the rate depends on how much of the store is read."""
        return self.cell.cache == CacheState.COLD and any(
            states.fills_cache(row, self.cell) for row in self.usable
        )

    def cold_rate(self, share: float) -> tuple[float, float | None, float | None] | None:
        """Return the rate from a cold start until a share of the store was read, and its resident and excess share.

        Each is the median over the records that have it; None if no record has the rate.
        """
        rates = [rate for row in self.usable for rate in row["cold_rates"] or () if rate.read_frac == share]
        resident = [rate.resident_frac for rate in rates if rate.resident_frac is not None]
        excess = [rate.excess_frac for rate in rates if rate.excess_frac is not None]
        if not rates:
            return None
        return (
            statistics.median(rate.samples_per_s for rate in rates),
            statistics.median(resident) if resident else None,
            statistics.median(excess) if excess else None,
        )

    @functools.cached_property
    def unsteady(self) -> bool:
        """Whether its limited rate is not shown to be steady: it drifts in most replicates, or a drift is unknown.

        A single replicate may be disturbed; with many replicates, one of them nearly always is. It is named beside the
        figures (`unsteady_replicates`).
        """
        if not any(self._bounded(row) for row in self.counted):
            return False
        moved = self.drifts
        return moved is None or (bool(moved) and not steady(math.exp(statistics.median(moved))))

    @functools.cached_property
    def unsteady_replicates(self) -> tuple[int, int]:
        """The number of replicates of a limited cell whose rate was not steady, and of all of them."""
        return states.unsteady(self.usable, self.cell)

    @property
    def drifts(self) -> list[float] | None:
        """By how much the rate differs between the halves of its steady part, as a logarithm, by replicate.

        None if it is unknown in one of them.
        """
        drifts = [row["portion_drift"] for row in self.counted if self._bounded(row)]
        if None in drifts:
            return None
        return [abs(math.log(drift)) if drift > 0 else math.inf for drift in drifts]

    @functools.cached_property
    def counted(self) -> tuple[EpochRow, ...]:
        """The records whose figures hold for the requested cache state."""
        return states.counted(self.usable, self.cell)

    def _bounded(self, row: EpochRow) -> bool:
        return states.bounded(row, self.cell)

    def _figures(self, metric: str) -> list[tuple[EpochRow, float]]:
        rows = self.usable if metric.startswith(states.WHOLE) else self.counted
        figures = [(row, states.figure(row, metric, portion=self._bounded(row))) for row in rows]
        return [(row, value) for row, value in figures if value is not None]

    @property
    def steps(self) -> int:
        """The smallest number of steps behind its figures in any record; 0 if nothing was measured."""
        return int(min((count for _, count in self._figures("timed_steps")), default=0))

    @property
    def short_training(self) -> bool:
        """Whether it trained for real, in too few timed steps for its rate to rank backends."""
        return self.cell.compute.kind is ComputeKind.REAL and self.steps < FEWEST_TRAINING_STEPS

    def values(self, metric: str) -> dict[Round, float]:
        """Return a metric for each replicate in which it was measured, the median over its epochs.

        The rate of a limited cell is that of its steady steps; "whole_samples_per_s" is the rate of the whole epoch.
        """
        return _by_round(self._figures(metric))

    def interval(self, metric: str) -> Estimate | None:
        """Return the median over replicates with its interval, or None if nothing was measured."""
        values = list(self.values(metric).values())
        return median_interval(values) if values else None

    def median(self, metric: str) -> float | None:
        """Return the median over replicates, or None if nothing was measured."""
        values = list(self.values(metric).values())
        return statistics.median(values) if values else None

    def per_step(self, metric: str) -> float:
        """Return a sum of time as seconds per timed step, the median over replicates; 0 if it is None."""
        return self._per(metric, "timed_steps")

    def per_sample(self, metric: str) -> float:
        """Return a sum of time as seconds per timed sample, the median over replicates; 0 if it is None."""
        return self._per(metric, "timed_samples")

    def rounds_per_sample(self, metric: str) -> dict[Round, float]:
        """Return a sum of time as seconds per timed sample for each replicate, the median over its epochs."""
        return self._rounds_per(metric, "timed_samples")

    def rounds_per_step(self, metric: str) -> dict[Round, float]:
        """Return a sum of time in seconds per timed step, for each replicate; the median over its epochs."""
        return self._rounds_per(metric, "timed_steps")

    def _per(self, metric: str, counter: str) -> float:
        values = list(self._rounds_per(metric, counter).values())
        return statistics.median(values) if values else 0.0

    def _rounds_per(self, metric: str, counter: str) -> dict[Round, float]:
        prefix = states.WHOLE if metric.startswith(states.WHOLE) else ""
        return _by_round(
            (row, value / count)
            for row, value in self._figures(metric)
            if (count := states.figure(row, prefix + counter, portion=self._bounded(row)))
        )

    def work_share(self, metric: str) -> dict[Round, float]:
        """Return the share of fetching, decoding or preparing in the work of the producers, for each replicate.

        Parameters
        ----------
        metric
            One of `WORK_COLUMNS`. The handoff is no part of the work, because the loop is not waiting for a producer in it.
        """
        parts = {name: self.rounds_per_sample(name) for name in WORK_COLUMNS}
        whole = {key: sum(part.get(key, 0.0) for part in parts.values()) for key in parts[metric]}
        return {key: seconds / whole[key] for key, seconds in parts[metric].items() if whole[key] > 0}

    def conversions(self, source: "CellSummary") -> list[float]:  # noqa: ARG002
        """Return no seconds: runs do not time conversions."""
        return []

    @property
    def key(self) -> tuple[str, str]:
        """The key of this cell on this machine."""
        return self.environment_key, self.cell.cell_id

    @property
    def dataset_key(self) -> tuple[Any, ...]:
        """The key of the samples and the machine."""
        return (self.environment_key, *(self.fields[name] for name in DATASET_COLUMNS))

    @property
    def setting(self) -> tuple[Any, ...]:
        """Values of all fields except those of the backend, the samples, and the number of epochs."""
        return tuple(self.fields[name] for name in SETTING_COLUMNS)

    @property
    def lossy(self) -> bool:
        """Whether its store is known to have lost pixels of the originals; image files as they are have lost none."""
        return self.fact("store_lossless") is False and not any_size(self.cell.backend.codec)

    @property
    def is_null(self) -> bool:
        """Whether this is the compute ceiling instead of a storage format."""
        return self.cell.backend.is_null


def _by_round(figures: Iterable[tuple[EpochRow, float]]) -> dict[Round, float]:
    """Return the median over its epochs for each replicate."""
    by_round: dict[Round, list[float]] = {}
    for row, value in figures:
        by_round.setdefault((row["run_id"], row["replicate"]), []).append(value)
    return {key: statistics.median(epochs) for key, epochs in by_round.items()}


def summarise(results: pd.DataFrame, findings: Mapping[str, str] | None = None) -> list[CellSummary]:
    """Return one summary per cell, in the order of `backend_rank`.

    Parameters
    ----------
    results
        The table that `storebench.load_results` returned.
    findings
        cell_id -> what validation found.

    Raises
    ------
    NotComparableError
        A cell was measured with different code; its rounds are no sample of one thing.
    """
    grouped: dict[tuple[str, str], list[EpochRow]] = {}
    names = [str(name) for name in results.columns]
    for values in results.itertuples(index=False, name=None):
        row = dict(zip(names, map(_plain, values), strict=True))
        grouped.setdefault((row["environment_key"], row["cell_id"]), []).append(row)
    for rows in grouped.values():
        _require_one_code(rows)
    invalid, named = findings or {}, distinctions([rows[0] for rows in grouped.values()])
    cells = [
        CellSummary(
            cell=_cell(rows[0]),
            environment_key=key,
            rows=tuple(rows),
            invalid=invalid.get(cell_id, ""),
            place=named[data_key(rows[0])],
        )
        for (key, cell_id), rows in grouped.items()
    ]
    return sorted(cells, key=lambda cell: (backend_rank(cell.backend), str(cell.setting)))


def _require_one_code(rows: Sequence[EpochRow]) -> None:
    codes = {row["code_digest"]: row["run_id"] for row in rows if row["code_digest"] is not None}
    if len(codes) > 1:
        (one, first), (other, second), *_ = codes.items()
        raise NotComparableError(
            f"{rows[0]['backend']}: run {first} measured other code (digest {one[:8]}) than run {second} ({other[:8]})",
            hint="Report them one by one; 'storebench bench --against' compares two revisions.",
        )


def _plain(value: Any) -> Any:
    """Return a value of a table as Python has it; None if it is missing."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value


def as_cells(results: pd.DataFrame | Sequence[CellSummary]) -> list[CellSummary]:
    """Return the summaries of a table of records; summaries are returned unchanged."""
    return summarise(results) if isinstance(results, pd.DataFrame) else list(results)


def _cell(row: EpochRow) -> Cell:
    return Cell.of_fields(**{name: row[name] for name in CELL_COLUMNS})


def backend_rank(backend: str) -> tuple[int, str]:
    """Return a key that sorts backends as the paper lists them, then the others by name."""
    known = PAPER_BACKENDS.index(backend) if backend in PAPER_BACKENDS else len(PAPER_BACKENDS)
    return known, backend


def key_without(cell: CellSummary, *names: str) -> tuple[Any, ...]:
    """Return the key that a cell shares with its siblings: the machine, and every field but those named.

    The backend is one field here, its full name.
    """
    omitted = {*_BACKEND_PARTS, *names}
    return (cell.environment_key, *(cell.fields[name] for name in CELL_COLUMNS if name not in omitted))


def ceiling_key(cell: CellSummary) -> tuple[Any, ...]:
    """Return the key shared with the null cell: all but the backend, the store's state, how ranks read it, and the epochs."""
    return key_without(cell, "backend", EPOCHS, *SHARE_COLUMNS, *STATE_COLUMNS)


_LENGTH_COLUMNS = ("max_steps", "warmup_steps", "passes", EPOCHS)


def work_key(cell: CellSummary) -> tuple[Any, ...]:
    """Return the key that a cell shares with those of other states of the store that do the same work, for however long.

    Rates are per sample, so epochs may have any length.
    """
    return key_without(cell, "backend", *STATE_COLUMNS, *_LENGTH_COLUMNS)


def state_key(cell: CellSummary) -> tuple[Any, ...]:
    """Return the key shared by cells with the same work and the same state of the store, whatever their length."""
    return key_without(cell, "backend", *_LENGTH_COLUMNS)


def varying_fields(cells: Iterable[CellSummary]) -> frozenset[str]:
    """Return the fields of a setting that differ between these cells; the epochs only if nothing else differs."""
    summaries = list(cells)
    settings = [cell.setting for cell in summaries]
    varying = frozenset(
        name
        for position, name in enumerate(SETTING_COLUMNS)
        if len({setting[position] for setting in settings}) > 1
    )
    alike = {(cell.dataset_key, cell.setting, cell.backend) for cell in summaries}
    return varying if len(alike) == len({cell.key for cell in summaries}) else varying | {EPOCHS}


def may_look_ahead(cell: Cell) -> bool:
    """Return whether a cell's reader is told the order of the epoch; True if its format is not installed here."""
    try:
        reader = get_format(cell.backend.format).readers()[cell.backend.reader].reader
    except (StorebenchError, KeyError):
        return True
    return reader.looks_ahead()
