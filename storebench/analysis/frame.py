"""Records with what the folders of their runs say, and the columns that `storebench.load_results` shows of them."""

import functools
import re
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import pandas as pd

from storebench.formats.reader import BUFFER_NOTE, DISPLACEMENT_NOTE, NEIGHBOURS_NOTE
from storebench.record.schema import BACKEND_FIELDS, CELL_FIELDS, Cell, Environment, Record, cell_types
from storebench.record.shared import is_shared
from storebench.record.steps import step_path
from storebench.run.about import Whole, whole_of
from storebench.run.replicates import unsound

CELL_COLUMNS = tuple(CELL_FIELDS)
BACKEND_COLUMNS = tuple(BACKEND_FIELDS)

# Columns of the place of a measurement: file system and block device of the store, and the machine.
PLACE_COLUMNS = ("filesystem", "storage_device", "environment_key", "machine")

# Run and replicate: cells of one round were measured side by side.
Round = tuple[str, int]


@dataclass(frozen=True, kw_only=True, repr=False)
class Sourced:
    """A record with its file, the machine and the whole dataset of its run, and the finding that questions its cell."""

    record: Record
    file: Path
    environment: Environment | None
    """The record's own, or that of the rest of its run if its process was killed."""
    whole: Whole | None
    invalid: str = ""
    machine: str = ""  # Its letter if the records are of several machines.

    def __repr__(self) -> str:
        return f"<{self.record.cell.cell_id} replicate {self.record.replicate} epoch {self.record.epoch}>"

    @property
    def round(self) -> Round:
        return self.record.run_id, self.record.replicate

    @property
    def environment_key(self) -> str:
        return self.environment.key + self.machine if self.environment else ""

    @functools.cached_property
    def unsound(self) -> str:
        """Why its replicate does not count, because its state did not hold; "" if it counts."""
        return unsound([self.record])

    @functools.cached_property
    def steps_path(self) -> Path | None:
        """The file of its step table; None if there is none."""
        name = self.record.steps_file
        path = step_path(self.file.parent, name) if name else None
        return path if path and path.is_file() else None

    def match(self, *names: str) -> Any:
        """Return a fact of its machine that must be equal for two results to be compared; None if it is unknown."""
        value: Any = self.environment.match if self.environment else None
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def __getitem__(self, column: str) -> Any:
        return COLUMNS[column].value(self)


def sourced(records: Iterable[tuple[Record, Path]], invalid: dict[str, str] | None = None) -> list[Sourced]:
    """Return records with what their runs' folders say; `invalid` is cell_id -> a finding that questions the cell."""
    given = list(records)
    machines: dict[str, Environment] = {}
    of_run: dict[str, str] = {}
    of_facts: dict[str, str] = {}  # of equal facts, on any host, and of all places of a run
    for record, _ in given:
        if (environment := record.environment) is not None:
            machines.setdefault(record.run_id, environment)
            number = len({*of_run.values()})
            letter = ascii_uppercase[number % 26] * (1 + number // 26)
            key = environment.key
            of_facts[key] = of_run.setdefault(record.run_id, of_facts.get(key, letter))
    of_run = of_run if len({*of_run.values()}) > 1 else {}
    runs = {file: file if is_shared(file) else file.parent for _, file in given}
    wholes = {run: whole_of(run) for run in set(runs.values())}
    return [
        Sourced(
            record=record,
            file=file,
            environment=record.environment or machines.get(record.run_id),
            whole=wholes[runs[file]],
            invalid=(invalid or {}).get(record.cell.cell_id, ""),
            machine=of_run.get(record.run_id, ""),
        )
        for record, file in given
    ]


@dataclass(frozen=True)
class FrameColumn:
    """The type of a column, and its value for a record; None is missing."""

    hint: Any
    value: Callable[[Sourced], Any]


# Part of a record -> the pattern for the column names of its fields; usually they begin with the part's name.
_PATTERNS = {
    "data_wait_ns": "data_wait_{}_ns",
    "digests": "{}_digest",
    "counters": "{}",
    "ceilings": "{}",
    "requests": "remote_{}",
}

_RENAMED = {
    "store_bytes_on_disk": "bytes_on_disk",
    "store_build_s": "build_s",
    "cache_resident_frac_before": "resident_frac_before",
    "cache_resident_frac_after": "resident_frac_after",
}
_DROPPED = {"reasons", "reader_notes", "environment"}


def _kinds(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _field(path: str, hint: Any) -> FrameColumn:
    """Return the column of a field of a record, or of one of its parts: None where the part is missing."""
    names = path.split(".")
    # A record that failed has no durations: its zeros would lower every mean.
    is_duration = hint is float and len(names) == 1

    def value(row: Sourced) -> Any:
        found: Any = None if is_duration and row.record.failed else row.record
        for name in names:
            found = None if found is None else getattr(found, name)
        return str(found) if isinstance(found, str) else found

    return FrameColumn(hint, value)


def _note_value(note: str) -> Callable[[Sourced], float | None]:
    """Return the value of a note on an order that is the reader's own."""

    def value(row: Sourced) -> float | None:
        text = row.record.reader_notes.get(note, "")
        return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII) else None

    return value


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _readahead_kib(row: Sourced) -> int | None:
    text = str(row.match("block_device", "read_ahead_kb"))
    return int(text) if re.fullmatch(r"\d{1,17}", text, re.ASCII) else None


def _shape(row: Sourced) -> str | None:
    store = row.record.store
    return None if store is None else "x".join(map(str, store.image_shape))


def _columns() -> dict[str, FrameColumn]:
    made: dict[str, FrameColumn] = {}
    parts: dict[str, FrameColumn] = {}
    for part, hint in typing.get_type_hints(Record).items():
        kind = next((kind for kind in _kinds(hint) if is_dataclass(kind)), None)
        if kind is Cell:
            hints = cell_types()
            parts |= {name: _field(f"cell.{path}", hints[name]) for name, path in CELL_FIELDS.items()}
        elif part not in _DROPPED and kind is None:
            made[part] = _field(part, hint)
        elif part not in _DROPPED:
            pattern = _PATTERNS.get(part, f"{part}_{{}}")
            for name, of_field in typing.get_type_hints(kind).items():
                if name not in _DROPPED:
                    column = pattern.format(name)
                    parts[_RENAMED.get(column, column)] = _field(f"{part}.{name}", of_field)
    return made | parts


# Column of the table -> its type and value, in order.
COLUMNS: dict[str, FrameColumn] = {
    **_columns(),
    "store_image_shape": FrameColumn(str | None, _shape),
    "cell_id": FrameColumn(str, lambda row: row.record.cell.cell_id),
    "unsound": FrameColumn(str | None, lambda row: row.unsound or None),
    "environment_key": FrameColumn(str, lambda row: row.environment_key),
    "machine": FrameColumn(str, lambda row: row.machine),
    "steps_path": FrameColumn(str | None, lambda row: _text(row.steps_path)),
    "whole": FrameColumn(object, lambda row: row.whole),
    "filesystem": FrameColumn(str | None, lambda row: _text(row.match("filesystem"))),
    "storage_device": FrameColumn(str | None, lambda row: _text(row.match("block_device", "model"))),
    "machine_readahead_kib": FrameColumn(int | None, _readahead_kib),
    "cpu_s_per_sample": FrameColumn(float | None, lambda row: row.record.cpu_s_per_sample),
    "cores_used": FrameColumn(float | None, lambda row: row.record.cores_used),
    "order_buffer_samples": FrameColumn(float | None, _note_value(BUFFER_NOTE)),
    "order_displacement": FrameColumn(float | None, _note_value(DISPLACEMENT_NOTE)),
    "order_neighbours_kept": FrameColumn(float | None, _note_value(NEIGHBOURS_NOTE)),
    "invalid": FrameColumn(str | None, lambda row: row.invalid or None),
}

# The column with the record itself, from which summaries are made; files have none.
RECORD_COLUMN = "record"

_DTYPES = {int: "Int64", bool: "boolean", float: "float64"}


def to_frame(rows: Iterable[Sourced]) -> pd.DataFrame:
    """Return records as a table. Raises CorruptDataError if one names a step table outside of its run."""
    given = list(rows)
    columns = {
        name: _column([column.value(row) for row in given], column.hint) for name, column in COLUMNS.items()
    }
    return pd.DataFrame(columns | {RECORD_COLUMN: _objects(given)}, copy=True)


def _column(values: list[Any], hint: Any) -> Any:
    """Return a column of the type that its annotation says; None is missing."""
    dtype: Any = next((dtype for kind, dtype in _DTYPES.items() if kind in _kinds(hint)), None)
    return _objects(values) if dtype is None else pd.array(values, dtype=dtype)


def _objects(values: list[Any]) -> Any:
    column = np.empty(len(values), dtype=object)  # by itself, pandas would see an array of texts
    column[:] = values
    return column
