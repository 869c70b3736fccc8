"""Read the tables of steps that a run wrote, and refuse files that are not tables of steps."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.errors import CorruptDataError
from storebench.fileio.reading import open_regular

MOST_STEPS = 1 << 24
"""Rows of one table; an epoch has one row for each of its steps."""

_MOST = 1 << 61

StepColumns = dict[str, npt.NDArray[Any]]
"""Column name -> one value per step: int64, or bool."""


def read_steps(path: Path, names: Sequence[str], *, later: Sequence[str] = ()) -> StepColumns:
    """Return columns of a table of steps.

    Parameters
    ----------
    path
        The Parquet file.
    names
        Columns of integers, or of flags.
    later
        The same, left out where the table lacks them: tables of earlier releases do.

    Raises
    ------
    CorruptDataError
        It is no Parquet, lacks a column, or a column holds something else.
    """
    with _opened(path) as file:
        there = set(file.schema_arrow.names)
        wanted = [*names, *(name for name in later if name in there)]
        missing = [name for name in wanted if name not in there]
        if missing:
            raise CorruptDataError(f"a table of steps without {missing[0]}", where=path)
        table = file.read(columns=wanted, use_threads=False)
        return {name: _column(table[name], name, path) for name in wanted}


def read_table(path: Path) -> Any:
    """Return a whole table of steps as a `pandas.DataFrame`.

    Raises
    ------
    CorruptDataError
        It is no Parquet.
    """
    with _opened(path) as file:
        return file.read().to_pandas()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        # Not by its name, which may be no UTF-8.
        with open_regular(path) as raw:
            # Read here: an error in one of Arrow's own threads would end the process when it exits.
            content = pa.BufferReader(raw.read())
        with parquet.ParquetFile(content) as file:
            if file.metadata.num_rows > MOST_STEPS:
                raise CorruptDataError(f"a table of {file.metadata.num_rows} steps", where=path)
            yield file
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise CorruptDataError(f"no table of steps ({error})", where=path) from None


def _column(column: Any, name: str, path: Path) -> npt.NDArray[Any]:
    import pyarrow as pa

    flags = pa.types.is_boolean(column.type)
    if column.null_count or not (flags or pa.types.is_integer(column.type)):
        raise CorruptDataError(f"a column {name} of {column.type} in a table of steps", where=path)
    found: npt.NDArray[Any] = column.to_numpy().astype(np.bool_ if flags else np.int64)
    if len(found) and max(abs(int(found.min())), abs(int(found.max()))) >= _MOST:
        raise CorruptDataError(f"a column {name} of impossible numbers in a table of steps", where=path)
    return found
