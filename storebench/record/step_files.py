"""The step tables of a run: one file each while it runs, merged into one when it is finished."""

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from storebench.errors import CorruptDataError, StorebenchError, from_os_error
from storebench.record.lines import RECORDS_NAME, STEPS_DIR, STEPS_NAME, SUPERSEDED_NAME, record_from_dict
from storebench.record.schema import Record
from storebench.system.json_lines import rows_of
from storebench.system.lock import claimed
from storebench.system.reading import open_regular
from storebench.system.whole_files import open_whole

_HINT = "Use a run folder as 'storebench bench' wrote it."


def step_path(run: Path, name: str) -> Path:
    """Return the path of a step table that is a separate file; there may be no file."""
    parts = Path(name).parts
    if parts[:1] != (STEPS_DIR,) or len(parts) < 2 or ".." in parts or "\0" in name:
        raise CorruptDataError(
            f"the step file {name!r} of a record lies outside of the run's {STEPS_DIR}/",
            where=run,
            hint=_HINT,
        )
    return run / name


# Most rows of one table; an epoch has one row per step.
MOST_STEPS = 1 << 24

NAME_COLUMN = "steps_file"

# Columns of `steps.parquet` that identify the record of a row.
RECORD_COLUMNS = (NAME_COLUMN, "cell_id", "replicate", "epoch")


# Column name -> one value per step.
StepColumns = dict[str, npt.NDArray[Any]]


def find_table(run: Path, name: str) -> Path | None:
    """Return the file that holds a record's step table; None if there is no such file."""
    path = step_path(run, name)
    if path.is_file():
        return path
    merged = run / STEPS_NAME
    try:
        return merged if merged.is_file() and name in merged_names(merged) else None
    except CorruptDataError:
        return merged  # reading its table gives the reason


def step_columns(run: Path, name: str) -> StepColumns:
    """Return the columns of a step table; raises CorruptDataError if it is missing or no such table."""
    path = find_table(run, name)
    if path is None:
        raise CorruptDataError("it is not there", where=run / name)
    arrow = read_arrow(path, name)
    return {column: arrow.column(column).to_numpy() for column in arrow.column_names}


def read_arrow(path: Path, name: str) -> Any:
    """Return a whole step table as a `pyarrow.Table`, without the columns that name its record."""
    with _opened(path, name) as (file, group):
        # Without threads: an I/O error in a thread of Arrow's would abort the process at exit.
        if group is None:
            return file.read(use_threads=False)
        values = file.read_row_group(group, use_threads=False)
        return values.drop_columns([*RECORD_COLUMNS, *sorted(_absent(values.drop_columns(RECORD_COLUMNS)))])


def read_table(path: Path, name: str) -> Any:
    """Return a whole step table as a `pandas.DataFrame`."""
    values = read_arrow(path, name)
    with _refused(path):
        return values.to_pandas()


def merged_names(path: Path) -> Mapping[str, int]:
    """Return the names of the tables in a ``steps.parquet``, each with its row group; empty if there is no file."""
    if not os.path.lexists(path):
        return {}
    groups = _footer_of(path)[1]
    if groups is None:
        raise CorruptDataError(f"no column {NAME_COLUMN}", where=path)
    return groups


def merged_row_groups(path: Path) -> Iterator[Any]:
    """Yield the tables of a ``steps.parquet`` as `pyarrow.Table`, with all columns; none if there is no file."""
    for name in merged_names(path):
        with _opened(path, name) as (file, group):
            rows = file.read_row_group(group, use_threads=False)
        yield rows


@contextlib.contextmanager
def _opened(path: Path, name: str) -> Iterator[tuple[Any, int | None]]:
    """Open the `pyarrow.parquet.ParquetFile` of a step table; yield it and the table's row group in a merged one."""
    from pyarrow import parquet

    place, parts = path, Path(name).parts
    if path.parts[-len(parts) :] == parts and not path.exists():
        # The run has been finished since `find_table` was called.
        place = Path(*path.parts[: -len(parts)], STEPS_NAME)
    metadata, groups = _footer_of(place)
    if groups is not None and name not in groups:
        raise CorruptDataError(f"no table {name!r}", where=place)
    group = None if groups is None else groups[name]
    rows = metadata.num_rows if group is None else metadata.row_group(group).num_rows
    if rows > MOST_STEPS:
        raise CorruptDataError(f"a step table of {rows:,} rows, more than {MOST_STEPS:,}", where=place)
    with (
        _refused(place),
        open_regular(place) as raw,  # because its name may not be UTF-8
        parquet.ParquetFile(raw, metadata=metadata, pre_buffer=False) as file,  # read-ahead uses threads
    ):
        yield file, group


def _footer_of(path: Path) -> tuple[Any, Mapping[str, int] | None]:
    """Return the footer of a file of step tables, and each table's row group by name; None if it has one table."""
    with _refused(path):
        status = path.stat()
        return _footer(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _footer(path: Path, _size: int, _mtime_ns: int) -> tuple[Any, Mapping[str, int] | None]:
    """Parse a footer once for each state of its file, because it grows with the number of tables."""
    from pyarrow import parquet

    with open_regular(path) as raw, parquet.ParquetFile(raw, pre_buffer=False) as file:
        merged = NAME_COLUMN in file.schema_arrow.names
        return file.metadata, _groups(file.metadata, path) if merged else None


@contextlib.contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Turn errors of Arrow and of the kernel about an unreadable file into `CorruptDataError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise CorruptDataError(f"not a step table ({error})", where=path) from None


def _groups(metadata: Any, path: Path) -> dict[str, int]:
    """Return the row group of each table by name, from the statistics of the name column."""
    column = list(metadata.schema.names).index(NAME_COLUMN)
    groups: dict[str, int] = {}
    for number in range(metadata.num_row_groups):
        bounds = metadata.row_group(number).column(column).statistics
        if bounds is None or not bounds.has_min_max or bounds.min != bounds.max:
            raise CorruptDataError(f"row group {number} is not the table of one record", where=path)
        groups.setdefault(str(bounds.min), number)
    return groups


def _absent(values: Any) -> set[str]:
    """Return the columns that a table lacks. In a merged file they exist, but are empty."""
    import pyarrow as pa

    return {
        name
        for name in values.column_names
        if len(values)
        and values[name].null_count == len(values)
        and not pa.types.is_floating(values[name].type)
    }


def free_names(folder: Path, names: Mapping[int, str]) -> dict[int, str]:
    """Return the names of step tables by epoch, numbered if an earlier attempt at the replicate left tables."""
    merged = merged_names(folder / STEPS_NAME)
    free, attempt = dict(names), 1
    while any(
        (folder / STEPS_DIR / name).exists() or f"{STEPS_DIR}/{name}" in merged for name in free.values()
    ):
        attempt += 1
        free = {epoch: f"{Path(name).stem}-a{attempt}{Path(name).suffix}" for epoch, name in names.items()}
    return free


def merge_tables(run: Path) -> int:
    """Move the step tables of a run into its ``steps.parquet``, and return how many were moved."""
    merged = run / STEPS_NAME
    with claimed(run):
        named, names = list(_named_files(run)), merged_names(merged)
        new = [_labelled(path, record) for path, record in named if record.steps_file not in names]
        try:
            if any(map(len, new)):
                _write(merged, [*merged_row_groups(merged), *filter(len, new)])
            names = merged_names(merged)
            moved = [path for path, record in named if record.steps_file in names]
            for path in moved:
                path.unlink()
        except OSError as error:
            raise from_os_error(error, error.filename or run) from error
        with contextlib.suppress(OSError):  # it is not empty, or not there
            (run / STEPS_DIR).rmdir()
        return len(moved)


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


def _labelled(path: Path, record: Record) -> Any:
    """Return the step table of a record as a `pyarrow.Table`, after the columns that name the record."""
    import pyarrow as pa

    rows = read_arrow(path, str(record.steps_file))
    labels = (record.steps_file, record.cell.cell_id, record.replicate, record.epoch)
    columns = {name: pa.repeat(label, len(rows)) for name, label in zip(RECORD_COLUMNS, labels, strict=True)}
    return pa.table(columns | dict(zip(rows.column_names, rows.columns, strict=True)))


def _write(merged: Path, tables: Sequence[Any]) -> None:
    """Write a ``steps.parquet``, one row group per table; columns that a table lacks are null in it."""
    import pyarrow as pa
    from pyarrow import parquet

    with _refused(merged):
        schema = pa.unify_schemas([rows.schema for rows in tables])
    with (
        open_whole(merged) as file,
        parquet.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=[NAME_COLUMN, "cell_id"],  # for numbers that hardly repeat it only takes room
            write_statistics=[NAME_COLUMN],
        ) as writer,
    ):
        for rows in tables:
            fitted = pa.concat_tables([schema.empty_table(), rows], promote_options="default")
            writer.write_table(fitted, row_group_size=len(rows))
