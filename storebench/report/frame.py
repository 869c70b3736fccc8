"""Records as one tidy table, with the column and the type of each field."""

import contextlib
import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from storebench.results import (
    BACKEND_FIELDS,
    CELL_FIELDS,
    CacheFacts,
    Ceilings,
    Cell,
    CellFields,
    CodeFacts,
    Conditions,
    Counters,
    Coverage,
    Digests,
    Environment,
    JobFacts,
    Loss,
    Percentiles,
    Portion,
    Record,
    StoreFacts,
)
from storebench.runs.manifest import whole_of
from storebench.runs.steps import find_table

PARTS: dict[str, tuple[type, str]] = {
    "cell": (CellFields, "{}"),
    "data_wait_ns": (Percentiles, "data_wait_{}_ns"),
    "digests": (Digests, "{}_digest"),
    "coverage": (Coverage, "coverage_{}"),
    "loss": (Loss, "loss_{}"),
    "store": (StoreFacts, "store_{}"),
    "cache": (CacheFacts, "cache_{}"),
    "counters": (Counters, "{}"),
    "ceilings": (Ceilings, "{}"),
    "portion": (Portion, "portion_{}"),
    "code": (CodeFacts, "code_{}"),
    "conditions": (Conditions, "conditions_{}"),
    "job": (JobFacts, "job_{}"),
}
"""Part of a record -> its class, and the pattern for the column names of its fields."""

RENAMED = {
    "store_bytes_on_disk": "bytes_on_disk",
    "store_build_s": "build_s",
    "cache_resident_frac_before": "resident_frac_before",
    "cache_resident_frac_after": "resident_frac_after",
}
_WORDS = (
    "status",
    "au_kind",
    "cache_requested",
    "cache_verdict",
    "job_sync",
    "job_link",
)
"""Columns of enumerations, stored as words."""

_DROPPED = {"reasons", "reader_notes", "environment"}

_MOST_DIGITS = 18

CELL_COLUMNS = CELL_FIELDS
BACKEND_COLUMNS = tuple(BACKEND_FIELDS)
PLACE_COLUMNS = ("filesystem", "storage_device", "environment_key")
"""Columns of the place of a measurement: file system and block device of the store, and the machine."""


def _columns_of(kind: type, pattern: str) -> list[tuple[str, str, Any]]:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind) if field.name not in _DROPPED]
    return [(name, RENAMED.get(pattern.format(name), pattern.format(name)), hints[name]) for name in names]


_PART_COLUMNS = {part: _columns_of(*description) for part, description in PARTS.items()}
_PLAIN_COLUMNS = [
    (name, column, hint) for name, column, hint in _columns_of(Record, "{}") if name not in PARTS
]
_EXTRA_COLUMNS: list[tuple[str, Any]] = [
    ("cell_id", str),
    ("environment_key", str),
    ("steps_path", str | None),
    ("whole", object),
    ("filesystem", str | None),
    ("storage_device", str | None),
    ("machine_readahead_kib", int | None),
    ("cpu_s_per_sample", float | None),
    ("cores_used", float | None),
]


def column_types() -> dict[str, Any]:
    """Return the annotation behind every column of the table, in order."""
    parts = [(column, hint) for columns in _PART_COLUMNS.values() for _, column, hint in columns]
    return dict([(column, hint) for _, column, hint in _PLAIN_COLUMNS] + parts + _EXTRA_COLUMNS)


_DTYPES = {int: "Int64", bool: "boolean", float: "float64"}


_LACKING = {"object": math.nan}
"""What stands in a column for a value that no record of a kind has; None in every other type of column."""


class _Masked(NamedTuple):
    """How pandas holds values that may be missing: the type of its array, that of a value, and what stands for none."""

    array: Any
    kind: type
    blank: object


_MASKED = {
    "Int64": _Masked(array=pd.arrays.IntegerArray, kind=int, blank=0),
    "boolean": _Masked(array=pd.arrays.BooleanArray, kind=bool, blank=False),
}


def _dtype(hint: Any) -> str:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((name for kind, name in _DTYPES.items() if kind in kinds), "object")


def _column(values: list[Any], dtype: Any) -> Any:
    """Return a column of a type; None is missing.

    Columns of plain values are made by hand: pandas takes 40 ms to convert those of a table, however short it is.
    """
    kinds = set(map(type, values))
    if dtype == "float64" and kinds <= {float, NoneType}:
        return np.array(values, dtype=np.float64)
    if dtype in _MASKED and kinds <= {_MASKED[dtype].kind, NoneType}:
        array, kind, blank = _MASKED[dtype]
        plain = [blank if value is None else value for value in values] if NoneType in kinds else values
        with contextlib.suppress(OverflowError):  # pandas says so in its own way
            return array(
                np.array(plain, dtype=kind), np.array([value is None for value in values], dtype=bool)
            )
    column = np.empty(len(values), dtype=object)
    column[:] = values
    given = pd.Series(column, dtype=object)  # by itself, pandas would see an array of texts
    return given if dtype == "object" else given.astype(dtype)


def to_frame(records: Iterable[tuple[Record, Path]]) -> pd.DataFrame:
    """Return one row for each pair of a record and its file.

    A cell whose process was killed has no environment; it gets that of the rest of its run.

    Raises
    ------
    CorruptDataError
        A record names a step table outside of its run.
    """
    kinds, given = column_types(), list(records)
    machines: dict[str, Environment] = {}
    for record, _ in given:
        if record.environment is not None:
            machines.setdefault(record.run_id, record.environment)
    folders = {file.parent for _, file in given}
    wholes = {folder: whole_of(folder) for folder in folders}
    rows = [
        _row(record, file.parent, machines)
        | {
            "whole": wholes[file.parent],
        }
        for record, file in given
    ]
    columns = {
        column: _column([row.get(column, _LACKING.get(dtype)) for row in rows], dtype)
        for column, dtype in ((column, _dtype(hint)) for column, hint in kinds.items())
    }
    return pd.DataFrame(columns, copy=True)


def _row(record: Record, run: Path, machines: dict[str, Environment]) -> dict[str, Any]:
    row: dict[str, Any] = {column: getattr(record, name) for name, column, _ in _PLAIN_COLUMNS}
    for part, columns in _PART_COLUMNS.items():
        fields = _fields_of(getattr(record, part))
        for name, column, _ in columns:
            row[column] = fields.get(name)
    for name in _WORDS:
        row[name] = None if row[name] is None else str(row[name])
    row["store_image_shape"] = record.store and "x".join(map(str, record.store.image_shape))
    row["cell_id"] = record.cell.cell_id
    table = find_table(run, record.steps_file) if record.steps_file else None
    row["steps_path"] = None if table is None else str(table)
    return row | _place(record.environment or machines.get(record.run_id)) | _cpu(record)


def _fields_of(part: Any) -> Mapping[str, Any]:
    """Return the fields of a part of a record by name; none if the record lacks the part."""
    if isinstance(part, Cell):
        return part.fields()
    return {} if part is None else vars(part)


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


def _cpu(record: Record) -> dict[str, Any]:
    """Return CPU seconds per sample, and CPU seconds per second, of the training process and its workers."""
    user, system = record.counters.cpu_user_s, record.counters.cpu_system_s
    if user is None or system is None or not record.samples or not record.epoch_s:
        return {}
    return {
        "cpu_s_per_sample": (user + system) / record.samples,
        "cores_used": (user + system) / record.epoch_s,
    }
