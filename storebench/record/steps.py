"""The times of every step as a table, a file beside the record; sums and traces are computed from it."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.errors import CorruptDataError
from storebench.record.lines import STEPS_DIR
from storebench.system.reading import open_regular
from storebench.system.whole_files import open_message

Column = npt.NDArray[Any]

# Column name -> one value per step; the columns of the Parquet files in `steps/`.
StepTable = dict[str, Column]

# Most rows of one table; an epoch has one row per step.
MOST_STEPS = 1 << 24

# The kernel's counters for a batch, by the names that `storebench.record.schema.Counters` has for them.
IO_COLUMNS = ("device_read_bytes", "read_calls", "major_faults", "minor_faults")

# Most of the timed samples that may have been begun before the clock; a rate is too high by at most this share.
PREFETCHED_MOST_FRAC = 0.1


def wall_ns(table: StepTable) -> int:
    """Return the nanoseconds from requesting the first batch to the end of the last step, without pauses."""
    last = int(step_ends(table)[-1])
    paused = int(table["paused_ns"][:-1].sum()) if "paused_ns" in table else 0
    return last - int(table["start_ns"][0]) - paused


def timed_rows(table: StepTable) -> StepTable:
    """Return the steps of a table that are no warm-up steps."""
    timed = ~table["warmup"].astype(bool)
    return {name: column[timed] for name, column in table.items()}


def step_ends(table: StepTable) -> Column:
    """Return the end of each step, int64 [n], nanoseconds of ``time.perf_counter_ns``."""
    if "end_ns" in table:
        return table["end_ns"]
    end: Column = table["start_ns"] + table["data_wait_ns"] + table["h2d_ns"] + table["compute_ns"]
    return end


def queue_depth(table: StepTable) -> Column:
    """Return the number of finished batches that were waiting when each step requested its own."""
    ready = np.sort(table["ready_ns"])
    finished = np.searchsorted(ready, table["start_ns"], side="right")
    depth: Column = np.maximum(finished - table["step"], 0).astype(np.int64)
    return depth


def handoff_ns(table: StepTable) -> Column:
    """Return the handoff cost of each batch: the loop's wait after the batch was ready."""
    got = table["start_ns"] + table["data_wait_ns"]
    moved: Column = np.maximum(got - np.maximum(table["ready_ns"], table["start_ns"]), 0)
    return moved


def step_path(run: Path, name: str) -> Path:
    """Return the path of a step table, whether it is there or not."""
    parts = Path(name).parts
    if parts[:1] != (STEPS_DIR,) or len(parts) < 2 or ".." in parts or "\0" in name:
        raise CorruptDataError(
            f"the step file {name!r} of a record lies outside of the run's {STEPS_DIR}/",
            where=run,
            hint="Use a run folder as 'storebench bench' wrote it.",
        )
    return run / name


def read_steps(run: Path, name: str) -> Any:
    """Return a step table as a `pyarrow.Table`; raises CorruptDataError if it is missing or no such table."""
    import pyarrow as pa
    from pyarrow import parquet

    path = step_path(run, name)
    if not path.is_file():
        raise CorruptDataError("it is not there", where=path)
    try:
        with (
            open_regular(path) as raw,  # because its name may not be UTF-8
            parquet.ParquetFile(raw, pre_buffer=False) as file,  # read-ahead uses threads
        ):
            rows = file.metadata.num_rows
            if rows > MOST_STEPS:
                raise CorruptDataError(f"a step table of {rows:,} rows, more than {MOST_STEPS:,}", where=path)
            # Without threads: an I/O error in a thread of Arrow's would abort the process at exit.
            return file.read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise CorruptDataError(f"not a step table ({error})", where=path) from None


def step_columns(run: Path, name: str) -> StepTable:
    """Return the columns of a step table; raises CorruptDataError if it is missing or no such table."""
    arrow = read_steps(run, name)
    return {column: arrow.column(column).to_numpy() for column in arrow.column_names}


def write_steps(table: StepTable, path: Path) -> None:
    """Write the table as Parquet, for the runner to read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: _arrow(column) for name, column in table.items()}
    with open_message(path) as file:  # pyarrow itself opens no name that is not UTF-8
        # Most tables have few steps, so all that describes the columns would take more room than they do.
        pq.write_table(
            pa.table(columns),
            file,
            compression="zstd",
            use_dictionary=False,
            write_statistics=False,
            store_schema=False,
        )


def _arrow(column: Column) -> Any:
    """Return a column for Arrow; a column that is all NaN becomes a column of nulls."""
    import pyarrow as pa

    count = len(column)
    if column.dtype.kind == "f" and np.isnan(column).all():
        return pa.nulls(count, pa.from_numpy_dtype(column.dtype))
    held = (
        np.packbits(column, bitorder="little") if column.dtype == np.bool_ else np.ascontiguousarray(column)
    )
    return pa.Array.from_buffers(pa.from_numpy_dtype(column.dtype), count, [None, pa.py_buffer(held)])
