"""The times of every step as a table, stored beside the record; sums and traces are computed from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from storebench.fileio.whole_files import open_message
from storebench.probes.batch_io import IO_COLUMNS

if TYPE_CHECKING:  # the loop imports torch, which validating step tables does not need
    from storebench.training.loop import StepTimes

Column = npt.NDArray[Any]
StepTable = dict[str, Column]
"""Column name -> one value per step; the columns of the Parquet files in ``steps/``."""

PREFETCHED_MOST_FRAC = 0.1
"""Most of the timed samples that may have been begun before the clock; a rate is too high by at most this share."""


def step_table(times: Sequence["StepTimes"], losses: Sequence[float], *, warmup_steps: int) -> StepTable:
    """Return the columns of an epoch's steps, int64 nanoseconds unless the name says otherwise."""
    table: StepTable = {
        "step": np.arange(len(times), dtype=np.int64),
        "warmup": _warm_up_flags(times, warmup_steps),
        "samples": _column([len(step.indices) for step in times]),
        "payload_bytes": _column([step.payload_bytes for step in times]),
        "start_ns": _column([step.asked_ns for step in times]),
        "data_wait_ns": _column([step.got_ns - step.asked_ns for step in times]),
        "h2d_ns": _column([step.copied_ns - step.got_ns for step in times]),
        "compute_ns": _column([step.done_ns - step.copied_ns for step in times]),
        "paused_ns": _column([step.paused_ns for step in times]),
        "worker": _column([step.worker for step in times]),
        "fetch_start_ns": _column([step.spans.start_ns for step in times]),
        "fetch_ns": _column([step.spans.fetch_ns for step in times]),
        "decode_ns": _column([step.spans.decode_ns for step in times]),
        "prep_ns": _column([step.spans.prep_ns for step in times]),
        "ready_ns": _column([step.spans.ready_ns for step in times]),
    }
    counted = [step.io for step in times if step.io is not None]
    if len(counted) == len(times):
        table |= {name: _column([getattr(io, name) for io in counted]) for name in IO_COLUMNS}
    table["queue_depth"] = queue_depth(table)
    table["loss"] = np.asarray(losses if len(losses) else [np.nan] * len(times), dtype=np.float32)
    return table


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


def _warm_up_flags(times: Sequence["StepTimes"], warmup_steps: int) -> Column:
    """Return a flag per step: True for the warm-up steps, and for steps whose batch was begun during them."""
    steps = np.arange(len(times))
    if not 0 < warmup_steps < len(times):
        return steps < warmup_steps
    asked_ns = _column([step.asked_ns for step in times])
    begun_ns = _column([step.spans.start_ns for step in times])
    samples = _column([len(step.indices) for step in times])
    begun = np.flatnonzero(begun_ns < asked_ns[warmup_steps])
    first = int(begun.max(initial=warmup_steps - 1)) + 1
    ahead = begun_ns < asked_ns[min(first, len(times) - 1)]
    prefetched, timed = samples[first:][ahead[first:]].sum(), samples[first:].sum()
    return steps < (first if timed > 0 and prefetched <= PREFETCHED_MOST_FRAC * timed else 0)


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


def write_steps(table: StepTable, path: Path) -> None:
    """Write the table as Parquet, for the runner to read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: _arrow(column) for name, column in table.items()}
    with open_message(path) as file:  # pyarrow itself opens no name that is not UTF-8
        pq.write_table(pa.table(columns), file, compression="zstd")


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


def _column(values: list[int]) -> Column:
    return np.asarray(values, dtype=np.int64)
