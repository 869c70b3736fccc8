"""Merge the step tables of a finished run into one file, ``steps.parquet``."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storebench.errors import CorruptDataError, StorebenchError, from_os_error
from storebench.fileio.json_lines import rows_of
from storebench.fileio.whole_files import open_whole
from storebench.results import Record
from storebench.runs.entries import check_entries
from storebench.runs.lock import claimed
from storebench.runs.records import RECORDS_NAME, STEPS_DIR, STEPS_NAME, SUPERSEDED_NAME, record_from_dict
from storebench.runs.step_files import (
    NAME_COLUMN,
    RECORD_COLUMNS,
    merged_names,
    merged_row_groups,
    read_arrow,
)
from storebench.runs.step_paths import step_path

_TEXTS = (NAME_COLUMN, "cell_id")
"""Columns of text."""


@dataclass(frozen=True, kw_only=True)
class _Own:
    """A step table in a separate file: the record that names it, its `pyarrow.Schema` and its number of rows."""

    path: Path
    record: Record
    schema: Any
    rows: int

    @property
    def name(self) -> str:
        return str(self.record.steps_file)


def merge_tables(run: Path) -> int:
    """Move the step tables of a run into its ``steps.parquet``, and return how many were moved."""
    with claimed(run):
        check_entries(run)
        tables, damaged = _readable(run)
        try:
            _add(run / STEPS_NAME, tables)
            moved = _remove_merged(run / STEPS_NAME, tables)
        except OSError as error:
            raise from_os_error(error, error.filename or run) from error
        with contextlib.suppress(OSError):  # it is not empty, or not there
            (run / STEPS_DIR).rmdir()
        if damaged:
            raise damaged[0]
        return moved


def _readable(run: Path) -> tuple[list[_Own], list[CorruptDataError]]:
    """Return the tables in files of their own, and why others cannot be read."""
    tables, damaged = [], []
    for path, record in _named_files(run):
        try:
            rows = read_arrow(path, str(record.steps_file))
        except CorruptDataError as error:
            damaged.append(error)
        else:
            tables.append(_Own(path=path, record=record, schema=rows.schema, rows=len(rows)))
    return tables, damaged


def _named_files(run: Path) -> Iterator[tuple[Path, Record]]:
    """Yield the files of single tables that records name, each once, in the order of the records."""
    seen = set()
    for file in (run / RECORDS_NAME, run / SUPERSEDED_NAME):
        for row in rows_of(file):
            name = row.get("steps_file")
            if not isinstance(name, str) or not name.isascii() or name in seen:
                continue
            try:
                path, record = step_path(run, name), record_from_dict(row, where=str(file))
            except StorebenchError:
                continue  # a finding of `storebench validate`: the file stays as it is
            if path.is_file() and not path.is_symlink():
                seen.add(name)
                yield path, record


def _add(merged: Path, tables: Sequence[_Own]) -> None:
    """Write the merged file anew where it lacks tables: those that it has, and after them the others."""
    from pyarrow import parquet

    known = merged_names(merged)
    schema, new = _schema(merged, [table for table in tables if table.name not in known])
    if not new:
        return
    with (
        open_whole(merged) as file,
        parquet.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=list(_TEXTS),  # for numbers that hardly repeat it only takes room
            write_statistics=[NAME_COLUMN],
        ) as writer,
    ):
        for rows in merged_row_groups(merged):
            writer.write_table(_fitted(rows, schema), row_group_size=len(rows))
        for table in new:
            rows = _labelled(read_arrow(table.path, table.name), table.record)
            writer.write_table(_fitted(rows, schema), row_group_size=len(rows))


def _schema(merged: Path, tables: Sequence[_Own]) -> tuple[Any, list[_Own]]:
    """Return the schema that holds the merged file and tables beside it, and the tables that fit it."""
    import pyarrow as pa

    types = {NAME_COLUMN: pa.string(), "cell_id": pa.string(), "replicate": pa.int64(), "epoch": pa.int64()}
    for group in merged_row_groups(merged):
        types |= {field.name: field.type for field in group.schema}
        break
    fitting = []
    for table in tables:
        if table.rows and _fits(table.schema, types):
            types |= {field.name: field.type for field in table.schema}
            fitting.append(table)
    return pa.schema(list(types.items())), fitting


def _fits(schema: Any, types: dict[str, Any]) -> bool:
    """Return whether the columns of a table can stand beside those of the others."""
    import pyarrow as pa

    plain = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
    return len(set(schema.names)) == len(schema.names) and all(
        field.name not in RECORD_COLUMNS
        and types.get(field.name, field.type) == field.type
        and any(is_plain(field.type) for is_plain in plain)
        for field in schema
    )


def _labelled(rows: Any, record: Record) -> Any:
    """Return a table's rows with the columns that say which record they belong to."""
    import pyarrow as pa

    labels = (record.steps_file, record.cell.cell_id, record.replicate, record.epoch)
    for name, label in zip(RECORD_COLUMNS, labels, strict=True):
        rows = rows.append_column(name, pa.repeat(label, len(rows)))
    return rows


def _fitted(rows: Any, schema: Any) -> Any:
    """Return a table's rows with all columns of a schema, in its order: those that the table lacks are null."""
    import pyarrow as pa

    columns = [
        rows[field.name] if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _remove_merged(merged: Path, tables: Sequence[_Own]) -> int:
    """Remove the files of tables that the merged file holds unchanged, and return their number."""
    known = merged_names(merged)
    moved = 0
    for table in tables:
        if table.name in known and _same(read_arrow(table.path, table.name), read_arrow(merged, table.name)):
            table.path.unlink()
            moved += 1
    return moved


def _same(rows: Any, others: Any) -> bool:
    return set(rows.column_names) == set(others.column_names) and all(
        _same_column(rows[name], others[name]) for name in rows.column_names
    )


def _same_column(column: Any, other: Any) -> bool:
    """Return whether two columns hold the same values; the loss of a training that diverges is not a number."""
    import pyarrow as pa

    if column.type != other.type or column.null_count != other.null_count:
        return False
    return np.array_equal(column.to_numpy(), other.to_numpy(), equal_nan=pa.types.is_floating(column.type))
