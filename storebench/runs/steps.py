"""The step tables of a run: one file each while it runs, merged into one when it is finished."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from storebench.errors import CorruptDataError, StorebenchError, from_os_error
from storebench.fileio.json_lines import rows_of
from storebench.fileio.reading import open_regular
from storebench.fileio.whole_files import open_whole
from storebench.results import Record
from storebench.runs.lock import claimed
from storebench.runs.manifest import check_entries
from storebench.runs.records import RECORDS_NAME, STEPS_DIR, STEPS_NAME, SUPERSEDED_NAME, record_from_dict

_HINT = "Use a run folder as 'storebench bench' wrote it."


def step_path(run: Path, name: str) -> Path:
    """Return the path of a step table that is a separate file; there may be no file."""
    parts = Path(name).parts
    inside = parts[:1] == (STEPS_DIR,) and len(parts) > 1 and ".." not in parts and "\0" not in name
    path = run.joinpath(*parts)
    if inside and any(place.is_symlink() for place in (path, *path.parents[: len(parts) - 1])):
        inside = path.resolve().is_relative_to(run.resolve() / STEPS_DIR)
    if not inside:
        raise CorruptDataError(
            f"the step file {name!r} of a record lies outside of the run's {STEPS_DIR}/",
            where=run,
            hint=_HINT,
        )
    return path


MOST_STEPS = 1 << 24
"""Most rows of one table; an epoch has one row per step."""

NAME_COLUMN = "steps_file"
RECORD_COLUMNS = (NAME_COLUMN, "cell_id", "replicate", "epoch")
"""Columns of ``steps.parquet`` that identify the record of a row."""

_MOST = 1 << 61
_MOST_KNOWN = 4

StepColumns = dict[str, npt.NDArray[Any]]
"""Column name -> one value per step: int64, or bool."""


def find_table(run: Path, name: str) -> Path | None:
    """Return the file that holds a record's step table; None if there is no such file."""
    path = step_path(run, name)
    if path.is_file():
        return path
    merged = run / STEPS_NAME
    if merged.is_symlink():
        raise CorruptDataError("a symbolic link, not a file of the run's own", where=merged, hint=_HINT)
    try:
        return merged if merged.is_file() and name in merged_names(merged) else None
    except CorruptDataError:
        return merged  # reading its table gives the reason


def read_steps(path: Path, name: str, names: Sequence[str], *, later: Sequence[str] = ()) -> StepColumns:
    """Return columns of a step table."""
    with _opened(path, name) as table:
        wanted = [*names, *(column for column in later if column in table.columns)]
        missing = [column for column in wanted if column not in table.columns]
        if missing:
            raise CorruptDataError(f"a step table without the column {missing[0]}", where=path)
        values = table.read(wanted)
        absent = _absent(values) if table.is_merged else set()
        if absent_names := [column for column in names if column in absent]:
            raise CorruptDataError(f"a step table without the column {absent_names[0]}", where=path)
        return {column: _column(values[column], column, path) for column in wanted if column not in absent}


def read_arrow(path: Path, name: str) -> Any:
    """Return a whole step table as a `pyarrow.Table`, without the columns that name its record."""
    with _opened(path, name) as table:
        values = table.read(table.columns)
        return values.drop_columns(sorted(_absent(values))) if table.is_merged else values


def read_table(path: Path, name: str) -> Any:
    """Return a whole step table as a `pandas.DataFrame`."""
    values = read_arrow(path, name)
    with _refused(path):
        return values.to_pandas()


def merged_names(path: Path) -> Mapping[str, int]:
    """Return the names of the tables in a ``steps.parquet``, each with its row group; empty if there is no file."""
    if not os.path.lexists(path):
        return {}
    with _refused(path):
        known = _known.get(_key(path.stat()))
        if known is None:
            with open_regular(path) as raw:
                known, file = _parsed(raw, path)
                file.close()
    if known is None:
        raise CorruptDataError(f"no column {NAME_COLUMN}", where=path)
    return known.groups


def merged_row_groups(path: Path) -> Iterator[Any]:
    """Yield the tables of a ``steps.parquet`` as `pyarrow.Table`, with all columns; none if there is no file."""
    for name in merged_names(path):
        with _opened(path, name) as table:
            rows = table.file.read_row_group(table.group, use_threads=False)
        yield rows


@dataclass(frozen=True, kw_only=True)
class _Merged:
    """The footer of a ``steps.parquet``: parsed once, because it grows with the number of tables."""

    metadata: Any
    groups: Mapping[str, int]


_known: dict[tuple[int, ...], _Merged] = {}
"""The most recently parsed footers, by the identity and state of their files."""


@dataclass(frozen=True, kw_only=True)
class _Table:
    """One table in an open file: the row group `group`, or the whole file if that is None."""

    file: Any
    group: int | None

    @property
    def is_merged(self) -> bool:
        return self.group is not None

    @property
    def columns(self) -> list[str]:
        """The table's columns, without those that name its record."""
        names = self.file.schema_arrow.names
        return [name for name in names if not self.is_merged or name not in RECORD_COLUMNS]

    @property
    def rows(self) -> int:
        metadata = self.file.metadata
        return int(metadata.num_rows if self.group is None else metadata.row_group(self.group).num_rows)

    def read(self, columns: Sequence[str]) -> Any:
        # Without threads: an I/O error in a thread of Arrow's would abort the process at exit.
        if self.group is None:
            return self.file.read(columns=list(columns), use_threads=False)
        return self.file.read_row_group(self.group, columns=list(columns), use_threads=False)


@contextlib.contextmanager
def _opened(path: Path, name: str) -> Iterator[_Table]:
    place, parts = path, Path(name).parts
    if path.parts[-len(parts) :] == parts and not path.exists():
        # The run has been finished since `find_table` was called.
        place = Path(*path.parts[: -len(parts)], STEPS_NAME)
    with _refused(place), open_regular(place) as raw:
        known, file = _parsed(raw, place)
        with file:
            if known is not None and name not in known.groups:
                raise CorruptDataError(f"no table {name!r}", where=place)
            table = _Table(file=file, group=None if known is None else known.groups[name])
            if table.rows > MOST_STEPS:
                raise CorruptDataError(
                    f"a step table of {table.rows:,} rows, more than {MOST_STEPS:,}", where=place
                )
            yield table


@contextlib.contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Turn errors of Arrow and of the kernel about an unreadable file into `CorruptDataError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise CorruptDataError(f"not a step table ({error})", where=path) from None


def _parsed(raw: BinaryIO, path: Path) -> tuple[_Merged | None, Any]:
    """Return the footer of a merged file (None for any other file), and the open `pyarrow.parquet.ParquetFile`."""
    from pyarrow import parquet

    key = _key(os.fstat(raw.fileno()))
    known = _known.get(key)
    # Opened by its handle, because its name may not be UTF-8; without Arrow's read-ahead, which uses threads.
    file = parquet.ParquetFile(raw, metadata=None if known is None else known.metadata, pre_buffer=False)
    if known is None and NAME_COLUMN in file.schema_arrow.names:
        known = _Merged(metadata=file.metadata, groups=_groups(file.metadata, path))
        while len(_known) >= _MOST_KNOWN:
            del _known[next(iter(_known))]
        _known[key] = known
    return known, file


def _key(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


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


def _column(column: Any, name: str, path: Path) -> npt.NDArray[Any]:
    import pyarrow as pa

    flags = pa.types.is_boolean(column.type)
    if column.null_count or not (flags or pa.types.is_integer(column.type)):
        raise CorruptDataError(f"a column {name} of {column.type} in a step table", where=path)
    values: npt.NDArray[Any] = column.to_numpy().astype(np.bool_ if flags else np.int64)
    if len(values) and max(abs(int(values.min())), abs(int(values.max()))) >= _MOST:
        raise CorruptDataError(f"a column {name} of impossible numbers in a step table", where=path)
    return values


def free_names(folder: Path, names: Mapping[int, str]) -> dict[int, str]:
    """Return the names of step tables by epoch; they are numbered if an earlier attempt at the replicate left tables."""
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
        check_entries(run)
        own, known = list(_named_files(run)), merged_names(merged)
        new = [_labelled(path, record) for path, record in own if record.steps_file not in known]
        try:
            if any(map(len, new)):
                _write(merged, [*merged_row_groups(merged), *filter(len, new)])
            known = merged_names(merged)
            moved = [path for path, record in own if record.steps_file in known]
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
