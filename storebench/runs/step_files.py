"""Read the step tables of a run, and refuse files that are not step tables.

While a run goes on, the table of each record is a file of its own in ``steps/``. A finished run has all of them in
``steps.parquet`` (`storebench.runs.merging`): one row group per table, so that the steps of one record are read without
those of the others. Its column ``steps_file`` holds the name by which a record names its table.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from storebench.errors import CorruptDataError
from storebench.fileio.reading import open_regular
from storebench.runs.records import STEPS_NAME
from storebench.runs.step_paths import merged_path, step_path

MOST_STEPS = 1 << 24
"""Most rows of one table; an epoch has one row for each of its steps."""

NAME_COLUMN = "steps_file"
RECORD_COLUMNS = (NAME_COLUMN, "cell_id", "replicate", "epoch")
"""Columns of ``steps.parquet`` that say which record a row belongs to."""

_MOST = 1 << 61
_MOST_KNOWN = 4

StepColumns = dict[str, npt.NDArray[Any]]
"""Column name -> one value per step: int64, or bool."""


def find_table(run: Path, name: str) -> Path | None:
    """Return the file that holds a record's step table; None where there is none.

    Parameters
    ----------
    run
        The run's folder.
    name
        The record's `steps_file`.

    Raises
    ------
    CorruptDataError
        The table would be outside of the run.
    """
    path = step_path(run, name)
    if path.is_file():
        return path
    merged = merged_path(run)
    return merged if merged.is_file() and _may_hold(merged, name) else None


def read_steps(path: Path, name: str, names: Sequence[str], *, later: Sequence[str] = ()) -> StepColumns:
    """Return columns of a step table.

    Parameters
    ----------
    path
        The file that holds it, as `find_table` returned it.
    name
        The record's `steps_file`.
    names
        Columns of integers or flags.
    later
        More of them, left out where the table lacks them: tables of earlier releases do.

    Raises
    ------
    CorruptDataError
        The file is not Parquet, or it lacks the table. A column is missing, or holds something else.
    """
    with _opened(path, name) as table:
        wanted = [*names, *(column for column in later if column in table.columns)]
        missing = [column for column in wanted if column not in table.columns]
        if missing:
            raise CorruptDataError(f"a table of steps without {missing[0]}", where=path)
        values = table.read(wanted)
        absent = _absent(values) if table.is_merged else set()
        if found := [column for column in names if column in absent]:
            raise CorruptDataError(f"a table of steps without {found[0]}", where=path)
        return {column: _column(values[column], column, path) for column in wanted if column not in absent}


def read_arrow(path: Path, name: str) -> Any:
    """Return a whole step table as a `pyarrow.Table`, without the columns that name its record.

    Raises
    ------
    CorruptDataError
        The file is not Parquet, or it lacks the table.
    """
    with _opened(path, name) as table:
        values = table.read(table.columns)
        return values.drop_columns(sorted(_absent(values))) if table.is_merged else values


def read_table(path: Path, name: str) -> Any:
    """Return a whole step table as a `pandas.DataFrame`.

    Raises
    ------
    CorruptDataError
        The file is not Parquet, or it lacks the table.
    """
    values = read_arrow(path, name)
    with _refused(path):
        return values.to_pandas()


def merged_names(path: Path) -> Mapping[str, int]:
    """Return the names of the tables in a ``steps.parquet``, each with its row group; empty where there is no file.

    Raises
    ------
    CorruptDataError
        The file is not one that a run has.
    """
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
    """Yield the tables of a ``steps.parquet`` as `pyarrow.Table`, with all columns; none where there is no file.

    Raises
    ------
    CorruptDataError
        The file is not one that a run has.
    """
    for name in merged_names(path):
        with _opened(path, name) as table:
            rows = table.file.read_row_group(table.group, use_threads=False)
        yield rows


@dataclass(frozen=True, kw_only=True)
class _Merged:
    """What the end of a ``steps.parquet`` says: parsed once, because it grows with the number of tables."""

    metadata: Any
    groups: Mapping[str, int]


_known: dict[tuple[int, ...], _Merged] = {}
"""The last few that were parsed, by what identifies the file and its state."""


@dataclass(frozen=True, kw_only=True)
class _Table:
    """One table in an open file: a row group of it, or all of it where `group` is None."""

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
        # Without threads: an I/O error in one of Arrow's own would end the process when it exits.
        if self.group is None:
            return self.file.read(columns=list(columns), use_threads=False)
        return self.file.read_row_group(self.group, columns=list(columns), use_threads=False)


@contextlib.contextmanager
def _opened(path: Path, name: str) -> Iterator[_Table]:
    place = _place_now(path, name)
    with _refused(place), open_regular(place) as raw:
        known, file = _parsed(raw, place)
        with file:
            if known is not None and name not in known.groups:
                raise CorruptDataError(f"no table {name!r}", where=place)
            table = _Table(file=file, group=None if known is None else known.groups[name])
            if table.rows > MOST_STEPS:
                raise CorruptDataError(f"a table of {table.rows} steps", where=place)
            yield table


def _place_now(path: Path, name: str) -> Path:
    """Return the file that holds a table now: the run may have been finished since the file was looked for."""
    parts = Path(name).parts
    if path.parts[-len(parts) :] != parts or path.exists():
        return path
    return Path(*path.parts[: -len(parts)], STEPS_NAME)


@contextlib.contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Raise what Arrow and the kernel say of a file that cannot be read as a `CorruptDataError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise CorruptDataError(f"no table of steps ({error})", where=path) from None


def _parsed(raw: BinaryIO, path: Path) -> tuple[_Merged | None, Any]:
    """Return what is known of a merged file (None of any other), and the open `pyarrow.parquet.ParquetFile`."""
    from pyarrow import parquet

    key = _key(os.fstat(raw.fileno()))
    known = _known.get(key)
    # Opened by its handle, because its name may be no UTF-8; without Arrow's read-ahead, which has threads.
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
    """Return the row group of each table by its name, from the statistics of the column of names."""
    column = list(metadata.schema.names).index(NAME_COLUMN)
    groups: dict[str, int] = {}
    for number in range(metadata.num_row_groups):
        bounds = metadata.row_group(number).column(column).statistics
        if bounds is None or not bounds.has_min_max or bounds.min != bounds.max:
            raise CorruptDataError(f"row group {number} is not the table of one record", where=path)
        groups.setdefault(str(bounds.min), number)
    return groups


def _may_hold(merged: Path, name: str) -> bool:
    """Return whether a merged file has a table, or cannot be read: reading the table then says why."""
    try:
        return name in merged_names(merged)
    except CorruptDataError:
        return True


def _absent(values: Any) -> set[str]:
    """Return the columns that a table of an earlier release lacks: in a merged file they are there and empty."""
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
        raise CorruptDataError(f"a column {name} of {column.type} in a table of steps", where=path)
    found: npt.NDArray[Any] = column.to_numpy().astype(np.bool_ if flags else np.int64)
    if len(found) and max(abs(int(found.min())), abs(int(found.max()))) >= _MOST:
        raise CorruptDataError(f"a column {name} of impossible numbers in a table of steps", where=path)
    return found
