"""The part of an epoch for which a cell's figures hold: all of it, or its steady steps with a limited page cache."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from storebench.results import Cell, steady
from storebench.settings.words import BOUNDED_STATES, CacheState, Fill

EpochRow = Mapping[str, Any]

WHOLE = "whole_"
"""Prefix of metrics of the whole epoch, regardless of the requested cache state."""

_PARTS = ("data_wait_s", "h2d_s", "compute_s")
_COLUMNS = {
    "samples_per_s": "portion_samples_per_s",
    "timed_s": "portion_seconds",
    "timed_samples": "portion_samples",
    "timed_steps": "portion_steps",
} | {
    name: f"portion_{name}"
    for name in (*_PARTS, "payload_bytes", "fetch_s", "decode_s", "prep_s", "handover_s")
}
"""Metric -> the column that holds it for the portion."""


def _busy(row: EpochRow) -> float:
    return sum(float(row[f"portion_{name}"]) for name in _PARTS)


_DERIVED: dict[str, Callable[[EpochRow], float]] = {
    "overhead_s": lambda row: row["portion_seconds"] - _busy(row),
    "data_wait_frac": lambda row: row["portion_data_wait_s"] / (_busy(row) or 1.0),
    "accelerator_util_frac": lambda row: row["portion_compute_s"] / row["portion_seconds"],
    "payload_bytes_per_s": lambda row: row["portion_payload_bytes"] / row["portion_seconds"],
}
"""Metric -> function that computes it from a portion's sums."""


def figure(row: EpochRow, metric: str, *, portion: bool) -> float | None:
    """Return a metric of one record, or None if it was not measured.

    Parameters
    ----------
    row
        The record, in the columns of `storebench.load_results`.
    metric
        Name of a column. Rates and sums of time are those of the portion where `portion` is set; percentiles,
        counters and whatever begins with ``whole_`` are those of the whole epoch.
    portion
        Whether the record's figures hold for its portion only.
    """
    if metric.startswith(WHOLE):
        value = row[metric.removeprefix(WHOLE)]
    elif portion and metric in _DERIVED:
        value = _DERIVED[metric](row) if has_portion(row) else None
    else:
        value = row[_COLUMNS[metric] if portion and metric in _COLUMNS else metric]
    return None if value is None else float(value)


def has_portion(row: EpochRow) -> bool:
    """Whether the record has steady steps."""
    return bool(row["portion_seconds"])


def bounded(row: EpochRow, cell: Cell) -> bool:
    """Whether a limited page cache can be steady for a part of this epoch only."""
    return cell.cache == CacheState.LIMITED and fills_cache(row, cell)


def fills_cache(row: EpochRow, cell: Cell) -> bool:
    """Whether the page cache fills while the epoch reads its store, from a cold start or up to a limit."""
    return cell.cache in BOUNDED_STATES and not cell.backend.is_null and row["cache_applies_to"] != "open"


def counted(rows: Sequence[EpochRow], cell: Cell) -> tuple[EpochRow, ...]:
    """Return the records whose figures hold for the requested cache state.

    For a limited cell, and for a data store filled in the first epoch, only the last epoch of each replicate counts, because
    earlier epochs fill the page cache or the data store.
    """
    return tuple(row for row in _last(rows, cell) if not bounded(row, cell) or has_portion(row))


def unsteady(rows: Sequence[EpochRow], cell: Cell) -> tuple[int, int]:
    """Return the number of replicates of a limited cell whose rate was not steady, and of all of them.

    A replicate was steady if the two halves of its steady part had about the same rate. A replicate whose cache had not
    filled, or whose halves are not known, was not.
    """
    if cell.cache != CacheState.LIMITED:
        return 0, 0
    judged = [row for row in _last(rows, cell) if bounded(row, cell)]
    return sum(not (has_portion(row) and steady(row["portion_drift"])) for row in judged), len(judged)


def _last(rows: Sequence[EpochRow], cell: Cell) -> tuple[EpochRow, ...]:
    """Return the rows that may count: all of them, or the last epoch of each replicate if earlier ones fill a cache."""
    if cell.cache != CacheState.LIMITED and cell.store_fill is not Fill.FIRST_EPOCH:
        return tuple(rows)
    last: dict[Any, EpochRow] = {}
    for row in rows:
        key = (row["run_id"], row["replicate"])
        if key not in last or row["epoch"] > last[key]["epoch"]:
            last[key] = row
    return tuple(last.values())
