"""The rules for a record and its step table: every figure follows from the steps, and producers keep to their epoch."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.analysis.checks.findings import Finding, Rule, agree, finding
from storebench.errors import CorruptDataError
from storebench.record.figures import epoch_record, portion_sums, with_cold_rates
from storebench.record.merging import RANK, job_steps, rank_count
from storebench.record.schema import Record
from storebench.record.steps import StepTable, step_columns


def check_steps(record: Record, run: Path) -> list[Finding]:
    """Return the findings about a usable record and its step table in a run's folder."""
    if record.steps_file is None:
        none = "nothing shows the steps that the sums are of"
        return [finding(Rule.STEPS, record, "steps_file", none)] if record.steps and record.code else []
    try:
        return list(_table(record, step_columns(run, record.steps_file)))
    except (CorruptDataError, KeyError, ValueError, IndexError) as error:
        what = error.what if isinstance(error, CorruptDataError) else repr(error)
        return [finding(Rule.STEPS, record, "steps_file", f"{record.steps_file} cannot be read: {what}")]


def _table(record: Record, table: StepTable) -> Iterator[Finding]:
    if (ranks := rank_count(table)) != record.cell.ranks:
        message = f"its steps are those of {ranks} ranks, not of {record.cell.ranks}"
        yield finding(Rule.STEPS, record, "steps_file", message)
        return
    computed = figures(record, table)
    for name, recorded in vars(record).items():
        if not _alike(recorded, getattr(computed, name)):
            message = f"{recorded}, but its steps give {getattr(computed, name)}"
            yield finding(Rule.STEPS, record, name, message)
    yield from _producers(record, table)


def figures(record: Record, table: StepTable) -> Record:
    """Return a record with every figure that follows from its steps, as the worker that wrote it computes them."""
    right = epoch_record(record, table)
    whole = job_steps(table) if RANK in table else table
    right = with_cold_rates(dataclasses.replace(right, cold_rates=()), whole)
    part = record.portion
    if part is not None:
        cut = slice(part.first_step, part.first_step + part.steps)
        sums = portion_sums({key: column[cut] for key, column in whole.items()}, part.edge_steps)
        right = dataclasses.replace(right, portion=dataclasses.replace(part, **sums))
    return right


def _alike(first: Any, second: Any) -> bool:
    """Whether two figures, or parts of a record, are equal up to rounding."""
    if first is second:
        return True
    if isinstance(first, float) and isinstance(second, float):
        return agree(first, second) or (math.isnan(first) and math.isnan(second))
    if dataclasses.is_dataclass(first) and dataclasses.is_dataclass(second):
        return _alike(tuple(vars(first).values()), tuple(vars(second).values()))
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_alike, first, second))
    return bool(first == second)


def _producers(record: Record, table: StepTable) -> Iterator[Finding]:
    """Find batches that were made before the epoch, or were not ready when the loop had them."""
    asked_ns = table["start_ns"]
    if not len(asked_ns):
        return
    late_ns = table["ready_ns"] - asked_ns - table["data_wait_ns"]
    yield from _first(record, "ready_ns", late_ns, "was ready {} after the loop had it")
    early_ns = asked_ns.min() - table["fetch_start_ns"]
    yield from _first(record, "fetch_start_ns", early_ns, "was begun {} before the epoch")


def _first(record: Record, figure: str, excess_ns: npt.NDArray[np.int64], message: str) -> Iterator[Finding]:
    rows = np.flatnonzero(excess_ns > 0)
    if len(rows):
        words = message.format(f"{int(excess_ns[rows[0]]) / 1e6:.3g} ms")
        yield finding(Rule.STEPS, record, figure, f"the batch in row {rows[0]} of its steps {words}")
