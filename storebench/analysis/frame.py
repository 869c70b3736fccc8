"""Records as one tidy table, with the column and the type of each field."""

import dataclasses
import itertools
import math
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from storebench.formats.reader import BUFFER_NOTE, DISPLACEMENT_NOTE, NEIGHBOURS_NOTE
from storebench.record.schema import (
    BACKEND_FIELDS,
    CELL_FIELDS,
    CELL_TYPES,
    Cell,
    Environment,
    Record,
)
from storebench.record.step_files import find_table
from storebench.run.about import Whole, whole_of
from storebench.run.replicates import unsound

_PATTERNS = {
    "cell": "{}",
    "data_wait_ns": "data_wait_{}_ns",
    "digests": "{}_digest",
    "counters": "{}",
    "ceilings": "{}",
    "requests": "remote_{}",
}
"""Part of a record -> the pattern for the column names of its fields; usually they begin with the part's name."""

RENAMED = {
    "store_bytes_on_disk": "bytes_on_disk",
    "store_build_s": "build_s",
    "cache_resident_frac_before": "resident_frac_before",
    "cache_resident_frac_after": "resident_frac_after",
}
_WORDS = ("status", "au_kind", "cache_requested", "cache_verdict", "job_sync", "job_link")
"""Columns of enumerations, stored as words."""

_DROPPED = {"reasons", "reader_notes", "environment"}

_MOST_DIGITS = 18

CELL_COLUMNS = CELL_FIELDS
BACKEND_COLUMNS = tuple(BACKEND_FIELDS)
PLACE_COLUMNS = ("filesystem", "storage_device", "environment_key")
"""Columns of the place of a measurement: file system and block device of the store, and the machine."""


def _columns_of(kind: Any, pattern: str) -> list[tuple[str, str, Any]]:
    if kind is Cell:
        return [(name, name, hint) for name, hint in CELL_TYPES.items()]
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind) if field.name not in _DROPPED]
    return [(name, RENAMED.get(pattern.format(name), pattern.format(name)), hints[name]) for name in names]


_PART_COLUMNS = {
    name: _columns_of(kind, _PATTERNS.get(name, f"{name}_{{}}"))
    for name, _, hint in _columns_of(Record, "{}")
    for kind in (typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,))
    if dataclasses.is_dataclass(kind)
}
_PLAIN_COLUMNS = [one for one in _columns_of(Record, "{}") if one[0] not in _PART_COLUMNS]
_EXTRA_COLUMNS: list[tuple[str, Any]] = [
    ("cell_id", str),
    ("unsound", str | None),
    ("environment_key", str),
    ("steps_path", str | None),
    ("whole", object),
    ("filesystem", str | None),
    ("storage_device", str | None),
    ("machine_readahead_kib", int | None),
    ("cpu_s_per_sample", float | None),
    ("cores_used", float | None),
    ("order_buffer_samples", float | None),
    ("order_displacement", float | None),
    ("order_neighbours_kept", float | None),
]


COLUMN_TYPES: dict[str, Any] = dict(
    [(column, hint) for _, column, hint in itertools.chain(_PLAIN_COLUMNS, *_PART_COLUMNS.values())]
    + _EXTRA_COLUMNS
)
"""Column of the table -> the annotation behind it, in order."""


Row = Mapping[str, Any]
"""One record in the columns of `storebench.load_results`; missing values are None."""


_DTYPES = {int: "Int64", bool: "boolean", float: "float64"}


def _column(rows: Sequence[Row], name: str, hint: Any) -> Any:
    """Return a column of the type that its annotation says; None is missing."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    dtype: Any = next((dtype for kind, dtype in _DTYPES.items() if kind in kinds), "object")
    if dtype != "object":
        return pd.array([row.get(name) for row in rows], dtype=dtype)
    column = np.empty(len(rows), dtype=object)  # by itself, pandas would see an array of texts
    column[:] = [row.get(name, math.nan) for row in rows]
    return column


def to_rows(records: Iterable[tuple[Record, Path]]) -> list[Row]:
    """Return one row for each pair of a record and its file.

    A cell whose process was killed has no environment; it gets that of the rest of its run. Raises CorruptDataError if a
    record names a step table outside of its run.
    """
    given = list(records)
    machines: dict[str, Environment] = {}
    for record, _ in given:
        if record.environment is not None:
            machines.setdefault(record.run_id, record.environment)
    wholes = {folder: whole_of(folder) for folder in {file.parent for _, file in given}}
    return [_row(record, file.parent, machines, wholes[file.parent]) for record, file in given]


def to_frame(records: Iterable[tuple[Record, Path]]) -> pd.DataFrame:
    """Return the rows of records as a table."""
    rows = to_rows(records)
    columns = {name: _column(rows, name, hint) for name, hint in COLUMN_TYPES.items()}
    return pd.DataFrame(columns, copy=True)


def _row(record: Record, run: Path, machines: dict[str, Environment], whole: Whole | None) -> Row:
    row: dict[str, Any] = dict.fromkeys(COLUMN_TYPES)
    # A record that failed has no durations: its zeros would lower every mean.
    row |= {
        column: None if record.failed and hint is float else getattr(record, name)
        for name, column, hint in _PLAIN_COLUMNS
    }
    for part, columns in _PART_COLUMNS.items():
        value = getattr(record, part)
        fields = value.fields() if isinstance(value, Cell) else {} if value is None else vars(value)
        row |= {column: fields.get(name) for name, column, _ in columns}
    row |= {name: str(row[name]) for name in _WORDS if row[name] is not None}
    table = find_table(run, record.steps_file) if record.steps_file else None
    row |= {
        "store_image_shape": record.store and "x".join(map(str, record.store.image_shape)),
        "cell_id": record.cell.cell_id,
        "unsound": unsound([record]) or None,
        "steps_path": None if table is None else str(table),
        "whole": whole,
        "cpu_s_per_sample": record.cpu_s_per_sample,
        "cores_used": record.cores_used,
    }
    row |= _place(record.environment or machines.get(record.run_id)) | _order(record)
    return row


def rows_of(frame: pd.DataFrame) -> Iterator[Row]:
    """Yield the rows of a table."""
    for values in frame.itertuples(index=False, name=None):
        yield dict(zip(frame.columns, map(_plain, values), strict=True))


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _place(environment: Environment | None) -> dict[str, Any]:
    """Return the columns of a record's place of measurement."""
    if environment is None:
        return {"environment_key": ""}
    disk = environment.match.get("block_device")
    disk = disk if isinstance(disk, dict) else {}
    return {
        "environment_key": environment.key,
        "filesystem": _word(environment.match.get("filesystem")),
        "storage_device": _word(disk.get("model")),
        "machine_readahead_kib": _kib(disk.get("read_ahead_kb")),
    }


def _word(value: Any) -> str | None:
    return None if value is None else str(value)


def _kib(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else None


def _order(record: Record) -> dict[str, Any]:
    """Return the columns of an order that is the reader's own."""
    names = (BUFFER_NOTE, DISPLACEMENT_NOTE, NEIGHBOURS_NOTE)
    columns = ("order_buffer_samples", "order_displacement", "order_neighbours_kept")
    texts = [record.reader_notes.get(name, "") for name in names]
    return {
        column: float(text)
        for column, text in zip(columns, texts, strict=True)
        if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII)
    }
